//! Whether the mount lives, why it ended, and who waits for that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use crate::types::Errno;

/// Why a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// It was unmounted, by whomever.
    Unmounted,
    /// By this signal.
    Signal(i32),
    /// The connection was aborted (`/sys/fs/fuse/connections/N/abort`, `umount -f`).
    Aborted,
}

/// Why serving failed. The mount is gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The device gave an error no kernel gives to a healthy server.
    #[error("reading requests failed: {0}")]
    Read(Errno),
    /// Not even the first threads or their memory could be had.
    #[error("no thread to serve requests: {0}")]
    Threads(#[source] io::Error),
    /// The ring failed while the mount was served, or was asked for and did not come about.
    #[error("requests do not come over io_uring: {0}")]
    Ring(Errno),
    /// Waiting for signals or the end failed.
    #[error("waiting for the end failed: {0}")]
    Wait(#[source] io::Error),
}

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
    pub(crate) fn ask(&self, why: End) {
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
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
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
    pub(crate) fn verdict(&self) -> Result<End, SessionError> {
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
