//! Entries that go back to a thread with several, from one that got its entry when that thread was not
//! allowed to wait for what came in it. Else each name looked up between two times of many reads would
//! cost such a thread an entry for good, and leave one more thread.
//!
//! An entry goes back with a request in it, and only while such a thread is about to look here
//! before it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::entry::RingEntry;
use super::queue_worker::QueueWorker;
use super::worker_pool::{BACKLOG_THRESHOLD, RingWorkerPool};

/// Requests after one that found no place kept, before the next looks.
const PAUSE: u32 = 1024;

/// What a queue's threads with several entries are to take.
#[derive(Default)]
pub(super) struct ReclaimQueue {
    /// How many of them will look before they wait. Changed under the lock.
    looking: AtomicUsize,
    /// The data they are asked for has been at hand for a while: they need not pass requests on.
    wanted: AtomicBool,
    /// Requests until it is tried again, after there was no place: about, for many threads count.
    pause: AtomicU32,
    entries: Mutex<Vec<RingEntry>>,
}

impl ReclaimQueue {
    /// A thread with several entries has been woken: it will look before it waits again.
    pub(super) fn will_look(&self) {
        let entries = self.entries.lock();
        self.looking.fetch_add(1, Ordering::Relaxed);
        drop(entries);
    }

    /// Whether what comes can be answered at once, most likely.
    pub(super) fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// What has come for a thread that would wait now. With nothing it may, and will be counted as
    /// waiting.
    pub(super) fn look(&self) -> Option<Vec<RingEntry>> {
        let mut entries = self.entries.lock();
        if entries.is_empty() {
            self.looking.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(std::mem::take(&mut *entries))
    }

    /// The entry comes back if nobody will look.
    fn put(&self, entry: RingEntry) -> Option<RingEntry> {
        let mut entries = self.entries.lock();
        if self.looking.load(Ordering::Relaxed) == 0 {
            return Some(entry);
        }
        entries.push(entry);
        None
    }
}

/// Gives the only entry of a thread, with a short read or write in it, to one with several; the
/// thread is off its queue then, and ends. The entry comes back if it is to stay.
pub(super) fn give_back(
    worker_pool: &RingWorkerPool,
    queue_worker: &Arc<QueueWorker>,
    entry: RingEntry,
) -> Option<RingEntry> {
    let Some(queue) = worker_pool.queues.get(queue_worker.queue) else {
        return Some(entry);
    };
    let reclaimed = &queue.reclaimed;
    let pause = reclaimed.pause.load(Ordering::Relaxed);
    if pause > 0 {
        reclaimed.pause.store(pause - 1, Ordering::Relaxed);
        return Some(entry);
    }
    if reclaimed.looking.load(Ordering::Relaxed) == 0 || !reclaimed.wanted.load(Ordering::Relaxed) {
        return Some(entry);
    }
    let Some(mut state) = worker_pool.queues.lock(queue_worker.queue) else {
        return Some(entry);
    };
    if state.queue_workers.len() <= BACKLOG_THRESHOLD || state.present() < 2 {
        return Some(entry);
    }
    // It may have to be taken over again.
    if !worker_pool.resources.budget().keep_place() {
        reclaimed.pause.store(PAUSE, Ordering::Relaxed);
        return Some(entry);
    }
    match reclaimed.put(entry) {
        None => {
            worker_pool.queues.remove(&mut state, queue_worker, true);
            None
        }
        back => {
            worker_pool.resources.budget().release();
            back
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> RingEntry {
        RingEntry::new(0, 8192).unwrap()
    }

    #[test]
    fn an_entry_is_taken_only_while_somebody_will_look() {
        let reclaimed = ReclaimQueue::default();
        assert!(reclaimed.put(entry()).is_some());
        reclaimed.will_look();
        assert!(reclaimed.put(entry()).is_none());
        assert_eq!(reclaimed.look().map_or(0, |found| found.len()), 1);
        assert!(reclaimed.put(entry()).is_none(), "it will look again");
        assert_eq!(reclaimed.look().map_or(0, |found| found.len()), 1);
        assert!(reclaimed.look().is_none());
        assert!(reclaimed.put(entry()).is_some(), "it waits");
    }

    #[test]
    fn of_two_the_last_to_wait_looks() {
        let reclaimed = ReclaimQueue::default();
        reclaimed.will_look();
        reclaimed.will_look();
        assert!(reclaimed.look().is_none());
        assert!(reclaimed.put(entry()).is_none());
        assert_eq!(reclaimed.look().map_or(0, |found| found.len()), 1);
        assert!(reclaimed.look().is_none());
        assert!(reclaimed.put(entry()).is_some());
    }
}
