//! The queues of all CPUs, and which threads serve each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::super::worker_state::WorkerState;
use super::idle::Idle;
use super::queue_worker::QueueWorker;
use super::reclaimed::ReclaimQueue;
use crate::types::NodeId;

/// A queue for each CPU that may ever be there.
pub(super) struct Queues(Box<[Queue]>);

/// Who serves a queue. A lock of its own: what blocks on one CPU is no business of the others.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    /// Entries on their way to a thread with several.
    pub(super) reclaimed: ReclaimQueue,
    /// How many threads it has.
    threads: AtomicUsize,
}

/// The threads of a queue.
#[derive(Default)]
pub(super) struct QueueState {
    pub(super) queue_workers: Vec<Arc<QueueWorker>>,
    /// Those that wait for requests or carry one out and are not away with it.
    present: usize,
    /// Those that have no entry, because their last request waits; not present.
    pub(super) idle: Vec<Arc<Idle>>,
}

impl Queues {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Queue::default()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, queue: usize) -> Option<&Queue> {
        self.0.get(queue)
    }

    /// The threads of a queue.
    pub(super) fn lock(&self, queue: usize) -> Option<MutexGuard<'_, QueueState>> {
        Some(self.get(queue)?.state.lock())
    }

    /// The threads of each queue in turn: never two locks at a time.
    pub(super) fn lock_each(&self) -> impl Iterator<Item = MutexGuard<'_, QueueState>> {
        self.0.iter().map(|queue| queue.state.lock())
    }

    /// How many threads a queue has. Without its lock: about.
    pub(super) fn threads(&self, queue: usize) -> usize {
        let queue = self.get(queue);
        queue.map_or(0, |queue| queue.threads.load(Ordering::Relaxed))
    }

    /// A queue has one more thread.
    pub(super) fn add(&self, state: &mut QueueState, queue_worker: Arc<QueueWorker>) {
        let queue = queue_worker.queue;
        state.queue_workers.push(queue_worker);
        state.become_present();
        self.note_threads(queue, state);
    }

    /// A queue has lost this thread, which is still present or not; false if it was not there.
    pub(super) fn remove(
        &self,
        state: &mut QueueState,
        queue_worker: &Arc<QueueWorker>,
        is_present: bool,
    ) -> bool {
        let known = |own: &Arc<QueueWorker>| Arc::ptr_eq(own, queue_worker);
        let Some(place) = state.queue_workers.iter().position(known) else {
            return false;
        };
        state.queue_workers.remove(place);
        if is_present {
            state.leave();
        }
        self.note_threads(queue_worker.queue, state);
        true
    }

    fn note_threads(&self, queue: usize, state: &QueueState) {
        if let Some(queue) = self.get(queue) {
            let count = state.queue_workers.len();
            queue.threads.store(count, Ordering::Relaxed);
        }
    }

    /// Regular files the kernel may know, those of this queue's threads first.
    pub(super) fn files_nearest_to(&self, queue: usize) -> Vec<NodeId> {
        let mut files = Vec::new();
        let others = (0..self.len()).filter(|other| *other != queue);
        let nearest_first = std::iter::once(queue).chain(others);
        for state in nearest_first.filter_map(|queue| self.lock(queue)) {
            let workers = state.queue_workers.iter();
            let known = workers.map(|queue_worker| queue_worker.file.load(Ordering::Relaxed));
            files.extend(known.filter(|file| *file != 0).map(NodeId));
        }
        files
    }
}

impl QueueState {
    /// Those that wait for requests or carry one out and are not away with it.
    pub(super) fn present(&self) -> usize {
        self.present
    }

    /// One of its threads is there again, or for the first time.
    pub(super) fn become_present(&mut self) {
        self.present += 1;
        debug_assert!(
            self.present + self.idle.len() <= self.queue_workers.len(),
            "{} present, {} without an entry, of {}",
            self.present,
            self.idle.len(),
            self.queue_workers.len()
        );
    }

    /// One of its threads is away from now on.
    pub(super) fn leave(&mut self) {
        debug_assert!(self.present > 0, "nobody is there to go away");
        self.present = self.present.saturating_sub(1);
    }

    /// Whether all that are present carry a request out.
    pub(super) fn is_busy(&self) -> bool {
        let handling =
            |queue_worker: &&Arc<QueueWorker>| WorkerState::is_handling(queue_worker.word());
        self.queue_workers.iter().filter(handling).count() >= self.present
    }
}
