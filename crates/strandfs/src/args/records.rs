//! Arguments of `records`.

use std::path::PathBuf;

use clap::Subcommand;

/// What to do with records of interrupted moves.
#[derive(Subcommand)]
pub enum RecordsCommand {
    /// Show the records at the roots of branches, and which of them the next mount follows.
    List {
        /// Branches, or where pools are mounted; all mounted pools if left out.
        #[arg(value_name = "BRANCH|MOUNTPOINT")]
        targets: Vec<PathBuf>,
        /// For programs.
        #[arg(long)]
        json: bool,
    },
    /// Have the next mount follow a record that another machine or an earlier version wrote.
    Accept {
        /// The branch it lies on.
        branch: PathBuf,
        /// Its name, as `list` shows it.
        name: String,
        /// Do it; without this, what following it does is only shown.
        #[arg(long)]
        yes: bool,
    },
    /// Remove a record; what it speaks of stays as it is.
    Discard {
        /// The branch it lies on.
        branch: PathBuf,
        /// Its name, as `list` shows it.
        name: String,
    },
}
