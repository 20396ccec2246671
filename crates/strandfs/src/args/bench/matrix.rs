//! The command line of `strandfs bench matrix`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{OutputArgs, duration, size};

/// Arguments of `bench matrix`.
#[derive(Args)]
pub struct MatrixArgs {
    /// The size of the file: 1 GiB or 5 GiB.
    #[arg(long, value_enum, default_value = "seed-small")]
    pub preset: MatrixPreset,
    /// Another size of the file.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Repetitions, each on all filesystems; intervals need 5.
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    pub reps: usize,
    /// Repetitions as long as figures are unstable (default: 3 more).
    #[arg(long, value_name = "NUMBER")]
    pub max_reps: Option<usize>,
    /// Between two repeated reads; the comparison this follows has 1s.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    pub pause: Duration,
    /// Only these filesystems (default: all; a wrong name lists them).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Further filesystems: a TOML file of `filesystem` tables with name, type, mkfs and mount.
    #[arg(long, value_name = "FILE.toml")]
    pub filesystems: Option<PathBuf>,
    /// Make them on this device instead of an image. All that is on it is lost.
    #[arg(long, value_name = "DEVICE", requires = "i_will_lose_data_on")]
    pub device: Option<PathBuf>,
    /// The same device again, to say that this is meant.
    #[arg(long, value_name = "DEVICE", requires = "device")]
    pub i_will_lose_data_on: Option<PathBuf>,
    /// Where the image goes.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Where the samples go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Draws the order of the filesystems, and the data.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// Sizes of the file.
#[derive(Clone, Copy, ValueEnum)]
pub enum MatrixPreset {
    /// 1 GiB.
    SeedSmall,
    /// 5 GiB.
    SeedLarge,
}
