//! What a pool has counted so far, typed: what `strandfs metrics` shows and whoever watches a pool
//! reads. The pool fills it from memory; no branch is asked for anything.
//!
//! Fields are only ever added. A reader ignores fields that a newer server has, and takes the default
//! for those that an older one lacks. Maps are by names that `docs/metrics.md` lists.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strandfs_fuse::latency::{BUCKETS, Histogram, bound_ns};

use crate::base::status::{Coherence, Held, HeldWrites, RelocateAhead};

/// More requests that take long are not told of one by one.
pub const UNDER_WAY_MAX: usize = 100;

/// Everything that is counted. Counts begin with the server, and only rise; what is true at the moment
/// says so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Where the pool is mounted.
    pub mountpoint: Option<String>,
    /// The server's process id.
    pub pid: u32,
    /// The server's version.
    pub version: String,
    /// For how long there has been this server.
    pub uptime_ms: u64,
    /// The longest duration in each bucket of a [`Latency`]; the one after these has no bound.
    pub bucket_bounds_ns: Vec<u64>,
    /// Requests of the kernel, by operation.
    pub operations: BTreeMap<String, Operation>,
    /// Requests of no known operation.
    pub unknown_requests: u64,
    /// Requests answered with an error, by its name (`ENOENT`), or number where it has none.
    pub errors: BTreeMap<String, u64>,
    /// For how long requests have been with the server that have no answer yet, those of a second and more:
    /// the longest first, and at most [`UNDER_WAY_MAX`]. Waits for locks are not among them. None from a server
    /// that does not tell.
    pub under_way_ms: Option<Vec<u64>>,
    /// The threads that carry requests out.
    pub threads: Threads,
    /// The branches, in the order of the option; those out of use too.
    pub branches: Vec<Branch>,
    /// Opens of files, by how they were opened: `passthrough`, or why not.
    pub opens: BTreeMap<String, u64>,
    /// What was looked for in memory before a branch was asked, by what it is.
    pub caches: BTreeMap<String, Cache>,
    /// What is held at the moment.
    #[serde(flatten)]
    pub held: Held,
    /// Changes that others made on branches.
    pub coherence: Coherence,
    /// Files made on another branch than the policy's first choice, which was full.
    pub redirected_creates: u64,
    /// Files moved because their branch was full.
    pub moved_files: u64,
    /// Moves ahead of time.
    pub relocate_ahead: RelocateAhead,
    /// Writes in passthrough that wait for room.
    pub held_writes: HeldWrites,
}

/// The requests of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    /// How many there were, those that nobody timed too.
    pub requests: u64,
    /// How many were answered with an error, such as a name that is not there.
    pub errors: u64,
    /// From when a request came to the server to when its thread was done with it.
    pub whole: Latency,
    /// Of this, waiting for a thread.
    pub queue: Latency,
    /// Of this, in calls to branches.
    pub branches: Latency,
    /// Of this, handing the answer to the kernel; over `/dev/fuse` alone.
    pub answer: Latency,
}

/// How long things took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// How many were timed.
    pub count: u64,
    /// How long all took together.
    pub total_ns: u64,
    /// How many there were in each bucket and in no earlier one; see [`Metrics::bucket_bounds_ns`].
    pub buckets: Vec<u64>,
}

impl From<&Histogram> for Latency {
    fn from(histogram: &Histogram) -> Self {
        let count = histogram.count();
        Self {
            count,
            total_ns: histogram.total_ns,
            buckets: match count {
                0 => Vec::new(),
                _ => histogram.buckets.to_vec(),
            },
        }
    }
}

/// [`Metrics::bucket_bounds_ns`] of this version.
pub(crate) fn bucket_bounds_ns() -> Vec<u64> {
    (0..BUCKETS).filter_map(bound_ns).collect()
}

/// The threads that carry requests out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Threads {
    /// How many there are at the moment.
    pub now: u64,
    /// The most there may be.
    pub limit: u64,
    /// How often another thread took over reading from one that was about to block.
    pub reliefs: u64,
}

/// One branch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Branch {
    /// Its path. Where that is no UTF-8, backslashes are doubled and other bytes are `\xNN`. Different
    /// in each branch of a pool.
    pub path: String,
    /// RW, RO or NC.
    pub mode: String,
    /// ok, read-only, slow, failed, missing or replaced, at the moment.
    pub health: String,
    /// How long it has been so.
    pub health_for_ms: u64,
    /// Calls that failed for its disk, filesystem or server.
    pub io_errors: u64,
    /// Free for new files, when that was last asked; none before.
    pub available_bytes: Option<u64>,
    /// Free and used together, when that was last asked; none before.
    pub total_bytes: Option<u64>,
    /// How long its disk has not been read or written by anybody; none where that is not known.
    pub disk_idle_ms: Option<u64>,
    /// How often that came to an end after at least so long; empty where that is not known.
    pub disk_idle_periods: Vec<IdlePeriods>,
    /// What it was asked for, by kind.
    pub calls: BTreeMap<String, Calls>,
}

/// Periods in which a disk had nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdlePeriods {
    /// At least so long.
    pub minutes: u64,
    /// How many were ended by a read or write.
    pub ended: u64,
}

/// The calls of one kind to one branch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calls {
    /// How many there were, those that nobody timed too.
    pub calls: u64,
    /// How many failed for the branch's disk, filesystem or server.
    pub failures: u64,
    /// What they read or wrote. What is read and written in passthrough does not reach the server.
    pub bytes: u64,
    /// How long they took.
    pub took: Latency,
}

/// What was looked for in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// How often it was there.
    pub hits: u64,
    /// How often a branch had to be asked.
    pub misses: u64,
}

/// Who has files open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Users {
    /// Those with most files open, the first with most.
    pub processes: Vec<User>,
    /// How many processes and ended threads there are beside these.
    pub left_out: u64,
}

/// A process that has opened files that are open still.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    /// The process; 0 if it is in another pid namespace. Of a thread that has ended, the thread.
    pub pid: u32,
    /// The user who opened them; none where the kernel did not say.
    pub uid: Option<u32>,
    /// What the process is called; none if it has ended.
    pub command: Option<String>,
    /// Files open.
    pub open_files: u64,
    /// Of these, those open for writing.
    pub open_for_writing: u64,
}
