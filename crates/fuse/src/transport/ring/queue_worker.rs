//! A thread's place in the queue it serves.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use parking_lot::Mutex;

use super::super::worker_state::WorkerState;
use super::entry::RingEntry;
use crate::traffic::Counts;

/// A worker's state in a queue.
pub(super) struct QueueWorker {
    worker_state: WorkerState,
    /// The queue it serves for good.
    pub(super) queue: usize,
    /// The entry of the request it works on, unless data is moved within it: whoever takes it
    /// answers in the thread's place.
    pub(super) held: Mutex<Option<RingEntry>>,
    /// The regular file it had to do with last, 0 for none yet.
    pub(super) file: AtomicU64,
    /// Its next request has waited for its user's share: it counts as away from the beginning.
    pub(super) of_share: AtomicBool,
    /// The thread that waits for its request, see [`caller`](super::super::caller); 0 for none.
    pub(super) caller: AtomicU32,
    /// The watchdog's: the word it saw last, and how often in a row.
    pub(super) seen: AtomicU64,
    pub(super) same: AtomicU32,
}

impl QueueWorker {
    pub(super) fn new(queue: usize, number: usize, counts: Arc<Counts>) -> Self {
        Self {
            worker_state: WorkerState::new(number, counts),
            queue,
            held: Mutex::new(None),
            file: AtomicU64::new(0),
            of_share: AtomicBool::new(false),
            caller: AtomicU32::new(0),
            seen: AtomicU64::new(0),
            same: AtomicU32::new(0),
        }
    }
}

impl Deref for QueueWorker {
    type Target = WorkerState;

    fn deref(&self) -> &WorkerState {
        &self.worker_state
    }
}
