//! Why a pool cannot be set up, or a branch not join.

use rustix::io::Errno;

use crate::base::branch::{DEAD_SERVER, SHUT_DOWN, is_dead_server, is_refusal};

/// The pool could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A branch's root cannot be opened.
    #[error("branch {path}: {}", cannot_be_opened(*.errno))]
    Branch {
        /// The branch.
        path: std::path::PathBuf,
        /// Why.
        errno: Errno,
    },
    /// A branch's root is not the branch.
    #[error("branch {path}: it has no {marker}, so it is not mounted; mount it, or see on-missing")]
    Unmarked {
        /// The branch.
        path: std::path::PathBuf,
        /// What every branch has (`branch-marker`).
        marker: String,
    },
    /// A branch's path does not answer.
    #[error(
        "branch {path}: it does not answer; see whether the disk or machine it is on can be reached \
         (dmesg), or see on-missing"
    )]
    Silent {
        /// The branch.
        path: std::path::PathBuf,
    },
    /// Too many branches.
    #[error("more than 1000 branches")]
    TooManyBranches,
    /// Branch and mountpoint lie in each other.
    #[error(
        "branch {path}: the pool mounted at {mountpoint} would contain itself; name a directory elsewhere"
    )]
    Loop {
        /// The branch.
        path: std::path::PathBuf,
        /// Where the pool is.
        mountpoint: std::path::PathBuf,
    },
    /// One directory under two paths.
    #[error("branch {path}: it is the same directory as {other}; name it once")]
    SameDirectory {
        /// The branch.
        path: std::path::PathBuf,
        /// The branch it equals.
        other: std::path::PathBuf,
    },
}

impl PoolError {
    /// Whether it may pass without the user's doing: what a branch lies on is not there yet, does not
    /// answer, or its server is dead.
    pub fn may_pass(&self) -> bool {
        match self {
            PoolError::Unmarked { .. } | PoolError::Silent { .. } => true,
            PoolError::Branch { errno, .. } => is_dead_server(*errno) || *errno == Errno::NOENT,
            _ => false,
        }
    }
}

/// Why a branch cannot be opened, and what to do.
fn cannot_be_opened(errno: Errno) -> String {
    match errno {
        errno if is_dead_server(errno) => {
            format!("{}, or see on-missing", DEAD_SERVER)
        }
        errno if is_refusal(errno) => format!("{SHUT_DOWN}, or see on-missing"),
        errno => format!("{errno}; check that it exists, is a directory and is mounted"),
    }
}
