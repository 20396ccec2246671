//! Several candidates, the same work, in turn: the runner behind the benchmarks of data.
//!
//! Row by row, so that the samples that are compared lie seconds apart; in each repetition the
//! candidates come in an order drawn anew. A first, unrecorded repetition warms everything up, finds
//! out how much work fits into a sample, and compares what was written with what comes back.

mod clock;
mod run;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::data::Workload;
use crate::result::{self, Cache, Noise, Series};

pub use run::run;

/// One row.
#[derive(Clone, Debug)]
pub enum Row {
    /// Of data.
    Data(Workload),
    /// Create, open, look for what is missing, rename and remove.
    Names,
}

/// Where a candidate works.
#[derive(Clone, Debug)]
pub enum WorkPlace {
    /// In memory only: making the data and copying them.
    Memory,
    /// In a directory.
    Dir(Dir),
}

/// A directory to work in.
#[derive(Clone, Debug)]
pub struct Dir {
    /// The directory, on the subject.
    pub path: PathBuf,
    /// The same past the subject, on its branch.
    pub below: Option<PathBuf>,
    /// Images (of loop devices) that hold it.
    pub images: Vec<PathBuf>,
    /// The process that serves it.
    pub server: Option<u32>,
    /// Whether it keeps what is written; nullrw does not.
    pub keeps_data: bool,
}

/// One of those that are compared.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What a result says of it.
    pub facts: result::Subject,
    /// Where it works.
    pub place: WorkPlace,
    /// Candidates of one group do the same amount of work; a slow one must not make a fast one of
    /// another group measure too little.
    pub group: usize,
}

/// What is still to be found out, after so many repetitions of these series; `None`: nobody looks now.
pub type Question = Box<dyn Fn(&[Series], usize) -> Option<Open>>;

/// A question's state at a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Workload and subject of the measurements that it still needs; none when it is answered.
    pub cells: Vec<(String, String)>,
    /// How many more repetitions may be enough.
    pub more: usize,
}

/// When a run has measured enough.
pub enum Until {
    /// When figures are stable; the rows that are not are measured again.
    Stable,
    /// When a question is answered; what it no longer needs is not measured again.
    Answered(Question),
}

/// Everything a run needs.
pub struct Trial {
    /// Those that are compared.
    pub candidates: Vec<Candidate>,
    /// What they do.
    pub rows: Vec<Row>,
    /// Bytes of the file each reads; less where writing them would take longer than `prepare_limit`.
    pub file_bytes: u64,
    /// What writing a candidate's file may take, about.
    pub prepare_limit: Duration,
    /// Repetitions of every row.
    pub repetitions: usize,
    /// Repetitions, at most.
    pub most_repetitions: usize,
    /// What ends it in between.
    pub until: Until,
    /// When it has to end: no measurement begins that would take longer, as far as is known.
    pub deadline: Option<Instant>,
    /// What a sample may take, about.
    pub sample_limit: Duration,
    /// Draws the order and the places of random access.
    pub seed: u64,
}

/// What a run found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One for each row and candidate that could do it.
    pub series: Vec<Series>,
    /// What others did, by repetition.
    pub noise: Vec<Noise>,
    /// What went wrong, a sentence each.
    pub failures: Vec<String>,
    /// Whether that took a figure from something that was asked for.
    pub has_failed: bool,
    /// Complete repetitions.
    pub repetitions: usize,
    /// Whether the user ended it.
    pub interrupted: bool,
    /// Whether time ended it, before the question was answered or the figures were stable.
    pub out_of_time: bool,
}

impl Row {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Data(workload) => &workload.name,
            Self::Names => "metadata",
        }
    }

    /// The intended state of the caches.
    pub fn cache(&self) -> Cache {
        match self {
            Self::Data(workload) => workload.cache,
            Self::Names => Cache::Any,
        }
    }

    /// Whether its time is that of a MiB rather than of an operation.
    pub fn is_by_mib(&self) -> bool {
        matches!(self, Self::Data(workload) if workload.is_by_mib())
    }
}
