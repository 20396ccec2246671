//! A thread of a queue that has no entry, because its last request waits for an answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::queue_worker::QueueWorker;
use super::work::Begin;
use super::worker_pool::RingWorkerPool;

/// How long such a thread is kept.
const KEPT: Duration = Duration::from_secs(10);
/// Looks whether the mount has ended.
const STEP: Duration = Duration::from_millis(100);

/// Where it is given its next one.
#[derive(Default)]
pub(super) struct Idle {
    begin: Mutex<Option<Begin>>,
    given: Condvar,
}

impl Idle {
    /// Wakes the thread with this to begin with. It is on no list any more.
    pub(super) fn give(&self, begin: Begin) {
        *self.begin.lock() = Some(begin);
        self.given.notify_one();
    }
}

/// What a thread without an entry goes on with; none if it is to end.
pub(super) fn next_entry(
    worker_pool: &RingWorkerPool,
    queue_worker: &QueueWorker,
) -> Option<Begin> {
    let mut state = worker_pool.queues.lock(queue_worker.queue)?;
    if let Some(entry) = worker_pool.late.take_stranded(queue_worker.queue) {
        return Some(Begin::Answer(entry));
    }
    // A thread takes no entry of its own while the keeper serves the queue; that has changed.
    if !worker_pool.late.serves(queue_worker.queue) && state.present() <= 1 {
        return worker_pool
            .resources
            .further_entry(queue_worker.queue)
            .ok()
            .map(Begin::Offer);
    }
    let own = Arc::new(Idle::default());
    state.leave();
    state.idle.push(Arc::clone(&own));
    drop(state);
    let until = Instant::now() + KEPT;
    let mut begin = own.begin.lock();
    while begin.is_none() && Instant::now() < until && !worker_pool.life.has_ended() {
        own.given.wait_for(&mut begin, STEP);
    }
    if begin.is_some() {
        return begin.take();
    }
    drop(begin);
    let mut state = worker_pool.queues.lock(queue_worker.queue)?;
    let before = state.idle.len();
    state.idle.retain(|idle| !Arc::ptr_eq(idle, &own));
    if state.idle.len() < before {
        // As it ends it is counted out.
        state.become_present();
        return None;
    }
    drop(state);
    // Taken off the list a moment ago: it is about to be given something.
    let mut begin = own.begin.lock();
    while begin.is_none() {
        own.given.wait_for(&mut begin, STEP);
    }
    begin.take()
}
