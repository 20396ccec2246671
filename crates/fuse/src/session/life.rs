//! Whether the mount lives, why it ended, and who waits for that.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use super::{End, SessionError};
use crate::types::Errno;

/// Shared by the session, its transport and its unmounters.
pub(crate) struct Life {
    state: Mutex<State>,
    changed: Condvar,
    ended: AtomicBool,
    /// Readable from the end on, for those who wait for other descriptors, too.
    event: OwnedFd,
}

#[derive(Default)]
struct State {
    /// Why the end was asked for; the first to ask names it.
    asked: Option<End>,
    /// How the end was seen.
    seen: Option<Result<End, SessionError>>,
}

impl Life {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Somebody is about to end the mount: that will be the reason.
    pub(super) fn ask(&self, why: End) {
        self.state.lock().asked.get_or_insert(why);
    }

    /// The mount has ended; the first to say so is believed.
    pub(crate) fn end(&self, how: Result<End, SessionError>) {
        let mut state = self.state.lock();
        if state.seen.is_some() {
            return;
        }
        state.seen = Some(how);
        self.ended.store(true, Ordering::Release);
        self.changed.notify_all();
        // Fails only if the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Whether the mount has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for the end; false if it does not come in time.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        let mut state = self.state.lock();
        while state.seen.is_none() {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return state.seen.is_some();
            }
        }
        true
    }

    /// The end, for the caller of `serve`.
    pub(super) fn verdict(&self) -> Result<End, SessionError> {
        let mut state = self.state.lock();
        let asked = state.asked;
        match state.seen.take() {
            Some(Err(error)) => Err(error),
            Some(Ok(end)) => Ok(asked.unwrap_or(end)),
            None => Ok(asked.unwrap_or(End::Unmounted)),
        }
    }
}

impl AsFd for Life {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
