//! The pool itself: its branches, its place, its name, its free space.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::branch::{BranchSpec, reach};
use crate::size::MinFreeSpace;
use crate::words::{StatfsIgnore, StatfsMode, Subtype};

/// The pool itself: its branches, its place, its name, its free space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct PoolSettings {
    /// In order; paths are unique and real. Empty until `branches` is set.
    pub branches: Vec<BranchSpec>,
    pub branches_mount_timeout: Duration,
    pub branches_mount_timeout_fail: bool,
    /// `None`: the last argument.
    pub mountpoint: Option<String>,
    /// The configuration file that was read last; reading it is the work of [`crate::Layers`].
    pub config: Option<String>,
    pub minfreespace: MinFreeSpace,
    /// `None`: made from the branches, see [`PoolSettings::source_name`].
    pub fsname: Option<String>,
    pub subtype: Subtype,
    pub statfs: StatfsMode,
    pub statfs_ignore: StatfsIgnore,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            branches: Vec::new(),
            branches_mount_timeout: Duration::ZERO,
            branches_mount_timeout_fail: false,
            mountpoint: None,
            config: None,
            minfreespace: MinFreeSpace::default(),
            fsname: None,
            subtype: Subtype::Strandfs,
            statfs: StatfsMode::Base,
            statfs_ignore: StatfsIgnore::None,
        }
    }
}

impl PoolSettings {
    /// How long a branch may take to answer before it counts as missing.
    pub fn patience(&self) -> Duration {
        match self.branches_mount_timeout {
            Duration::ZERO => reach::PATIENCE,
            timeout => timeout,
        }
    }

    /// What `df` and `/proc/mounts` show as the source: `fsname`, or else the branch paths without
    /// the directories they share, joined by `:` (a single branch in full).
    pub fn source_name(&self) -> String {
        if let Some(name) = &self.fsname {
            return name.clone();
        }
        let paths: Vec<&Path> = self
            .branches
            .iter()
            .map(|branch| branch.path.as_path())
            .collect();
        let shared = match paths.as_slice() {
            [] | [_] => None,
            [first, others @ ..] => first.ancestors().skip(1).find(|dir| {
                others
                    .iter()
                    .all(|path| path.starts_with(dir) && path != dir)
            }),
        };
        let names: Vec<String> = paths
            .iter()
            .map(|path| match shared {
                Some(shared) => path.strip_prefix(shared).unwrap_or(path),
                None => path,
            })
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        names.join(":")
    }
}
