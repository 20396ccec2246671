//! Shares of threads: a user whose requests have as many threads away as they may gets no further
//! one. The next request waits with the other late ones ([`late`](super::late)), without a thread,
//! until one of that user's is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::super::shares::{Blocked, SHARE, ends_waits, is_never_kept, user, user_of};
use super::super::worker_state::WorkerState;
use super::entry::RingEntry;
use super::queue_worker::QueueWorker;
use super::worker_pool::RingWorkerPool;
use crate::abi::InHeader;

/// Whose requests have threads away.
pub(super) struct Shares {
    blocked: Mutex<Blocked>,
    /// So many are that it matters who asks.
    crowded: AtomicBool,
    /// How many may be, and one.
    places: usize,
}

/// Whether a request may be begun.
pub(super) enum Begun {
    /// It may.
    Yes(RingEntry),
    /// It waits for a thread of its user's.
    Waits,
    /// Too many of its user's wait.
    Refused(RingEntry),
}

impl Shares {
    /// Each queue needs a thread that is there, the keeper is one.
    pub(super) fn new(max_threads: usize, queues: usize) -> Self {
        Self {
            blocked: Mutex::default(),
            crowded: AtomicBool::new(false),
            places: max_threads.saturating_sub(queues).max(1),
        }
    }

    /// A thread is away from now on. Under its queue's lock.
    pub(super) fn note_blocked(&self, queue_worker: &QueueWorker) {
        let (uid, pid) = queue_worker.asker();
        let uid = user(uid, pid);
        queue_worker.note_asker(uid, 0);
        let mut blocked = self.blocked.lock();
        blocked.add(uid);
        self.note_crowd(&blocked);
    }

    fn note_crowd(&self, blocked: &Blocked) {
        let crowded = blocked.is_crowded(self.places);
        self.crowded.store(crowded, Ordering::Relaxed);
    }

    /// Whether it matters who asks, in a queue of so many threads. All may be with one user's
    /// requests and not be known to be away yet.
    fn matters(&self, threads: usize) -> bool {
        let many = threads > 1 && (threads + 1) * SHARE > self.places;
        many || self.crowded.load(Ordering::Relaxed)
    }
}

/// A thread is back: who waits for that may go on.
pub(super) fn note_unblocked(worker_pool: &RingWorkerPool, queue_worker: &QueueWorker) {
    let (uid, _) = queue_worker.asker();
    let mut blocked = worker_pool.shares.blocked.lock();
    blocked.remove(uid);
    worker_pool.shares.note_crowd(&blocked);
    // With the lock: nobody begins to wait for this end any more. Others' requests may have
    // waited for it too, where the threads were nearly all away.
    let places = worker_pool.shares.places;
    (worker_pool.late).let_go(|uid| blocked.may_begin(uid, places, false));
}

/// Whether it has to be asked who may begin. Two loads.
pub(super) fn matter(worker_pool: &RingWorkerPool, queue_worker: &QueueWorker) -> bool {
    let threads = worker_pool.queues.threads(queue_worker.queue);
    worker_pool.shares.matters(threads)
}

/// Whether this request may not be begun, as things are.
pub(super) fn is_beyond_share(
    worker_pool: &Arc<RingWorkerPool>,
    queue_worker: &QueueWorker,
    header: &InHeader,
) -> bool {
    let is_own = worker_pool.kicks.is_own(queue_worker.queue, header.pid);
    if is_own || is_never_kept(header.opcode) {
        return false;
    }
    let uid = user_of(header);
    if uid == 0 {
        return false;
    }
    count_others_away(worker_pool, queue_worker, header.uid);
    let blocked = worker_pool.shares.blocked.lock();
    !blocked.may_begin(uid, worker_pool.shares.places, ends_waits(header.opcode))
}

/// Threads of this queue that are with requests of the same user count as away, before more do
/// the same.
fn count_others_away(worker_pool: &Arc<RingWorkerPool>, queue_worker: &QueueWorker, uid: u32) {
    let Some(mut state) = worker_pool.queues.lock(queue_worker.queue) else {
        return;
    };
    // Mostly none.
    let same: Vec<_> = state
        .queue_workers
        .iter()
        .filter(|other| !std::ptr::eq(&raw const ***other, queue_worker))
        .map(|other| (other, other.word()))
        .filter(|(other, word)| WorkerState::is_handling(*word) && other.asker().0 == uid)
        .map(|(other, word)| (Arc::clone(other), word))
        .collect();
    for (other, word) in same {
        worker_pool.hand_off_in(&mut state, &other, word);
    }
}

/// Has a request wait for a thread of its user's, unless it may be begun by now.
pub(super) fn wait_for_share(
    worker_pool: &RingWorkerPool,
    header: &InHeader,
    entry: RingEntry,
) -> Begun {
    let uid = user_of(header);
    let blocked = worker_pool.shares.blocked.lock();
    if blocked.may_begin(uid, worker_pool.shares.places, ends_waits(header.opcode)) {
        return Begun::Yes(entry);
    }
    match worker_pool.late.park_for_share(header.unique, uid, entry) {
        Ok(()) => Begun::Waits,
        Err(entry) => Begun::Refused(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_matters_who_asks_where_threads_are_few() {
        let few = Shares::new(6, 2);
        assert!(!few.matters(1), "the one thread of a queue");
        assert!(few.matters(2));
        let many = Shares::new(500, 2);
        assert!(!many.matters(100));
        assert!(many.matters(170));
    }

    #[test]
    fn what_blocks_leaves_a_thread_for_each_queue() {
        // As with threads=8 on two CPUs.
        let shares = Shares::new(6, 2);
        let mut blocked = shares.blocked.lock();
        let mut begun = 0;
        while blocked.may_begin(6101, shares.places, false) {
            blocked.add(6101);
            begun += 1;
        }
        assert_eq!(begun, 1);
        assert!(blocked.may_begin(6102, shares.places, false));
    }
}
