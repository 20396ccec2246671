//! The command line of `strandfs bench live`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `bench live`.
#[derive(Args)]
pub struct LiveArgs {
    /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
    pub mountpoint: PathBuf,
    /// How long its requests are watched, 3 to 3600.
    #[arg(long, value_name = "NUMBER", default_value_t = 60, value_parser = clap::value_parser!(u64).range(3..=3600))]
    pub seconds: u64,
    /// Print the figures and the verdict as JSON.
    #[arg(long)]
    pub json: bool,
}
