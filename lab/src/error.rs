//! What keeps a measurement from being one.

use std::io;
use std::path::{Path, PathBuf};

/// Why a benchmark stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A system call failed. A workload that fails is no sample.
    #[error("{what} {path}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// What it was applied to.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A subject could not be mounted.
    #[error("{subject} could not be mounted: {why}")]
    Mount {
        /// Its name.
        subject: String,
        /// What it said.
        why: String,
    },
    /// A workload's result is not what it has to be: the subject works wrongly.
    #[error("{subject}: {workload} went wrong: {why}")]
    Wrong {
        /// The subject's name.
        subject: String,
        /// The workload's name.
        workload: String,
        /// What was found.
        why: String,
    },
    /// A program of the system is missing or failed.
    #[error("{program}: {why}")]
    Tool {
        /// Its name.
        program: String,
        /// What it said.
        why: String,
    },
    /// Someone asked for the end. What was measured before is kept.
    #[error("interrupted")]
    Interrupted,
    /// The request makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl BenchError {
    /// For `map_err` on a call about `path`.
    pub fn io<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> BenchError {
        let path = path.to_path_buf();
        move |source| BenchError::Io {
            what,
            path,
            source: source.into(),
        }
    }
}
