//! Looks where callers are, on a thread of its own.
//!
//! `/proc/TID/stat` waits while the thread is about to become another program (`exec_update_lock`
//! in fs/exec.c), and a thread may ask the server meanwhile: `execve(2)` closes files, which FUSE
//! tells the server and waits for. The server must not wait for its caller. Nor does this thread keep
//! the connection open, should the server be killed while it waits: it has no descriptors.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use super::caller;
use crate::affinity::run_anywhere;
use crate::sys;

/// How long the thread waits for a question before it looks whether anybody could ask one.
const IDLE: Duration = Duration::from_secs(10);

/// A question and an answer at a time: a later one takes the place of an earlier one.
#[derive(Default)]
pub(super) struct Whereabouts {
    /// The thread that is looked for; 0: none.
    asked: AtomicU32,
    /// The CPU of the one that was found last, and 1 more; 0: none, or it was told.
    found: AtomicU32,
    started: AtomicBool,
    looker: OnceLock<Thread>,
}

impl Whereabouts {
    /// Asks on which CPU a thread is. For the reader, which reads on. False if the last question was not
    /// taken up: the looker waits for somebody, perhaps for ever, and nothing is known of callers.
    pub(super) fn ask(self: &Arc<Self>, thread: u32) -> bool {
        let is_taken_up = self.asked.swap(thread, Ordering::AcqRel) == 0;
        match self.looker.get() {
            Some(looker) => looker.unpark(),
            None if !self.started.swap(true, Ordering::AcqRel) => self.start(),
            None => {}
        }
        is_taken_up
    }

    /// The CPU of a thread that was asked for, once.
    pub(super) fn found(&self) -> Option<usize> {
        // Most often nothing is new: no cache line is taken from the other CPU then.
        if self.found.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let found = self.found.swap(0, Ordering::AcqRel);
        found.checked_sub(1).map(|cpu| cpu as usize)
    }

    fn start(self: &Arc<Self>) {
        let own = Arc::downgrade(self);
        let spawned = thread::Builder::new()
            .name("strandfs-follow".to_owned())
            .spawn(move || look(&own));
        match spawned {
            // Set once: nobody else starts it.
            Ok(looker) => drop(self.looker.set(looker.thread().clone())),
            Err(error) => tracing::debug!(%error, "callers are not followed"),
        }
    }
}

fn look(whereabouts: &Weak<Whereabouts>) {
    run_anywhere();
    // Before Linux 5.9 a table is not left: callers are not followed.
    if sys::leave_descriptors().is_err() {
        return;
    }
    while let Some(whereabouts) = whereabouts.upgrade() {
        let thread = whereabouts.asked.swap(0, Ordering::AcqRel);
        if let Some(cpu) = caller::cpu(thread).and_then(|cpu| u32::try_from(cpu).ok()) {
            whereabouts.found.store(cpu + 1, Ordering::Release);
        }
        let is_asked = whereabouts.asked.load(Ordering::Acquire) != 0;
        drop(whereabouts);
        if !is_asked {
            thread::park_timeout(IDLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_thread_is_found_where_it_runs() {
        let whereabouts = Arc::new(Whereabouts::default());
        assert_eq!(whereabouts.found(), None);
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(whereabouts.ask(own.cast_unsigned()));
        let start = Instant::now();
        let found = loop {
            if let Some(found) = whereabouts.found() {
                break found;
            }
            assert!(start.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(1));
        };
        assert!(
            rustix::thread::sched_getaffinity(None)
                .unwrap()
                .is_set(found)
        );
        assert_eq!(whereabouts.found(), None, "it is told once");
    }

    /// As when it looks at a program of somebody's that never begins.
    #[test]
    fn a_looker_that_does_not_come_back_is_noticed() {
        let whereabouts = Arc::new(Whereabouts {
            started: AtomicBool::new(true),
            ..Whereabouts::default()
        });
        assert!(whereabouts.ask(7), "it may be on its way");
        assert!(!whereabouts.ask(7));
        assert!(!whereabouts.ask(7));
    }
}
