//! Branch specifications: `PATH[=MODE[,MINFREESPACE]]`, joined by `:`.

use std::path::PathBuf;

use crate::size::MinFreeSpace;

/// What may be done on a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchMode {
    /// Search, action and create.
    ReadWrite,
    /// Search only.
    ReadOnly,
    /// Search and action, never create.
    NoCreate,
}

/// One branch as the user named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchSpec {
    /// Absolute path, symlinks resolved at parse time where the path exists.
    pub path: PathBuf,
    /// Defaults to [`BranchMode::ReadWrite`].
    pub mode: BranchMode,
    /// Overrides the pool's `minfreespace` when set.
    pub min_free_space: Option<MinFreeSpace>,
}
