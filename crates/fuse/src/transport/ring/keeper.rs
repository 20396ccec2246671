//! The keeper: the thread that commits the replies of [late](super::late) requests and finds threads
//! for those that go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::super::caller;
use super::entry::RingEntry;
use super::queue::{Completion, Ring};
use super::thread_budget::Admission;
use super::work::Begin;
use super::worker_pool::RingWorkerPool;
use super::{ending, interrupt};
use crate::types::Errno;

/// Replies that are committed with one call.
const COMMITS: u32 = 64;
/// Pause before a thread is looked for again, for a request that has none.
const RETRY: Duration = Duration::from_millis(10);

/// Sees to it that the keeper runs; false if it cannot.
pub(super) fn is_there(worker_pool: &Arc<RingWorkerPool>) -> bool {
    // Nothing but the flag itself: what the keeper reads is under a lock.
    if worker_pool.late.runs.swap(true, Ordering::Relaxed) {
        return true;
    }
    let started = start(worker_pool);
    if let Err(error) = &started {
        tracing::warn!(%error, "no thread to answer waiting requests: each keeps its own");
        worker_pool.late.runs.store(false, Ordering::Relaxed);
    }
    started.is_ok()
}

fn start(worker_pool: &Arc<RingWorkerPool>) -> std::io::Result<()> {
    let ring = Ring::new(worker_pool.server.connection.clone(), COMMITS)?;
    worker_pool.resources.admit(Admission::Further)?;
    let own = worker_pool.clone();
    let spawned = thread::Builder::new()
        .name("strandfs-keeper".to_owned())
        .spawn(move || {
            if let Err(errno) = keep(&own, ring) {
                ending::end(&own, errno);
            }
            own.resources.depart();
        });
    let give_up = |_: &std::io::Error| worker_pool.resources.give_up(Admission::Further);
    spawned.map(drop).inspect_err(give_up)
}

/// Finds a thread for a request that came in an entry of the keeper's, or is due again.
fn deliver(worker_pool: &Arc<RingWorkerPool>, entry: RingEntry) {
    let queue = usize::from(entry.queue());
    let Some(mut state) = worker_pool.queues.lock(queue) else {
        return;
    };
    if let Some(idle) = state.idle.pop() {
        state.become_present();
        drop(state);
        return idle.give(Begin::Answer(entry));
    }
    let Err((begin, error)) = worker_pool.spawn_worker(queue, &mut state, Begin::Answer(entry))
    else {
        return;
    };
    tracing::debug!(%error, queue, "a request waits for a thread");
    if let Begin::Answer(entry) = begin {
        worker_pool.late.strand(entry);
    }
    // One that waits for requests looks for it when it is woken.
    let waiting = state
        .queue_workers
        .iter()
        .find(|queue_worker| queue_worker.is_at_rest());
    if let Some(queue_worker) = waiting {
        queue_worker.signal();
    }
}

/// Looks for threads for those that have none.
fn deliver_stranded(worker_pool: &Arc<RingWorkerPool>) -> bool {
    let mut left = false;
    for queue in 0..worker_pool.queues.len() {
        if let Some(entry) = worker_pool.late.take_stranded(queue) {
            deliver(worker_pool, entry);
            left |= worker_pool.late.is_stranded(queue);
        }
    }
    left
}

/// Interrupts those that have waited for a while whose callers wait for that, where the kernel has not
/// said so; when to look again.
fn look_at_callers(worker_pool: &Arc<RingWorkerPool>) -> Option<Duration> {
    let (waiting, next) = worker_pool.late.take_looks(Instant::now());
    for (unique, thread) in waiting {
        if caller::is_interrupted(thread) && !worker_pool.server.filesystem.interrupt(unique) {
            interrupt::interrupt(worker_pool, unique);
        }
    }
    next
}

/// The life of the keeper.
fn keep(worker_pool: &Arc<RingWorkerPool>, mut ring: Ring) -> Result<(), Errno> {
    let late = Arc::clone(&worker_pool.late);
    ring.start()?;
    // Room for the count that an eventfd gives.
    let count = RingEntry::new(0, rustix::param::page_size())?;
    ring.read_file(count, &late.news, 0, 0..size_of::<u64>());
    while !worker_pool.life.has_ended() {
        for entry in late.take_replies() {
            late.count_spare(entry.queue(), true);
            ring.commit(entry);
        }
        let (due, mut patience) = late.take_due(Instant::now());
        (due.into_iter()).for_each(|entry| deliver(worker_pool, entry));
        if let Some(next) = look_at_callers(worker_pool) {
            patience = Some(patience.map_or(next, |patience| patience.min(next)));
        }
        if deliver_stranded(worker_pool)
            || (0..worker_pool.queues.len()).any(|queue| late.is_stranded(queue))
        {
            patience = Some(patience.map_or(RETRY, |patience| patience.min(RETRY)));
        }
        match ring.wait(patience) {
            Ok(()) | Err(Errno::TIME) => {}
            Err(Errno::INTR) if !worker_pool.life.has_ended() => {}
            Err(errno) => return Err(errno),
        }
        while let Some(completion) = ring.next() {
            match completion {
                Completion::Request(entry) => {
                    late.count_spare(entry.queue(), false);
                    deliver(worker_pool, entry);
                }
                Completion::Transferred(entry, _) => {
                    ring.read_file(entry, &late.news, 0, 0..size_of::<u64>());
                }
                // Nobody waited for that reply: the entry is offered anew.
                Completion::Lost(entry, Errno::NOENT) => ring.register(entry),
                Completion::Lost(_, errno) => return Err(errno),
            }
        }
    }
    Ok(())
}
