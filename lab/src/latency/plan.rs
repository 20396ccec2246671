//! What `bench latency` measures.

use std::time::Duration;

use crate::error::BenchError;
use crate::layers::LayersPlan;
use crate::layers::plan::Mode;

/// Operations a second, at most.
const MOST_RATE: f64 = 1e10;

/// What a caller does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a block at a random place.
    RandomRead,
    /// Writes one.
    RandomWrite,
    /// Reads the next block, from the beginning again at the end.
    Read,
    /// Writes it.
    Write,
}

impl Operation {
    /// All.
    pub const ALL: [Operation; 4] = [Self::RandomRead, Self::RandomWrite, Self::Read, Self::Write];

    /// The name on the command line and of the row.
    pub fn name(self) -> &'static str {
        match self {
            Self::RandomRead => "random-read",
            Self::RandomWrite => "random-write",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// Whether it writes.
    pub fn is_write(self) -> bool {
        matches!(self, Self::RandomWrite | Self::Write)
    }

    /// Whether its places are drawn.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite)
    }
}

/// Everything the user chose.
#[derive(Clone, Debug)]
pub struct LatencyPlan {
    /// Where, with which pools, with files of which size.
    pub place: LayersPlan,
    /// Ways of the pool.
    pub modes: Vec<Mode>,
    /// What is done.
    pub operation: Operation,
    /// Bytes of one operation.
    pub block_bytes: usize,
    /// Operations that begin in a second, by all callers together; as fast as they can for `None`.
    pub rate: Option<f64>,
    /// Callers at once.
    pub threads: usize,
    /// Whether past the page cache (O_DIRECT).
    pub is_direct: bool,
    /// Whether each write is on storage when it returns (O_DSYNC).
    pub is_synced: bool,
    /// How long a subject works in a round.
    pub round: Duration,
    /// Rounds; at most, where they end when all are steady.
    pub rounds: usize,
    /// Whether rounds go on until the figures are steady.
    pub until_steady: bool,
}

impl LatencyPlan {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`BenchError::Usage`].
    pub fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: &str| Err(BenchError::Usage(text.to_owned()));
        let block = self.block_bytes as u64;
        if block < 512 || !block.is_multiple_of(512) || block > self.place.file_bytes {
            return wrong("--block must be a multiple of 512 bytes, and not larger than --size");
        }
        if self.rate.is_some_and(|it| it <= 0.0 || !it.is_finite()) {
            return wrong("--rate must be above 0");
        }
        if self.rate.is_some_and(|it| it > MOST_RATE) {
            return wrong("--rate must be at most 10000000000: no clock tells more apart");
        }
        if self.threads == 0 || self.rounds == 0 {
            return wrong("--threads and --rounds must be at least 1");
        }
        if self.round < Duration::from_millis(10) {
            return wrong("--round must be at least 10ms");
        }
        Ok(())
    }

    /// The row's name.
    pub fn row(&self) -> String {
        let size = strandfs_options::show_size(self.block_bytes as u64);
        format!("{} {size}", self.operation.name())
    }
}
