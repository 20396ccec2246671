//! For a server with a serving loop of its own: one that answers requests later than it takes
//! them, as when the data is on its way from a disk.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::Server;
use crate::connection::Connection;
use crate::dispatch::{Outcome, dispatch};
use crate::filesystem::Worker;
use crate::life::{End, Life, SessionError};
use crate::message::Message;
use crate::request::Dialect;
use crate::types::Errno;

/// A way for requests to come and for answers to go.
pub trait Transport {
    /// Starts serving, on threads of its own. From now on every request is to be answered.
    ///
    /// # Errors
    /// Nothing serves; the mount is given up.
    fn start(&mut self, link: Link) -> io::Result<()>;

    /// The mount has ended: waits at most `patience` for the last requests, then lets go.
    fn stop(&mut self, patience: Duration);
}

/// The mount as a transport sees it; clones share it.
#[derive(Clone)]
pub struct Link {
    server: Arc<Server>,
    life: Arc<Life>,
}

impl Link {
    pub(crate) fn new(server: Server, life: Arc<Life>) -> Self {
        let server = Arc::new(server);
        Self { server, life }
    }

    /// The kernel's device: a read takes a request, a write gives an answer.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.server.connection.device()
    }

    /// The same, to be kept open by whoever waits for it.
    pub fn device_to_keep(&self) -> &Arc<OwnedFd> {
        self.server.connection.device_to_keep()
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        &self.server.connection
    }

    /// How messages are to be read.
    pub fn dialect(&self) -> &Dialect {
        &self.server.dialect
    }

    /// Room that any request's or reply's payload needs, see `Negotiated::payload_bytes`.
    pub fn payload_bytes(&self) -> usize {
        self.server.payload_bytes
    }

    /// Has the filesystem carry `message` out, see [`dispatch`].
    pub fn dispatch<'a>(
        &self,
        message: &Message<'a>,
        out: &mut [u8],
        worker: &dyn Worker,
    ) -> Outcome<'a> {
        dispatch(
            &*self.server.filesystem,
            &self.server.dialect,
            message,
            out,
            worker,
        )
    }

    /// Whether the mount has ended. [`AsFd`] gives a descriptor that is readable from then on.
    pub fn has_ended(&self) -> bool {
        self.life.has_ended()
    }

    /// What reading the device said when it did not give a request: true if the mount has ended
    /// by that, false if it is to be read again.
    pub fn is_end(&self, errno: Errno) -> bool {
        let how = match errno {
            // A signal; nothing there (yet); or a request withdrawn while it was read.
            Errno::INTR | Errno::AGAIN | Errno::NOENT => return self.life.has_ended(),
            Errno::NODEV => Ok(End::Unmounted),
            Errno::CONNABORTED => Ok(End::Aborted),
            _ => Err(SessionError::Read(errno)),
        };
        self.life.end(how);
        true
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (*self.life).as_fd()
    }
}
