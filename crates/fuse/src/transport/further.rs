//! Further readers of `/dev/fuse`, where requests come faster than one thread carries them out.
//!
//! The reader finds its requests at hand then, of several callers or of one that does not wait. While
//! that lasts, other threads read as well, if there are CPUs for them beside one for the reader and one
//! for a caller. They take what is there and leave as soon as nothing is: a further reader that waited
//! would be woken for a request that the first one would have carried out where its caller runs. Of several
//! callers that is not so: while they take turns one does wait, the [second](super::second) reader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::second::Together;
use super::worker_pool::WorkerPool;
use super::worker_state::WakeReason;

/// Further readers at most, where nobody says how many.
const MOST: usize = 7;
/// A further reader that has carried out so many requests was worth being woken.
const WORTH: u32 = 32;
/// After one that was not, this many judgements pass until the next is called, twice as many each time.
const PAUSE_MAX: u32 = 64;
/// An INTERRUPT of a request that another reader has only just read is tried again so much later.
pub(super) const SETTLE: Duration = Duration::from_micros(200);

/// Who reads beside the reader.
#[derive(Debug, Default)]
pub(super) struct FurtherReaders {
    /// How many there may be; `None`: as the CPUs say.
    most: Option<usize>,
    /// Called and not gone yet, the second reader among them.
    running: AtomicUsize,
    /// Judgements that pass until the next one is called.
    pause: AtomicU32,
    /// How many pass after one more that was not worth it.
    next_pause: AtomicU32,
    /// Of the reader and the second.
    pub(super) together: Together,
}

impl FurtherReaders {
    /// None yet, and so many at most.
    pub(super) fn new(most: Option<usize>) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Whether there is any.
    pub(super) fn are_there(&self) -> bool {
        // SeqCst: who is to be interrupted may have been read by one that says so before it reads.
        self.running.load(Ordering::SeqCst) > 0
    }

    /// Whether there may be a second reader at all; `cpus`: on which the reader may run.
    pub(super) fn may_have_second(&self, cpus: usize) -> bool {
        self.most_with_second(cpus) > 0
    }

    /// Whether a second reader is to be called, which then counts.
    pub(super) fn admit_second(&self, cpus: usize) -> bool {
        self.admit_up_to(self.most_with_second(cpus))
    }

    fn admit_up_to(&self, most: usize) -> bool {
        let one_more = |running| (running < most).then_some(running + 1);
        let order = Ordering::SeqCst;
        self.running.fetch_update(order, order, one_more).is_ok()
    }

    /// The second reader is gone, or never came.
    pub(super) fn second_is_gone(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many there may be while callers take turns. On two CPUs the reader and the second share them
    /// with the callers, each of which waits while it is served.
    fn most_with_second(&self, cpus: usize) -> usize {
        match cpus {
            0 | 1 => 0,
            _ => self.most.unwrap_or_else(|| Self::beside(cpus).max(1)),
        }
    }

    /// How many there are beside the reader and a caller, which have a CPU each.
    fn beside(cpus: usize) -> usize {
        cpus.saturating_sub(2).min(MOST)
    }

    /// Whether one more is to be called, which then counts; `cpus`: on which threads may run. For the
    /// reader, once for each judgement that there is too much to do.
    fn admit(&self, cpus: usize) -> bool {
        let most = self.most.unwrap_or_else(|| Self::beside(cpus));
        if self.running.load(Ordering::Relaxed) >= most {
            return false;
        }
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
            return false;
        }
        self.admit_up_to(most)
    }

    /// One is gone, or never came; it carried out so many requests.
    pub(super) fn leave(&self, served: u32) {
        let pause = match served < WORTH {
            true => self.next_pause.load(Ordering::Relaxed).clamp(1, PAUSE_MAX),
            false => 0,
        };
        self.pause.store(pause, Ordering::Relaxed);
        self.next_pause
            .store((pause * 2).min(PAUSE_MAX), Ordering::Relaxed);
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls one more reader, if that may help and a thread can be had.
pub(super) fn call(worker_pool: &Arc<WorkerPool>) {
    if !worker_pool.further.admit(crate::affinity::allowed_cpus()) {
        return;
    }
    let mut worker_table = worker_pool.worker_table.lock();
    let next = match worker_table.closed {
        true => None,
        false => worker_pool.successor(&mut worker_table),
    };
    drop(worker_table);
    match next {
        Some(next) => next.hand(WakeReason::Assist),
        None => worker_pool.further.leave(0),
    }
}

/// Whether a request is there to be read; another thread may take it first.
pub(super) fn is_readable(worker_pool: &WorkerPool) -> bool {
    let device = worker_pool.server.connection.device();
    let mut ready = [PollFd::from_borrowed_fd(device, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // An error of the connection is the reader's to find.
    poll(&mut ready, Some(&now)).is_ok_and(|ready| ready > 0) && ready[0].revents() == PollFlags::IN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_for_each_cpu_that_is_left() {
        let further = FurtherReaders::default();
        assert!(!further.admit(1) && !further.admit(2));
        assert!(further.admit(3) && further.are_there());
        assert!(!further.admit(3));
        further.leave(WORTH);
        assert!(!further.are_there());
        assert!((0..MOST).all(|_| further.admit(256)));
        assert!(!further.admit(256));
        let asked_for = FurtherReaders::new(Some(1));
        assert!(asked_for.admit(1) && !asked_for.admit(256));
    }

    #[test]
    fn the_second_is_one_of_them() {
        let further = FurtherReaders::default();
        assert!(!further.may_have_second(1) && further.may_have_second(2));
        assert!(further.admit_second(2) && !further.admit_second(3));
        assert!(!further.admit(3), "the only one on three CPUs");
        assert!(further.admit(4));
        further.second_is_gone();
        assert!(!further.admit_second(3) && further.admit_second(4));
        let none = FurtherReaders::new(Some(0));
        assert!(!none.may_have_second(256));
        let asked_for = FurtherReaders::new(Some(1));
        assert!(asked_for.admit_second(2) && !asked_for.admit(256));
        assert!(!asked_for.admit_second(1));
    }

    #[test]
    fn one_that_found_nothing_to_do_is_not_called_at_once() {
        let further = FurtherReaders::default();
        let mut calls = 0;
        for _ in 0..1000 {
            if further.admit(3) {
                calls += 1;
                further.leave(0);
            }
        }
        assert!((10..30).contains(&calls), "{calls}");
        while !further.admit(3) {}
        further.leave(WORTH);
        assert!(further.admit(3), "the last one was worth it");
    }
}
