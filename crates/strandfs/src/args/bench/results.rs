//! The command lines of `strandfs bench compare` and `strandfs bench report`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `bench compare`.
#[derive(Args)]
pub struct CompareArgs {
    /// What `--json` wrote before.
    #[arg(value_name = "BEFORE.json")]
    pub before: PathBuf,
    /// What it wrote afterwards.
    #[arg(value_name = "AFTER.json")]
    pub after: PathBuf,
    /// A change of speed up to so many percent does not count.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub threshold: f64,
    /// Set nothing against the bare filesystem measured beside it: a machine that was slower as a
    /// whole then shows as a regression.
    #[arg(long)]
    pub absolute: bool,
    /// Show the rows without a measurable difference too.
    #[arg(short, long)]
    pub all: bool,
}

/// Arguments of `bench export`.
#[derive(Args)]
pub struct ExportArgs {
    /// What `--json` wrote.
    #[arg(value_name = "FILE.json")]
    pub file: PathBuf,
    /// The table to write (default: standard output).
    #[arg(short, long, value_name = "FILE.csv")]
    pub output: Option<PathBuf>,
}

/// Arguments of `bench report`.
#[derive(Args)]
pub struct ReportArgs {
    /// What `--json` wrote.
    #[arg(required = true, value_name = "FILE.json")]
    pub files: Vec<PathBuf>,
    /// The page to write.
    #[arg(short, long, value_name = "FILE.html")]
    pub output: PathBuf,
}
