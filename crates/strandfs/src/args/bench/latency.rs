//! The command line of `strandfs bench latency`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use strandfs_lab::latency::Operation;

use super::{OutputArgs, PoolArgs, duration, size};

/// Arguments of `bench latency`.
#[derive(Args)]
pub struct LatencyArgs {
    /// What lies below, as for `bench layers`; without, memory (a tmpfs).
    #[arg(value_name = "TARGET")]
    pub target: Option<OsString>,
    /// What is done again and again.
    #[arg(long, value_enum, default_value = "random-read")]
    pub operation: LatencyOperation,
    /// Bytes of one operation.
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size)]
    pub block: u64,
    /// So many operations begin in a second, however long they take, and each is timed from when it was due
    /// (default: as fast as they can).
    #[arg(long, value_name = "NUMBER")]
    pub rate: Option<f64>,
    /// Callers at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub threads: usize,
    /// Past the page cache (O_DIRECT).
    #[arg(long)]
    pub direct: bool,
    /// Each write is on storage before it returns (O_DSYNC).
    #[arg(long)]
    pub sync: bool,
    /// How long each subject works in a round.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub round: Duration,
    /// Rounds (with --steady: at most).
    #[arg(long, value_name = "NUMBER")]
    pub rounds: Option<usize>,
    /// Rounds until the last five differ by no more than a fifth and drift by no more than a tenth of their
    /// average (SNIA PTS), and figures of these five alone; at most 25.
    #[arg(long)]
    pub steady: bool,
    /// Ways of the pool: passthrough, direct, cached (default: all).
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    pub modes: Vec<String>,
    /// The size of each file.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub size: u64,
    /// Which pools, and where.
    #[command(flatten)]
    pub pools: PoolArgs,
    /// Where the samples go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Draws the order of the subjects and the places.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// What can be done.
#[derive(Clone, Copy, ValueEnum)]
pub enum LatencyOperation {
    /// Read at random places.
    RandomRead,
    /// Write at random places.
    RandomWrite,
    /// Read from the beginning, again and again.
    Read,
    /// Write from the beginning, again and again.
    Write,
}

impl LatencyOperation {
    /// What the laboratory calls it.
    pub fn operation(self) -> Operation {
        match self {
            Self::RandomRead => Operation::RandomRead,
            Self::RandomWrite => Operation::RandomWrite,
            Self::Read => Operation::Read,
            Self::Write => Operation::Write,
        }
    }
}
