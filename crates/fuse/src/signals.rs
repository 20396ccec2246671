//! Signals that end the server.

use std::io;
use std::os::fd::OwnedFd;

/// SIGINT, SIGTERM and SIGHUP, taken away from the threads and read by the session.
#[derive(Debug)]
pub struct Signals {
    #[allow(dead_code)] // until the session reads it
    pub(crate) descriptor: OwnedFd,
}

impl Signals {
    /// Blocks the signals in this thread and in all it starts from now on, and ignores SIGPIPE.
    /// Call it first thing in `main`: a thread started before would still be killed by them.
    pub fn block() -> io::Result<Signals> {
        Err(rustix::io::Errno::NOSYS.into())
    }
}
