//! The life of a mount: mount, INIT, serve, end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::mount::{MountError, MountOptions};
use crate::negotiate::{Negotiated, Wants};
use crate::signals::Signals;
use crate::types::Errno;

/// How a session is to run.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// What INIT asks for.
    pub wants: Wants,
    /// Most threads that carry out requests. Each owns two buffers of
    /// `Negotiated::payload_bytes` (memory is used as far as requests ever filled them), and one
    /// is blocked for as long as its request is. With all of them blocked nothing is served.
    pub max_threads: usize,
    /// The device; `/dev/fuse` if `None`.
    pub device: Option<PathBuf>,
}

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
    /// Not even the first thread or its memory could be had.
    #[error("no thread to serve requests: {0}")]
    Threads(#[source] io::Error),
    /// Waiting for signals or the end failed.
    #[error("waiting for the end failed: {0}")]
    Wait(#[source] io::Error),
}

/// A mount that has agreed on INIT. Dropping it unmounts.
pub struct Session {
    mountpoint: PathBuf,
    negotiated: Negotiated,
    connection: Connection,
}

impl Session {
    /// Mounts `fs` on the directory `mountpoint` and agrees on INIT. Requests wait in the kernel
    /// until [`serve`](Self::serve).
    pub fn mount<F: Filesystem>(
        fs: Arc<F>,
        mountpoint: &Path,
        options: &MountOptions,
        config: SessionConfig,
    ) -> Result<Session, MountError> {
        let _ = (fs, mountpoint, options, config);
        Err(MountError::NoKernelSupport)
    }

    /// Calls `ready` once, on a thread of its own, as soon as the mount answers.
    pub fn on_ready(&mut self, ready: impl FnOnce() + Send + 'static) {
        let _ = ready;
    }

    /// What INIT agreed.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// The connection, as the filesystem got it in `init`.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The mountpoint, absolute and without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Ends the mount from elsewhere.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {}
    }

    /// Serves requests; returns when the mount has ended, at most a second after it.
    /// Filesystem::destroy has been called then.
    pub fn serve(self) -> Result<End, SessionError> {
        Err(SessionError::Read(Errno::NOSYS))
    }

    /// Like [`serve`](Self::serve); the first signal unmounts (see [`Unmounter::unmount`]), a
    /// second one does so by force at once.
    pub fn serve_with_signals(self, signals: Signals) -> Result<End, SessionError> {
        drop(signals);
        self.serve()
    }
}

/// Ends a mount from elsewhere; clones share it.
#[derive(Clone)]
pub struct Unmounter {}

impl Unmounter {
    /// How long a mount in use is given before it is taken out of sight.
    pub const BUSY_GRACE: Duration = Duration::from_millis(200);

    /// Unmounts cleanly; if the mount is in use for longer than
    /// [`BUSY_GRACE`](Self::BUSY_GRACE), takes it out of sight, and if it is in use even so,
    /// aborts it: its users then get ENOTCONN. Returns when the mount has ended.
    pub fn unmount(&self) -> io::Result<()> {
        self.force()
    }

    /// Takes the mount out of sight and aborts it at once.
    pub fn force(&self) -> io::Result<()> {
        Err(Errno::NOSYS.into())
    }
}

impl Default for SessionConfig {
    /// Up to 512 threads, and what [`Wants`] has with 256 background requests.
    fn default() -> Self {
        let wants = Wants {
            max_background: 256,
            congestion_threshold: 192,
            ..Wants::default()
        };
        Self {
            wants,
            max_threads: 512,
            device: None,
        }
    }
}
