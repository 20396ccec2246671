//! Why a volume cannot be had, and what to do about it.

use std::path::PathBuf;

use strandfs_fuse::{Errno, MountError, SessionError};

/// Each is one sentence that says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The backing file cannot be used as it is.
    #[error("{}: {why}", path.display())]
    Backing {
        /// The backing file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Somebody serves or uses the backing file.
    #[error("{}: {why}", path.display())]
    InUse {
        /// The backing file.
        path: PathBuf,
        /// Who, and what to do.
        why: String,
    },
    /// A size no volume can have.
    #[error("a volume of {0} bytes cannot be: give --size a multiple of 4096 bytes, at least 4096")]
    Size(u64),
    /// The way asked for cannot be had here.
    #[error("{asked} cannot be had: {why}")]
    Way {
        /// The option with its value.
        asked: String,
        /// Why not, and what to do.
        why: String,
    },
    /// A loop device cannot be had or is not as it has to be.
    #[error("{what}: {why}")]
    Loop {
        /// What was being done.
        what: String,
        /// Why not, and what to do.
        why: String,
    },
    /// The system refused something about the backing file.
    #[error("{}: {what}: {errno}", path.display())]
    File {
        /// The backing file.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// The answer.
        errno: Errno,
    },
    /// Mounting failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Serving failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl VolumeError {
    /// Whether the user can set it right by asking for something else.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            VolumeError::Backing { .. }
                | VolumeError::Size(_)
                | VolumeError::Way { .. }
                | VolumeError::Mount(_)
        )
    }
}
