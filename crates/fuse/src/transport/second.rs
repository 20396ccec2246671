//! A second reader of `/dev/fuse`, where several callers ask at the same time.
//!
//! One reader serves callers in turn: of two callers on two CPUs each waits while the other is served, and
//! half of the machine is idle. So while callers take turns another thread reads as well, and waits in its
//! read: the kernel gives each request to whoever has waited longest (`wait_event_interruptible_exclusive` in
//! `fuse_dev_do_read`, fs/fuse/dev.c). The two do the same. The worker table calls one the reader and the other
//! the second; they differ in nothing but who goes on when one of them is taken away, and that is the other.
//!
//! A caller that is alone again is better served by one thread where it runs ([`follow`](super::follow)). To
//! have the other thread end its read would take a signal, which might end a system call of a request that it
//! has just read. Nobody has to: the thread that finds the caller alone is at rest, and goes itself.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::worker_pool::{Next, WorkerPool, WorkerTable};
use super::worker_state::{WakeReason, WorkerState};
use crate::affinity;

/// So many judgements in a row that one caller is alone send one of two readers away.
const ALONE: u32 = 4;
/// Where no thread could be had, none is asked for within this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the reader and the second know together. On its own cache lines: both write it with every request.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Together {
    /// Who asked last.
    last: AtomicU32,
    /// Judgements in a row that one caller is alone.
    alone: AtomicU32,
    /// Whether there is a second.
    are_two: AtomicBool,
}

impl Together {
    /// Notes who asks, unless nobody waits (0); who did before.
    pub(super) fn note_asker(&self, thread: u32) -> u32 {
        match thread {
            0 => self.last.load(Ordering::Relaxed),
            _ => self.last.swap(thread, Ordering::Relaxed),
        }
    }

    /// Whether there is a second.
    pub(super) fn are_two(&self) -> bool {
        self.are_two.load(Ordering::Relaxed)
    }

    /// Notes a judgement; whether one of two readers is to go.
    pub(super) fn note_alone(&self, is_alone: bool) -> bool {
        match is_alone {
            true => self.alone.fetch_add(1, Ordering::Relaxed) + 1 >= ALONE,
            false => {
                self.alone.store(0, Ordering::Relaxed);
                false
            }
        }
    }

    fn set_two(&self, are_two: bool) {
        self.alone.store(0, Ordering::Relaxed);
        self.are_two.store(are_two, Ordering::Relaxed);
    }
}

/// The second's place in the worker table.
#[derive(Default)]
pub(super) struct Second {
    reader: Option<Arc<WorkerState>>,
    /// None is asked for before.
    not_before: Option<Instant>,
}

impl Second {
    /// The second, if there is one.
    pub(super) fn get(&self) -> Option<&Arc<WorkerState>> {
        self.reader.as_ref()
    }
}

/// Calls a second reader, if there is none, may be one and a thread can be had. For a reader that
/// is at rest and bound to no CPU. Whether there may be one.
pub(super) fn call(worker_pool: &Arc<WorkerPool>, now: Instant) -> bool {
    if worker_pool.further.together.are_two() {
        return true;
    }
    if !worker_pool.placement.is_near_caller() {
        return false;
    }
    // Somebody may have left the thread one CPU since it started.
    let cpus = affinity::own_cpus().min(affinity::allowed_cpus());
    if !worker_pool.further.may_have_second(cpus) {
        return false;
    }
    let mut worker_table = worker_pool.worker_table.lock();
    let second = &worker_table.second;
    let is_too_soon = second.not_before.is_some_and(|time| now < time);
    if worker_table.closed || is_too_soon || second.reader.is_some() {
        return true;
    }
    if !worker_pool.further.admit_second(cpus) {
        return true;
    }
    match worker_pool.successor(&mut worker_table) {
        Some(next) => {
            worker_table.second.reader = Some(next.clone());
            worker_pool.further.together.set_two(true);
            drop(worker_table);
            next.hand(WakeReason::Read);
        }
        None => {
            worker_table.second.not_before = Some(now + RETRY_AFTER);
            worker_pool.further.second_is_gone();
        }
    }
    true
}

/// One of two readers, this one, is taken away: the one that goes on is the reader then. `None` if this
/// one is the only reader. Under the worker table's lock.
pub(super) fn take_away(
    worker_pool: &WorkerPool,
    worker_table: &mut WorkerTable,
    worker_state: &WorkerState,
) -> Option<Arc<WorkerState>> {
    let second = worker_table.second.reader.take()?;
    worker_pool.further.together.set_two(false);
    worker_pool.further.second_is_gone();
    if !ptr::eq(Arc::as_ptr(&second), worker_state) {
        worker_table.reader = Some(second);
    }
    worker_table.reader.clone()
}

/// A thread ends, with whatever role. Under the worker table's lock.
pub(super) fn depart(
    worker_pool: &WorkerPool,
    worker_table: &mut WorkerTable,
    worker_state: &Arc<WorkerState>,
) {
    let is_it =
        |role: Option<&Arc<WorkerState>>| role.is_some_and(|it| Arc::ptr_eq(it, worker_state));
    if is_it(worker_table.second.get()) || is_it(worker_table.reader.as_ref()) {
        take_away(worker_pool, worker_table, worker_state);
    }
}

/// One caller is alone: the calling thread, a reader at rest, reads no more if another does. What it does
/// then.
pub(super) fn step_back(worker_pool: &WorkerPool, worker_state: &Arc<WorkerState>) -> Option<Next> {
    let mut worker_table = worker_pool.worker_table.lock();
    take_away(worker_pool, &mut worker_table, worker_state)?;
    worker_state.step_back();
    Some(worker_pool.next_without_role(&mut worker_table, worker_state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_goes_when_a_caller_has_been_alone_for_long() {
        let together = Together::default();
        together.set_two(true);
        assert!((1..ALONE).all(|_| !together.note_alone(true)));
        assert!(!together.note_alone(false));
        assert!((1..ALONE).all(|_| !together.note_alone(true)));
        assert!(together.note_alone(true));
        together.set_two(true);
        assert!(!together.note_alone(true), "counted anew");
    }

    #[test]
    fn who_asked_before_is_known_to_both() {
        let together = Together::default();
        assert_eq!(together.note_asker(7), 0);
        assert_eq!(together.note_asker(8), 7);
        assert_eq!(together.note_asker(0), 8);
        assert_eq!(together.note_asker(8), 8);
    }
}
