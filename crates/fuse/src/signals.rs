//! Signals that end the server.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys;
use crate::types::Errno;

/// SIGINT, SIGTERM and SIGHUP, taken away from the threads and read by the session.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

impl Signals {
    /// Blocks the signals in this thread and in all it starts from now on, and ignores SIGPIPE
    /// and SIGXFSZ.
    /// Call it first thing in `main`: a thread started before would still be killed by them.
    /// Processes started later inherit the mask unless they reset it.
    pub fn block() -> io::Result<Signals> {
        sys::survive_writes()?;
        let descriptor = sys::signal_descriptor()?;
        Ok(Signals { descriptor })
    }

    /// Whether a signal is the one that daemons take as "read your configuration again".
    pub(crate) fn is_hangup(signal: i32) -> bool {
        signal == rustix::process::Signal::HUP.as_raw()
    }

    /// Takes the next signal, waiting for it.
    pub(crate) fn take(&self) -> Result<i32, Errno> {
        sys::read_signal(self.descriptor.as_fd())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
