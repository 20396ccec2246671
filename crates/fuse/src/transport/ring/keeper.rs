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
use crate::types::Errno;

/// Replies that are committed with one call.
const COMMITS: u32 = 64;
/// Pause before a thread is looked for again, for a request that has none.
const RETRY: Duration = Duration::from_millis(10);

impl RingWorkerPool {
    /// Sees to it that the keeper runs; false if it cannot.
    pub(super) fn has_keeper(self: &Arc<Self>) -> bool {
        if self.late.runs.swap(true, Ordering::SeqCst) {
            return true;
        }
        let started = self.start_keeper();
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread to answer waiting requests: each keeps its own");
            self.late.runs.store(false, Ordering::SeqCst);
        }
        started.is_ok()
    }

    fn start_keeper(self: &Arc<Self>) -> std::io::Result<()> {
        let ring = Ring::new(self.server.connection.clone(), COMMITS)?;
        self.threads.lock().admit(Admission::Further)?;
        let worker_pool = self.clone();
        let spawned = thread::Builder::new()
            .name("strandfs-keeper".to_owned())
            .spawn(move || {
                if let Err(errno) = keep(&worker_pool, ring) {
                    worker_pool.end(errno);
                }
                worker_pool.depart();
            });
        spawned.map(drop).inspect_err(|_| self.depart())
    }

    /// Finds a thread for a request that came in an entry of the keeper's, or is due again.
    fn deliver(self: &Arc<Self>, entry: RingEntry) {
        let queue = usize::from(entry.queue());
        let Some(mut state) = self.queue(queue) else {
            return;
        };
        if let Some(idle) = state.idle.pop() {
            state.present += 1;
            drop(state);
            return idle.give(Begin::Answer(entry));
        }
        let Err((begin, error)) = self.spawn_worker(queue, &mut state, Begin::Answer(entry)) else {
            return;
        };
        tracing::debug!(%error, queue, "a request waits for a thread");
        if let Begin::Answer(entry) = begin {
            self.late.strand(entry);
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
    fn deliver_stranded(self: &Arc<Self>) -> bool {
        let mut left = false;
        for queue in 0..self.queues.len() {
            if let Some(entry) = self.late.take_stranded(queue) {
                self.deliver(entry);
                left |= self.late.is_stranded(queue);
            }
        }
        left
    }
}

impl RingWorkerPool {
    /// Interrupts those that have waited for a while whose callers wait for that, where the kernel has not
    /// said so; when to look again.
    fn look_at_callers(self: &Arc<Self>) -> Option<Duration> {
        let (waiting, next) = self.late.take_looks(Instant::now());
        for (unique, thread) in waiting {
            if caller::is_interrupted(thread) && !self.server.filesystem.interrupt(unique) {
                self.interrupt(unique);
            }
        }
        next
    }
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
        due.into_iter().for_each(|entry| worker_pool.deliver(entry));
        if let Some(next) = worker_pool.look_at_callers() {
            patience = Some(patience.map_or(next, |patience| patience.min(next)));
        }
        if worker_pool.deliver_stranded()
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
                    worker_pool.deliver(entry);
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
