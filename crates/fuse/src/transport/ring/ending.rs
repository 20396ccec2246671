//! The end of threads: of one, and of all with the mount.

use std::sync::Arc;

use super::super::worker_state::WorkerState;
use super::queue_worker::QueueWorker;
use super::worker_pool::RingWorkerPool;
use crate::life::SessionError;
use crate::types::Errno;

/// The connection has ended, or this thread says how.
pub(super) fn end(worker_pool: &RingWorkerPool, errno: Errno) {
    worker_pool.life.end(match errno {
        // Whether by unmounting or by an abort, the reader of `/dev/fuse` knows.
        Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV => return,
        _ => Err(SessionError::Ring(errno)),
    });
}

/// A thread of a queue ends.
pub(super) fn retire(worker_pool: &RingWorkerPool, queue_worker: &Arc<QueueWorker>) {
    let RingWorkerPool {
        queues,
        resources,
        server,
        ..
    } = worker_pool;
    if let Some(mut state) = queues.lock(queue_worker.queue) {
        let is_present = queue_worker.handed_off_request() == 0;
        let removed = queues.remove(&mut state, queue_worker, is_present);
        if removed && state.queue_workers.is_empty() {
            resources.budget().lose_queue();
        }
    }
    server.connection.counter().leave(&queue_worker.counts);
    resources.depart();
}

/// Wakes those that wait for requests of a connection that could not be aborted, and all if
/// `impatient`.
pub(super) fn press_on(worker_pool: &RingWorkerPool, impatient: bool) {
    for state in worker_pool.queues.lock_each() {
        for queue_worker in &state.queue_workers {
            let waiting = !WorkerState::is_handling(queue_worker.word())
                && queue_worker.handed_off_request() == 0;
            if waiting || impatient {
                queue_worker.signal();
            }
        }
    }
}
