//! What is known of branches that change behind the pool, and for how long it may be trusted.
//!
//! The `watch` room's thread listens to the branches' filesystems and tells the kernel what is stale.
//! What it has told is safe to be cached for long; what a request learnt *before* a change that was
//! told meanwhile is not: the kernel may receive the answer after the invalidation. So every request
//! notes an `Epoch` before it looks at a branch, and its answer is cached only if nothing it rests on
//! has changed since.

pub(crate) mod changes;
pub(crate) mod copies;
pub(crate) mod dir_index;
pub(crate) mod event;
pub(crate) mod hot;
pub(crate) mod invalidate;
pub(crate) mod kept_listings;
pub(crate) mod queue;
pub(crate) mod remembered;
pub(crate) mod series;
pub(crate) mod validity;
pub(crate) mod watched;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use strandfs_options::Coherence as Mode;

use crate::base::branch::BranchId;
use crate::state::State;
use crate::state::dir_cache::DirCaches;
use crate::state::identity::VolumeId;
use changes::Changes;
pub(crate) use changes::Epoch;
use dir_index::DirIndex;
use event::Fsid;
use hot::HotFiles;
pub(crate) use kept_listings::Keeping;
use queue::Queue;
pub(crate) use remembered::{CachedLookups, Fill, Learnt};

/// The state, and how long what is known of the branches holds.
pub struct Coherent {
    state: State,
    pub(crate) coherence: Coherence,
}

impl Coherent {
    /// Of a pool that is being made.
    pub(crate) fn new(state: State, coherence: Coherence) -> Coherent {
        Coherent { state, coherence }
    }
}

impl Deref for Coherent {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

const UNKNOWN: u8 = 0;
const WATCHED: u8 = 1;
const UNWATCHED: u8 = 2;

/// As many as node ids can name.
const VOLUMES_MAX: usize = 1 << 11;

/// The two fanotify groups: changes of names, and of inodes' attributes and data.
pub(crate) struct Groups {
    pub(crate) names: Arc<OwnedFd>,
    pub(crate) inodes: Arc<OwnedFd>,
}

impl Groups {
    fn both(&self) -> [BorrowedFd<'_>; 2] {
        [self.names.as_fd(), self.inodes.as_fd()]
    }
}

/// What is watched, and what changed when.
pub struct Coherence {
    mode: Mode,
    pub(crate) groups: OnceLock<Groups>,
    /// State of each volume.
    volumes: Box<[AtomicU8]>,
    /// Watched volumes by filesystem: two branches may share one.
    by_fsid: Mutex<Vec<(Fsid, VolumeId)>>,
    /// Every branch is watched.
    all: AtomicBool,
    /// Position of the first branch that is not.
    first_unwatched: AtomicUsize,
    /// Why a branch is not watched, for people.
    reasons: Mutex<HashMap<BranchId, String>>,
    /// Why nothing can be watched.
    ruled_out: Mutex<Option<String>>,
    pub(crate) changes: Changes,
    /// Counts changes of directories: a directory's branches are known while it stands still.
    structure: AtomicU64,
    index: DirIndex,
    /// Numbers for series of listings.
    series: AtomicU64,
    pub(crate) hot: HotFiles,
    pub(crate) queue: Queue,
    /// Volumes on which names that differ in case are different names.
    tells_case: Mutex<HashSet<VolumeId>>,
    /// What kind of filesystem a volume is (`f_type` of `statfs(2)`), once that was asked.
    magics: Mutex<HashMap<VolumeId, u64>>,
    pub(crate) dir_caches: DirCaches,
    /// Ends the listener.
    pub(crate) stop: OnceLock<Arc<OwnedFd>>,
    pub(crate) events: AtomicU64,
    invalidations: AtomicU64,
}

impl Coherence {
    /// Nothing is watched yet.
    pub(crate) fn new(mode: Mode) -> Self {
        Coherence {
            mode,
            groups: OnceLock::new(),
            volumes: (0..VOLUMES_MAX).map(|_| AtomicU8::new(UNKNOWN)).collect(),
            by_fsid: Mutex::default(),
            all: AtomicBool::new(false),
            first_unwatched: AtomicUsize::new(0),
            reasons: Mutex::default(),
            ruled_out: Mutex::default(),
            changes: Changes::default(),
            structure: AtomicU64::new(0),
            index: DirIndex::default(),
            series: AtomicU64::new(0),
            hot: HotFiles::default(),
            queue: Queue::default(),
            tells_case: Mutex::default(),
            magics: Mutex::default(),
            dir_caches: DirCaches::default(),
            stop: OnceLock::new(),
            events: AtomicU64::new(0),
            invalidations: AtomicU64::new(0),
        }
    }

    /// Now, for a look at `changes` later.
    pub(crate) fn now(&self) -> Epoch {
        self.changes.now()
    }

    /// Whether anything is watched at all.
    pub(crate) fn watching(&self) -> bool {
        self.groups.get().is_some()
    }

    /// Whether nothing may be cached.
    pub(crate) fn strict(&self) -> bool {
        self.mode == Mode::Strict
    }

    /// Whether every branch is watched.
    pub(crate) fn all_watched(&self) -> bool {
        self.all.load(Ordering::Acquire)
    }

    /// The state of directories over all branches; as long as it stays, so do they.
    pub(crate) fn structure(&self) -> u64 {
        self.structure.load(Ordering::SeqCst)
    }

    /// Directories changed their branches: what is known of them must be looked at again.
    pub(crate) fn structure_changed(&self) {
        self.structure.fetch_add(1, Ordering::SeqCst);
    }

    /// Why a branch is not watched; `None` if it is.
    pub(crate) fn reason(&self, branch: BranchId) -> Option<String> {
        if self.watching() {
            return self.reasons.lock().get(&branch).cloned();
        }
        Some(match self.mode {
            Mode::Timeout => "coherence=timeout".to_owned(),
            Mode::Strict => "coherence=strict".to_owned(),
            Mode::Auto | Mode::Watch => {
                let ruled_out = self.ruled_out.lock().clone();
                ruled_out.unwrap_or_else(|| "not decided yet".to_owned())
            }
        })
    }

    /// Events read and invalidations sent since the mount, for `status`.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.events.load(Ordering::Relaxed),
            self.invalidations.load(Ordering::Relaxed),
        )
    }

    /// Ends the listener.
    pub(crate) fn end(&self) {
        if let Some(stop) = self.stop.get() {
            let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
        }
    }
}
