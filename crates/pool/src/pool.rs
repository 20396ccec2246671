//! The pool as a whole: configuration in force, branches, nodes, open files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::{Connection, FileKind, Negotiated, NodeId};
use strandfs_options::Settings;

use crate::branch::{Branch, BranchId};
use crate::dir_handle::DirHandles;
use crate::dir_set::DirFdCache;
use crate::identity::Volumes;
use crate::node::{DirEntry, DirSet, Names, Node, NodeTable};
use crate::open_file::OpenFiles;
use crate::sys;

/// What is in force at one moment; requests keep the view they started with.
pub struct View {
    /// The options.
    pub settings: Settings,
    /// The branches, in the order that policies see.
    pub branches: Vec<Arc<Branch>>,
}

impl View {
    /// The branch of this id, if it is still in the pool.
    pub fn branch(&self, id: BranchId) -> Option<&Arc<Branch>> {
        self.branches.iter().find(|branch| branch.id == id)
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

/// The union filesystem.
pub struct Pool {
    view: ArcSwap<View>,
    pub(crate) nodes: NodeTable,
    pub(crate) volumes: Volumes,
    pub(crate) files: OpenFiles,
    pub(crate) dirs: DirHandles,
    pub(crate) dir_fds: DirFdCache,
    pub(crate) connection: OnceLock<Connection>,
    pub(crate) negotiated: OnceLock<Negotiated>,
    pub(crate) verdict: Mutex<PassthroughVerdict>,
    pub(crate) mountpoint: OnceLock<std::path::PathBuf>,
    pub(crate) relocated: AtomicU64,
}

/// The pool could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A branch's root cannot be opened.
    #[error("branch {path}: {errno}; check that it exists, is a directory and is mounted")]
    Branch {
        /// The branch.
        path: std::path::PathBuf,
        /// Why.
        errno: Errno,
    },
    /// Too many branches.
    #[error("more than 1000 branches")]
    TooManyBranches,
}

impl Pool {
    /// Opens the branches of `settings` and builds the root.
    ///
    /// # Errors
    /// [`PoolError`] if a branch cannot be opened.
    pub fn new(settings: Settings) -> Result<Pool, PoolError> {
        let mut branches = Vec::with_capacity(settings.branches.len());
        for (index, spec) in settings.branches.iter().enumerate() {
            let id = u16::try_from(index).ok().filter(|id| *id < 1000);
            let id = BranchId(id.ok_or(PoolError::TooManyBranches)?);
            let opened = Branch::open(id, spec).map_err(|errno| PoolError::Branch {
                path: spec.path.clone(),
                errno,
            })?;
            branches.push(Arc::new(opened));
        }
        let pool = Pool {
            view: ArcSwap::from_pointee(View { settings, branches }),
            nodes: NodeTable::default(),
            volumes: Volumes::default(),
            files: OpenFiles::default(),
            dirs: DirHandles::default(),
            dir_fds: DirFdCache::from_limit(),
            connection: OnceLock::new(),
            negotiated: OnceLock::new(),
            verdict: Mutex::new(PassthroughVerdict::Undecided),
            mountpoint: OnceLock::new(),
            relocated: AtomicU64::new(0),
        };
        pool.insert_root()?;
        Ok(pool)
    }

    fn insert_root(&self) -> Result<(), PoolError> {
        let view = self.view();
        let mut entries: SmallVec<[DirEntry; 2]> = smallvec![];
        for branch in &view.branches {
            let entry = self.root_entry(branch).map_err(|errno| PoolError::Branch {
                path: branch.path.clone(),
                errno,
            })?;
            entries.push(entry);
        }
        let copies = entries.iter().map(|entry| entry.identity).collect();
        let root = Node::new(
            NodeId::ROOT,
            1,
            FileKind::Directory,
            copies,
            Names::default(),
        );
        root.place_mut().dirs = Some(Arc::new(DirSet::new(entries, sys::mono_coarse_ms())));
        self.nodes.insert_root(Arc::new(root));
        Ok(())
    }

    pub(crate) fn root_entry(&self, branch: &Arc<Branch>) -> sys::Result<DirEntry> {
        let stat = sys::statx_fd(branch.root())?;
        let empty = std::ffi::OsStr::new("");
        let identity =
            self.volumes
                .identify(branch.id, branch.seed, &stat, branch.root(), empty)?;
        Ok(DirEntry {
            branch: Arc::clone(branch),
            identity,
            fd: branch.root_shared(),
        })
    }

    /// What is in force now.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The node of an id in a request.
    ///
    /// # Errors
    /// ESTALE if there is none.
    pub(crate) fn node(&self, id: NodeId) -> sys::Result<Arc<Node>> {
        self.nodes.get(id).ok_or(Errno::STALE)
    }

    /// How long names may be trusted.
    pub(crate) fn entry_valid(&self, view: &View) -> Duration {
        view.settings.cache_entry
    }

    /// How long attributes may be trusted.
    pub(crate) fn attr_valid(&self, view: &View) -> Duration {
        view.settings.cache_attr
    }

    /// How many nodes the kernel knows.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Whether and why (not) files are passed through.
    pub fn passthrough_verdict(&self) -> PassthroughVerdict {
        self.verdict.lock().clone()
    }

    /// How many files are open.
    pub fn open_count(&self) -> usize {
        self.files.len()
    }

    /// How many creates went to another branch than the policy's first choice.
    pub fn redirected_creates(&self) -> u64 {
        self.relocated.load(Ordering::Relaxed)
    }
}
