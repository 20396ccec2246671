//! Why a request fails: a value from the branch that refused to the answer.

use std::fmt;

use rustix::io::Errno;

use crate::base::branch::{Branch, BranchId};

/// Result of what is done for a request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request fails, and because of which branch.
///
/// Made from the errno of a system call by `?`, or by `Error::at` where a branch is to be named.
/// Only `ops::answer` turns it into an errno, a line of the log and a note of the
/// branch's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// What the caller is told.
    pub errno: Errno,
    /// The branch that failed; none if no branch is to blame, or it is the one of the open file.
    pub branch: Option<BranchId>,
    /// An answer that is meant, of which the log hears nothing, whatever its errno.
    pub expected: bool,
    /// The request lacked a missing branch under the view of this generation: with
    /// `on-missing=wait` it is tried again under a later one.
    pub retry: Option<u64>,
    /// What was asked for has been done, at least in part, and only its answer cannot be given: the
    /// request is not carried out again, which would find its own work in the way.
    pub took_effect: bool,
}

impl Error {
    /// The failure of a branch, which its health is told of.
    pub(crate) fn at(branch: &Branch, error: impl Into<Error>) -> Error {
        let error = error.into();
        branch.health().note(error.errno);
        error.of(branch.id)
    }

    /// An answer to the kernel that is no failure.
    pub(crate) const fn expected(errno: Errno) -> Error {
        Error {
            errno,
            branch: None,
            expected: true,
            retry: None,
            took_effect: false,
        }
    }

    /// The same because of a branch, whose health knows of it or is not the point.
    pub(crate) const fn of(self, branch: BranchId) -> Error {
        Error {
            branch: Some(branch),
            ..self
        }
    }

    /// The same after the change that was asked for. Programs are told EIO, and the log the errno: by another
    /// they, or the kernel (ESTALE), would take it for not done, or for somebody else's work.
    pub(crate) const fn after_effect(self) -> Error {
        Error {
            took_effect: true,
            expected: false,
            retry: None,
            ..self
        }
    }

    /// The same, to be tried again when the branches are others than in this generation.
    pub(crate) const fn until_after(self, generation: u64) -> Error {
        Error {
            retry: Some(generation),
            ..self
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error {
            errno,
            branch: None,
            expected: false,
            retry: None,
            took_effect: false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.errno.fmt(f)
    }
}

impl std::error::Error for Error {}
