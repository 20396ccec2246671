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
pub(crate) mod misses;
pub(crate) mod queue;
pub(crate) mod remembered;
pub(crate) mod series;
pub(crate) mod telling;
pub(crate) mod validity;
pub(crate) mod watched;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strandfs_options::Coherence as Mode;

use crate::state::State;
use changes::Changes;
pub(crate) use changes::Epoch;
use dir_index::DirIndex;
use hot::HotFiles;
pub(crate) use kept_listings::Keeping;
use misses::Misses;
use queue::Queue;
use remembered::Lookups;
pub(crate) use remembered::{CachedLookups, Fill, Learnt};
use telling::Telling;
use watched::Watched;

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

/// What is watched, what changed when, and what is remembered of it.
pub struct Coherence {
    pub(crate) watched: Watched,
    pub(crate) changes: Changes,
    pub(crate) lookups: Lookups,
    index: DirIndex,
    pub(crate) misses: Misses,
    /// Numbers for series of listings.
    series: AtomicU64,
    pub(crate) hot: HotFiles,
    pub(crate) queue: Queue,
    pub(crate) events: AtomicU64,
    /// Shared with the threads that tell.
    invalidations: Arc<AtomicU64>,
    telling: Arc<Telling>,
}

impl Coherence {
    /// Nothing is watched yet.
    pub(crate) fn new(mode: Mode) -> Self {
        Coherence {
            watched: Watched::new(mode),
            changes: Changes::default(),
            lookups: Lookups::default(),
            index: DirIndex::default(),
            misses: Misses::default(),
            series: AtomicU64::new(0),
            hot: HotFiles::default(),
            queue: Queue::default(),
            events: AtomicU64::new(0),
            invalidations: Arc::default(),
            telling: Arc::default(),
        }
    }

    /// Whether nothing may be cached.
    pub(crate) fn strict(&self) -> bool {
        self.watched.mode == Mode::Strict
    }

    /// What was learnt of directories before is not vouched for any more.
    fn learnt_counts_no_more(&self) {
        self.changes.structure_changed();
        self.lookups.dir_caches.forget_all();
    }

    /// Events read and invalidations sent since the mount, for `status`.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.events.load(Ordering::Relaxed),
            self.invalidations.load(Ordering::Relaxed),
        )
    }
}
