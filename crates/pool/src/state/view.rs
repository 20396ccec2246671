//! What is in force at one moment: the options, the branches, and the root of the pool on them.

use std::sync::Arc;

use smallvec::SmallVec;
use strandfs_options::{Function, Policy, Settings};

use crate::base::branch::{Branch, BranchId, Missing};
use crate::base::sys;
use crate::state::dir_cache::DirCaches;
use crate::state::identity::Volumes;
use crate::state::node::{DirEntry, DirSet};
use crate::state::pool_error::PoolError;

/// What is in force at one moment; requests keep the view they started with.
pub struct View {
    /// Counts the changes of options or branches.
    pub generation: u64,
    /// The generation that brought these branches: what was found out before is looked at again.
    pub branches_since: u64,
    /// The root of the pool, on every branch.
    pub root: Arc<DirSet>,
    /// The options.
    pub settings: Settings,
    /// The branches, in the order that policies see.
    pub branches: Vec<Arc<Branch>>,
    /// Branches that are out of use until they are back.
    pub missing: Vec<Arc<Missing>>,
}

impl View {
    /// The branch of this id, if it is still in the pool.
    pub fn branch(&self, id: BranchId) -> Option<&Arc<Branch>> {
        self.branches.iter().find(|branch| branch.id == id)
    }

    /// The policy that chooses the branches of a function.
    pub fn policy(&self, function: Function) -> Policy {
        self.settings.policies.get(function)
    }

    /// A branch's position in the order of branches; absent ones come last.
    pub fn position(&self, id: BranchId) -> usize {
        self.branches
            .iter()
            .position(|branch| branch.id == id)
            .unwrap_or(usize::MAX)
    }
}

/// Whether passthrough can be used at all on this mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassthroughVerdict {
    /// INIT has not happened yet.
    Undecided,
    /// Files are passed through.
    On,
    /// They are not; the reason, for people.
    Off(String),
}

/// The roots of all branches as one directory.
///
/// # Errors
/// [`PoolError::Branch`] if one cannot be asked.
pub(crate) fn root_set(
    volumes: &Volumes,
    dir_caches: &DirCaches,
    branches: &[Arc<Branch>],
    generation: u64,
) -> Result<DirSet, PoolError> {
    let entries: Result<SmallVec<[DirEntry; 2]>, PoolError> = branches
        .iter()
        .map(|branch| {
            root_entry(volumes, dir_caches, branch).map_err(|errno| PoolError::Branch {
                path: branch.path.clone(),
                errno,
            })
        })
        .collect();
    Ok(DirSet::new(entries?, sys::mono_coarse_ms(), generation, 0))
}

fn root_entry(
    volumes: &Volumes,
    dir_caches: &DirCaches,
    branch: &Arc<Branch>,
) -> sys::Result<DirEntry> {
    volumes.mounts.admit_root(branch.id, branch.root())?;
    let stat = sys::statx_fd(branch.root())?;
    let empty = std::ffi::OsStr::new("");
    let identity = volumes.identify(branch.id, branch.seed, &stat, branch.root(), empty)?;
    let memory = dir_caches.of(&stat);
    memory.note_rights(&stat);
    Ok(DirEntry {
        branch: Arc::clone(branch),
        identity,
        fd: branch.root_shared(),
        readable: false,
        memory,
    })
}
