//! The command lines of `strandfs bench layers`, `passthrough` and `blocksize`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{OutputArgs, PoolArgs, duration, size};

/// Arguments of `bench layers`.
#[derive(Args)]
pub struct LayersArgs {
    /// A directory on what is to be measured (disk, network mount; one of its own is made there and
    /// removed), or `FILESYSTEM:SIZE[@FILE]`: a filesystem of the matrix or any with a program
    /// mkfs.FILESYSTEM, on an image made for the run (root). Without any, memory alone is measured.
    #[arg(value_name = "TARGET")]
    pub targets: Vec<OsString>,
    /// How the pool moves data: passthrough, direct, cached (default: all).
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    pub modes: Vec<String>,
    /// How requests come from the kernel: dev, uring (default: those that work here).
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    pub transports: Vec<String>,
    /// Only these rows (default: all; a wrong name lists them).
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Measure pools of so many branches, too, beside those of one: 2 to 64, all in the same place.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    pub branches: Vec<usize>,
    /// Measure each TARGET as well as it would be if so much more time passed before every answer of it, as on a network:
    /// 1ms to 1s.
    #[arg(long = "round-trip", value_name = "TIME", value_delimiter = ',', value_parser = duration)]
    pub round_trips: Vec<Duration>,
    /// An answer, or that there is none, within a minute on a target of any speed: one mode, one transport,
    /// the rows that say most, no cross-check. What is asked for besides is done all the same.
    #[arg(long)]
    pub quick: bool,
    /// Do not set our own figures beside those of dd and fio.
    #[arg(long)]
    pub no_cross_check: bool,
    /// Set for the process that measures, which tells this one on its standard output.
    #[arg(long, hide = true)]
    pub worker: bool,
    /// What all runs have.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Arguments of `bench far`.
#[derive(Args)]
pub struct FarArgs {
    /// How much later every answer comes.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub round_trip: Duration,
    /// What is served.
    pub directory: PathBuf,
    /// Where.
    pub mountpoint: PathBuf,
}

/// Arguments of `bench passthrough` and `bench blocksize`.
#[derive(Args)]
pub struct DataArgs {
    /// What lies below, as for `bench layers`; without, memory (a tmpfs).
    #[arg(value_name = "TARGET")]
    pub target: Option<OsString>,
    /// What all runs have.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Arguments of `bench depth`.
#[derive(Args)]
pub struct DepthArgs {
    /// What lies below, as for `bench layers`; without, memory (a tmpfs).
    #[arg(value_name = "TARGET")]
    pub target: Option<OsString>,
    /// Requests in flight.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_values_t = [1, 32, 1024])]
    pub depths: Vec<u32>,
    /// How long each job runs.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub time: Duration,
    /// Ways of the pool: passthrough, direct, cached.
    #[arg(long, value_name = "MODE", value_delimiter = ',', default_values_t = ["passthrough".to_owned(), "direct".to_owned()])]
    pub modes: Vec<String>,
    /// The size of each file.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub size: u64,
    /// Repetitions; intervals need 5.
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    pub reps: usize,
    /// Which pools, and where.
    #[command(flatten)]
    pub pools: PoolArgs,
    /// Where the samples go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Draws the order of the subjects, and the data.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// What all runs on data have.
#[derive(Args)]
pub struct RunArgs {
    /// The size of each file.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    pub size: u64,
    /// So many repetitions, no fewer and no more; intervals need 5 (default: for `layers` as many as the
    /// answer needs, from 3 to 20, with --quick to 60; else 9, and up to 18 of rows that stay unstable).
    #[arg(long, value_name = "NUMBER")]
    pub reps: Option<usize>,
    /// Up to so many repetitions as long as the answer is open or rows are unstable.
    #[arg(long, value_name = "NUMBER")]
    pub max_reps: Option<usize>,
    /// Begin no measurement that would end later (default: for `layers` without --reps 5m, with --quick
    /// 60s). Making an image, and the cross-check, come on top.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub time_limit: Option<Duration>,
    /// What one sample may take; slow storage does less work in it.
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = duration)]
    pub sample_time: Duration,
    /// Which pools, and where.
    #[command(flatten)]
    pub pools: PoolArgs,
    /// Where the samples go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Draws the order of the levels, the data and the places of random access.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}
