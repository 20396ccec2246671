//! The end of threads: of one, and of all with the mount.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::super::worker_state::WorkerState;
use super::super::{END_IN_PEACE, INTERRUPT_EVERY};
use super::queue_worker::QueueWorker;
use super::worker_pool::RingWorkerPool;
use crate::session::SessionError;
use crate::types::Errno;

impl RingWorkerPool {
    /// The connection has ended, or this thread says how.
    pub(super) fn end(&self, errno: Errno) {
        self.life.end(match errno {
            // Whether by unmounting or by an abort, the reader of `/dev/fuse` knows.
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV => return,
            _ => Err(SessionError::Ring(errno)),
        });
    }

    /// A thread of a queue ends.
    pub(super) fn retire(&self, queue_worker: &Arc<QueueWorker>) {
        if let Some(mut state) = self.queue(queue_worker.queue) {
            let before = state.queue_workers.len();
            state
                .queue_workers
                .retain(|known| !Arc::ptr_eq(known, queue_worker));
            self.note_threads(queue_worker.queue, &state);
            if state.queue_workers.len() < before && queue_worker.handed_off_request() == 0 {
                state.present = state.present.saturating_sub(1);
            }
        }
        self.server.connection.counter().leave(&queue_worker.counts);
        self.depart();
    }

    pub(super) fn depart(&self) {
        let mut threads = self.threads.lock();
        threads.running = threads.running.saturating_sub(1);
        self.departed.notify_all();
    }

    /// After the end of the mount: waits at most `patience` for the threads, and interrupts the
    /// system calls of those that take long. The kernel has sent the idle ones home itself.
    pub(crate) fn disband(&self, patience: Duration) {
        let start = Instant::now();
        self.watchdog.wake();
        let mut threads = self.threads.lock();
        threads.closed = true;
        while threads.running > 0 && start.elapsed() < patience {
            let impatient = start.elapsed() >= END_IN_PEACE;
            MutexGuard::unlocked(&mut threads, || self.press_on(impatient));
            self.departed.wait_for(&mut threads, INTERRUPT_EVERY);
        }
        if threads.running > 0 {
            tracing::warn!(threads = threads.running, "requests outlive the mount");
        }
    }

    /// Wakes those that wait for requests of a connection that could not be aborted, and all if
    /// `impatient`.
    fn press_on(&self, impatient: bool) {
        for queue in &self.queues {
            for queue_worker in &queue.state.lock().queue_workers {
                let waiting = !WorkerState::is_handling(queue_worker.word())
                    && queue_worker.handed_off_request() == 0;
                if waiting || impatient {
                    queue_worker.signal();
                }
            }
        }
    }
}
