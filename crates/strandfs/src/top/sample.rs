//! What a pool says of itself at one moment, and what its disks say.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use strandfs_pool::metrics::{Metrics, Users};

use super::disk::{self, Disk};
use crate::mounts;

/// One look at a pool.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// What the pool has counted.
    pub metrics: Metrics,
    /// Who has files open.
    pub users: Users,
    /// The disk below each branch, in the order of the branches.
    pub disks: Vec<Option<Disk>>,
}

/// Looks at the pool mounted here.
///
/// # Errors
/// A sentence if its server cannot be reached, or does not answer in time.
pub fn take(mountpoint: &Path) -> io::Result<Sample> {
    let (metrics, users) = mounts::metrics_and_users(mountpoint)?;
    let mounts = mounts::list()?;
    let paths = metrics
        .branches
        .iter()
        .map(|branch| PathBuf::from(&branch.path));
    let disks = paths.map(|path| disk::of(&path, &mounts)).collect();
    Ok(Sample {
        at: Instant::now(),
        metrics,
        users,
        disks,
    })
}
