//! Arguments of the subcommands that act on a mounted pool.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `get`.
#[derive(Args)]
pub struct GetArgs {
    /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
    pub mountpoint: PathBuf,
    /// Options to show; all if left out.
    pub keys: Vec<String>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `set`.
#[derive(Args)]
pub struct SetArgs {
    /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
    pub mountpoint: PathBuf,
    /// Options to set, all of them or none.
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub options: Vec<String>,
    /// Write them into the TOML file the pool was mounted from, too.
    #[arg(long)]
    pub save: bool,
}

/// Arguments of `branch`.
#[derive(Args)]
pub struct BranchArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: BranchCommand,
}

/// What to do with branches.
#[derive(Subcommand)]
pub enum BranchCommand {
    /// Show the branches.
    List {
        /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
        mountpoint: PathBuf,
        /// For programs.
        #[arg(long)]
        json: bool,
    },
    /// Add a branch.
    Add {
        /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
        mountpoint: PathBuf,
        /// The directory, taken as it is.
        path: PathBuf,
        /// RW, RO or NC; RW if left out.
        #[arg(long)]
        mode: Option<String>,
        /// Free space this branch needs to receive new files, as 4G, 5% or 4G/5%.
        #[arg(long, value_name = "SIZE")]
        minfreespace: Option<String>,
        /// Before the other branches instead of behind them.
        #[arg(long)]
        first: bool,
        /// Write the change into the TOML file the pool was mounted from, too.
        #[arg(long)]
        save: bool,
    },
    /// Remove a branch; files on it stay where they are, and those that are open stay open.
    Remove {
        /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
        mountpoint: PathBuf,
        /// The branch.
        path: PathBuf,
        /// Write the change into the TOML file the pool was mounted from, too.
        #[arg(long)]
        save: bool,
    },
    /// Change a branch in place.
    #[command(group(
        clap::ArgGroup::new("change").args(["mode", "minfreespace"]).required(true).multiple(true)
    ))]
    Set {
        /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
        mountpoint: PathBuf,
        /// The branch.
        path: PathBuf,
        /// RW, RO or NC.
        #[arg(long)]
        mode: Option<String>,
        /// Free space this branch needs to receive new files, or `default` for the pool's.
        #[arg(long, value_name = "SIZE")]
        minfreespace: Option<String>,
        /// Write the change into the TOML file the pool was mounted from, too.
        #[arg(long)]
        save: bool,
    },
}

/// Arguments of `reload`.
#[derive(Args)]
pub struct ReloadArgs {
    /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
    pub mountpoint: PathBuf,
}

/// Arguments of `notify-test`.
#[derive(Args)]
pub struct NotifyTestArgs {
    /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
    pub mountpoint: PathBuf,
}
