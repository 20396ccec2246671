//! What the command says when it cannot do what was asked.

use std::io;
use std::path::PathBuf;

use strandfs_fuse::{MountError, SessionError};
use strandfs_options::OptionError;
use strandfs_pool::PoolError;

/// Exit code for what the user can set right.
pub const USAGE: u8 = 2;
/// Exit code for what went wrong by itself.
pub const FAILED: u8 = 1;

/// Each is one sentence that says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An option or branch is at fault.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A branch cannot be opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Mounting failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Serving failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// No branches were given.
    #[error("no branches given: name at least one directory before the mountpoint")]
    NoBranches,
    /// No mountpoint was given.
    #[error("no mountpoint given: name it after the branches, or with -o mountpoint=DIR")]
    NoMountpoint,
    /// The mountpoint cannot be used.
    #[error("mountpoint {path}: {why}")]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// A branch cannot be used.
    #[error("branch {path}: {why}")]
    Branch {
        /// The branch.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// Nothing of ours is mounted there.
    #[error("{0} is not a strandfs mount; `strandfs status` lists them")]
    NotMounted(PathBuf),
    /// The path lies in no pool.
    #[error("{0} is not in a strandfs pool; `strandfs status` lists the pools")]
    NotInPool(PathBuf),
    /// The pool would not answer.
    #[error("{path}: {why}")]
    Unanswered {
        /// What it was asked about.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// Unmounting failed.
    #[error("cannot unmount {path}: {why}")]
    Unmount {
        /// The mountpoint.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// The server in the background ended before it served; it has said why.
    #[error("the server ended before it was ready{0}")]
    Background(String),
    /// Something of the system's failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Failure {
    /// 2 for what the user can set right, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Option(_)
            | Failure::Pool(_)
            | Failure::Mount(_)
            | Failure::NoBranches
            | Failure::NoMountpoint
            | Failure::Mountpoint { .. }
            | Failure::Branch { .. } => USAGE,
            Failure::Session(_)
            | Failure::NotMounted(_)
            | Failure::NotInPool(_)
            | Failure::Unanswered { .. }
            | Failure::Unmount { .. }
            | Failure::Background(_)
            | Failure::System { .. } => FAILED,
        }
    }

    /// For `map_err`.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::System { what, source }
    }
}
