//! The pool as a whole: configuration in force, branches, nodes, open files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Connection, FileKind, Negotiated, NodeId};
use strandfs_options::{OptionError, Settings};

use crate::admin::control::request::Reload;
use crate::admin::control::{Changes, Recall};
use crate::admin::explain::Parts;
use crate::admin::features::passthrough_ruled_out;
use crate::admin::status::AskGuardian;
use crate::base::branch::{Branch, BranchId};
use crate::base::error::Result;
use crate::base::sys;
use crate::directory::clones::Clones;
use crate::directory::fds::DirFdCache;
use crate::directory::listing_cache::ListingCache;
use crate::directory::workers::Crews;
use crate::health;
use crate::health::{HealthMonitor, Missing};
use crate::mover::records::LeftAlone;
use crate::mover::{Ahead, Mending, Undecided, mend, report_keys};
use crate::ops::PreloadTold;
use crate::ops::admission::RefusalTold;
use crate::ops::link_cow::LinkCow;
use crate::state::descriptor_budget::Budget;
use crate::state::dir_cache::DirCaches;
use crate::state::identity::Volumes;
use crate::state::lock_waits::LockWaits;
use crate::state::mounts::Forbids;
use crate::state::node::{ChangingNames, DirEntry, DirSet, Names, Node, NodeTable};
use crate::state::open_files::OpenFiles;
use crate::watch::Coherence;

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

/// Told of the options before and after a change, which it may refuse.
pub type Watcher = Box<dyn Fn(&Settings, &Settings) -> Result<(), OptionError> + Send + Sync>;

/// The union filesystem.
pub struct Pool {
    view: ArcSwap<View>,
    pub(crate) nodes: NodeTable,
    pub(crate) volumes: Volumes,
    pub(crate) files: Arc<OpenFiles>,
    pub(crate) refusal_told: RefusalTold,
    pub(crate) listing_cache: ListingCache,
    pub(crate) dir_fds: DirFdCache,
    /// Directories that are being cloned.
    pub(crate) clones: Clones,
    pub(crate) coherence: Coherence,
    pub(crate) connection: OnceLock<Connection>,
    pub(crate) negotiated: OnceLock<Negotiated>,
    pub(crate) verdict: Mutex<PassthroughVerdict>,
    pub(crate) mountpoint: OnceLock<std::path::PathBuf>,
    pub(crate) watcher: OnceLock<Watcher>,
    pub(crate) relocated: AtomicU64,
    pub(crate) mounted_at_seconds: i64,
    /// Files moved from full branches.
    pub(crate) moved: AtomicU64,
    /// Rises when a file changes branches, between its new names and the end of its old ones:
    /// whoever missed it on both sides looks again.
    pub(crate) moves: AtomicU64,
    pub(crate) changes: Mutex<Changes>,
    pub(crate) recall: Recall,
    pub(crate) socket: OnceLock<String>,
    pub(crate) reload: OnceLock<Reload>,
    pub(crate) guardian: OnceLock<AskGuardian>,
    pub(crate) preload_told: PreloadTold,
    pub(crate) me: OnceLock<Weak<Pool>>,
    pub(crate) crews: Crews,
    pub(crate) link_cow: LinkCow,
    pub(crate) lock_waits: Arc<LockWaits>,
    pub(crate) health_monitor: HealthMonitor,
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) explained: Parts,
    pub(crate) undecided: Mutex<Vec<Undecided>>,
    /// Records that nobody follows.
    pub(crate) records_left: Mutex<Vec<LeftAlone>>,
}

/// The pool could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A branch's root cannot be opened.
    #[error("branch {path}: {}", cannot_be_opened(*.errno))]
    Branch {
        /// The branch.
        path: std::path::PathBuf,
        /// Why.
        errno: Errno,
    },
    /// A branch's root is not the branch.
    #[error("branch {path}: it has no {marker}, so it is not mounted; mount it, or see on-missing")]
    Unmarked {
        /// The branch.
        path: std::path::PathBuf,
        /// What every branch has (`branch-marker`).
        marker: String,
    },
    /// Too many branches.
    #[error("more than 1000 branches")]
    TooManyBranches,
    /// Branch and mountpoint lie in each other.
    #[error(
        "branch {path}: the pool mounted at {mountpoint} would contain itself; name a directory elsewhere"
    )]
    Loop {
        /// The branch.
        path: std::path::PathBuf,
        /// Where the pool is.
        mountpoint: std::path::PathBuf,
    },
    /// One directory under two paths.
    #[error("branch {path}: it is the same directory as {other}; name it once")]
    SameDirectory {
        /// The branch.
        path: std::path::PathBuf,
        /// The branch it equals.
        other: std::path::PathBuf,
    },
}

/// Why a branch cannot be opened, and what to do.
fn cannot_be_opened(errno: Errno) -> String {
    match errno {
        errno if health::is_dead_server(errno) => {
            format!("{}, or see on-missing", health::DEAD_SERVER)
        }
        errno => format!("{errno}; check that it exists, is a directory and is mounted"),
    }
}

impl Pool {
    /// Opens the branches of `settings` and builds the root.
    ///
    /// # Errors
    /// [`PoolError`] if a branch cannot be opened.
    pub fn new(settings: Settings) -> Result<Arc<Pool>, PoolError> {
        let mut branches = Vec::with_capacity(settings.branches.len());
        let mut missing = Vec::new();
        for (index, spec) in settings.branches.iter().enumerate() {
            let id = u16::try_from(index).ok().filter(|id| *id < 1000);
            let id = BranchId(id.ok_or(PoolError::TooManyBranches)?);
            match health::open_at_mount(id, spec, &settings)? {
                Ok(branch) => branches.push(Arc::new(branch)),
                Err(absent) => missing.push(Arc::new(absent)),
            }
        }
        report_keys();
        let mended = mend(&branches, &branches, Mending::AtMount);
        let volumes = Volumes::default();
        volumes.mounts.set_rule(settings.cross_mounts);
        let coherence = Coherence::new(settings.coherence);
        let root = Arc::new(root_set(&volumes, &coherence.dir_caches, &branches, 0)?);
        let budget = Budget::of_process();
        let directories = budget.directories();
        let pool = Arc::new(Pool {
            changes: Mutex::new(Changes::after(branches.len() + missing.len())),
            view: ArcSwap::from_pointee(View {
                generation: 0,
                branches_since: 0,
                root: Arc::clone(&root),
                settings,
                branches,
                missing,
            }),
            nodes: NodeTable::default(),
            volumes,
            files: OpenFiles::new(budget),
            refusal_told: RefusalTold::default(),
            listing_cache: ListingCache::default(),
            dir_fds: DirFdCache::new(directories),
            clones: Clones::default(),
            coherence,
            connection: OnceLock::new(),
            negotiated: OnceLock::new(),
            verdict: Mutex::new(PassthroughVerdict::Undecided),
            mountpoint: OnceLock::new(),
            watcher: OnceLock::new(),
            relocated: AtomicU64::new(0),
            mounted_at_seconds: rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec,
            moved: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            recall: Recall::default(),
            crews: Crews::default(),
            socket: OnceLock::new(),
            reload: OnceLock::new(),
            guardian: OnceLock::new(),
            preload_told: PreloadTold::default(),
            link_cow: LinkCow::default(),
            lock_waits: Arc::default(),
            health_monitor: HealthMonitor::default(),
            ahead: Arc::default(),
            explained: Parts::default(),
            undecided: Mutex::new(mended.undecided),
            records_left: Mutex::new(mended.left),
            me: OnceLock::new(),
        });
        let _ = pool.me.set(Arc::downgrade(&pool));
        let copies = root.entries.iter().map(|entry| entry.identity).collect();
        let node = Node::new(
            NodeId::ROOT,
            1,
            FileKind::Directory,
            copies,
            Names::default(),
        );
        node.place_mut().dirs = Some(root);
        pool.note_copies(&node);
        pool.nodes.insert_root(Arc::new(node));
        Ok(pool)
    }

    /// Puts a view in force, its root with it.
    pub(crate) fn put_in_force(&self, view: View) {
        let root = Arc::clone(&view.root);
        self.volumes.mounts.set_rule(view.settings.cross_mounts);
        self.view.store(Arc::new(view));
        if let Some(node) = self.nodes.get(NodeId::ROOT) {
            let mut place = node.place_mut();
            place.copies = root.entries.iter().map(|entry| entry.identity).collect();
            place.dirs = Some(root);
            drop(place);
            // Or what is reported of the root on a branch that joined would be nobody's.
            self.note_copies(&node);
        }
        self.count_descriptors();
        self.ahead.wake();
    }

    /// What is in force now.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The node of an id in a request.
    ///
    /// # Errors
    /// ESTALE if there is none.
    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        self.nodes.get(id).ok_or(Errno::STALE.into())
    }

    /// The same of a directory in which a name is to be changed.
    ///
    /// # Errors
    /// ESTALE if there is none.
    pub(crate) fn node_to_change(&self, id: NodeId) -> Result<ChangingNames> {
        self.node(id).map(ChangingNames::of)
    }

    /// Zero if options or branches changed since `view` was taken: what was found out under it
    /// may reach the kernel after it was told to forget such things.
    pub(crate) fn unless_outdated(&self, view: &View, trusted: Duration) -> Duration {
        if self.view().generation == view.generation {
            trusted
        } else {
            Duration::ZERO
        }
    }

    /// What the pool's own mount forbids for all files, until its flags change.
    pub fn mounted_so(&self, forbids: Forbids) {
        self.volumes.mounts.set_pool(forbids);
    }

    /// How many nodes the kernel knows.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Whether and why (not) files are passed through.
    pub fn passthrough_verdict(&self) -> PassthroughVerdict {
        match passthrough_ruled_out(&self.view().settings) {
            Some(reason) => PassthroughVerdict::Off(reason),
            None => self.verdict.lock().clone(),
        }
    }

    /// How many files are open.
    pub fn open_count(&self) -> usize {
        self.files.len()
    }

    /// How many files were moved from full branches.
    pub fn moved_files(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// How often a file has changed branches.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// How many creates went to another branch than the policy's first choice.
    pub fn redirected_creates(&self) -> u64 {
        self.relocated.load(Ordering::Relaxed)
    }
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
