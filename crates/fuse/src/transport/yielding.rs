//! Whether a thread gives its CPU to whoever wants it.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::process::Pid;

use crate::sys;

/// What one thread does, and what came of it.
#[derive(Default)]
pub(super) struct Yielding {
    yields: AtomicBool,
    /// Held while that changes, here and in the kernel: the thread and the watchdog both do it.
    changing: Mutex<()>,
    /// Whether that kept the thread from running, since it was asked last.
    starved: AtomicBool,
}

impl Yielding {
    /// Whether the thread does.
    pub(super) fn is_on(&self) -> bool {
        self.yields.load(Ordering::Acquire)
    }

    /// Has it do so, or not; all stays if the kernel refuses.
    pub(super) fn set(&self, thread: Option<Pid>, yields: bool) {
        let _changing = self.changing.lock();
        match sys::set_yielding(thread, yields) {
            Ok(()) => self.yields.store(yields, Ordering::Release),
            Err(errno) => tracing::debug!(%errno, yields, "the priority of a thread stays"),
        }
    }

    /// Notes whether that kept the thread from running.
    pub(super) fn note_starved(&self, is_starved: bool) {
        self.starved.store(is_starved, Ordering::Release);
    }

    /// Whether it did; told once.
    pub(super) fn was_starved(&self) -> bool {
        self.starved.load(Ordering::Acquire) && self.starved.swap(false, Ordering::AcqRel)
    }
}
