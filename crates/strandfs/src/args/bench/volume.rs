//! The command line of `strandfs bench volume`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{OutputArgs, duration, size};

/// Arguments of `bench volume`.
#[derive(Args)]
pub struct VolumeBenchArgs {
    /// The size of each backing file.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub size: u64,
    /// How long each of the four jobs runs.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub time: Duration,
    /// Repetitions; intervals need 5.
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    pub reps: usize,
    /// Volumes that get at their backing file in these ways; ext4 is measured on the first.
    #[arg(long, value_name = "IO", value_enum, value_delimiter = ',', default_values = ["passthrough", "uring", "sync"])]
    pub io: Vec<VolumeIo>,
    /// Volumes whose requests come over these (default: the volume's own choice).
    #[arg(long, value_name = "TRANSPORT", value_enum, value_delimiter = ',')]
    pub transport: Vec<VolumeTransport>,
    /// Where the backing files go (default: a tmpfs made for the run).
    #[arg(long, value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// Where the samples go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Draws the order.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// `--io` of `volume serve`, without its `auto`: what is measured has a name.
#[derive(Clone, Copy, ValueEnum)]
pub enum VolumeIo {
    Passthrough,
    Uring,
    Sync,
}

/// `--transport` of `volume serve`, likewise.
#[derive(Clone, Copy, ValueEnum)]
pub enum VolumeTransport {
    Dev,
    Uring,
}
