//! The end of threads: of one, and of all with the mount.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::super::seat::Seat;
use super::super::{PEACE, PRESS};
use super::crew::RingCrew;
use super::post::Post;
use crate::session::SessionError;
use crate::types::Errno;

impl RingCrew {
    /// The connection has ended, or this thread says how.
    pub(super) fn end(&self, errno: Errno) {
        self.life.end(match errno {
            // Whether by unmounting or by an abort, the reader of `/dev/fuse` knows.
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV => return,
            _ => Err(SessionError::Ring(errno)),
        });
    }

    /// A thread of a queue ends.
    pub(super) fn retire(&self, post: &Arc<Post>) {
        if let Some(mut state) = self.queue(post.queue) {
            let before = state.posts.len();
            state.posts.retain(|known| !Arc::ptr_eq(known, post));
            self.note_threads(post.queue, &state);
            if state.posts.len() < before && post.relieved_request() == 0 {
                state.present = state.present.saturating_sub(1);
            }
        }
        self.server.connection.counter().leave(&post.counts);
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
            let impatient = start.elapsed() >= PEACE;
            MutexGuard::unlocked(&mut threads, || self.press_on(impatient));
            self.departed.wait_for(&mut threads, PRESS);
        }
        if threads.running > 0 {
            tracing::warn!(threads = threads.running, "requests outlive the mount");
        }
    }

    /// Wakes those that wait for requests of a connection that could not be aborted, and all if
    /// `impatient`.
    fn press_on(&self, impatient: bool) {
        for queue in &self.queues {
            for post in &queue.state.lock().posts {
                let waiting = !Seat::is_handling(post.word()) && post.relieved_request() == 0;
                if waiting || impatient {
                    post.signal();
                }
            }
        }
    }
}
