//! The command line of `strandfs bench reproduce`.

use std::path::PathBuf;

use clap::Args;

use super::size;

/// Arguments of `bench reproduce`.
#[derive(Args)]
pub struct ReproduceArgs {
    /// The page to write, in Markdown.
    #[arg(short, long, value_name = "FILE.md")]
    pub output: PathBuf,
    /// Repetitions of every table; intervals need 5.
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    pub reps: usize,
    /// The size of the file of the table of filesystems; published are figures of 1 GB.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub size: u64,
    /// Where the filesystems' image goes: on the device that is to be measured.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    pub images: PathBuf,
    /// Where the results go, one file each (default: none are kept).
    #[arg(long, value_name = "DIRECTORY")]
    pub results: Option<PathBuf>,
}
