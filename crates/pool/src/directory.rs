//! A directory of several branches: its copies, what is remembered of it, and its listing.

pub(crate) mod attr;
pub(crate) mod choose;
pub(crate) mod clone_path;
pub(crate) mod clones;
pub(crate) mod copy;
pub(crate) mod deadline;
pub(crate) mod do_without;
pub(crate) mod exposed;
pub(crate) mod fds;
pub(crate) mod follow;
pub(crate) mod forget;
pub(crate) mod likeness;
pub(crate) mod listing;
pub(crate) mod listing_cache;
pub(crate) mod locate;
pub(crate) mod lookup;
pub(crate) mod reading;
pub(crate) mod recall;
pub(crate) mod removed_files;
pub(crate) mod set;
pub(crate) mod symlinkify;
pub(crate) mod workers;

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::base::once_a_minute::OnceAMinute;
use crate::coherence::Coherent;
use crate::state::node::DirSet;
use clones::Clones;
use fds::DirFdCache;
use listing_cache::ListingCache;
use recall::Recall;
use removed_files::RemovedFiles;
use workers::WorkerPools;

/// What the branches' directories are known to hold, and what is kept open of them.
pub struct Directories {
    coherent: Coherent,
    pub(crate) dir_fds: DirFdCache,
    pub(crate) removed_files: RemovedFiles,
    pub(crate) listing_cache: ListingCache,
    /// Directories that are being cloned.
    pub(crate) clones: Clones,
    pub(crate) worker_pools: WorkerPools,
    pub(crate) recall: Recall,
    /// That nothing can be made in a directory.
    pub(crate) refusal_told: OnceAMinute,
    /// When a directory last got a copy that lets others do what, see [`DirSet::narrowed_ms`].
    narrowed_ms: AtomicU64,
    pub(crate) me: Weak<Directories>,
}

impl Directories {
    /// Of a pool that is being made, of which so many descriptors may be kept.
    pub(crate) fn new(coherent: Coherent, descriptors: usize) -> Arc<Directories> {
        Arc::new_cyclic(|me| Directories {
            coherent,
            dir_fds: DirFdCache::new(descriptors),
            removed_files: RemovedFiles::default(),
            listing_cache: ListingCache::default(),
            clones: Clones::default(),
            worker_pools: WorkerPools::default(),
            recall: Recall::default(),
            refusal_told: OnceAMinute::default(),
            narrowed_ms: AtomicU64::new(0),
            me: me.clone(),
        })
    }

    /// When a directory last got a copy that lets others do what.
    pub(crate) fn narrowed_ms(&self) -> u64 {
        self.narrowed_ms.load(Ordering::Acquire)
    }

    /// Notes when a directory got such a copy.
    pub(crate) fn note_narrowed(&self, set: &DirSet) {
        // Of hardly any: where nothing is new the cache line stays shared.
        if set.narrowed_ms > self.narrowed_ms() {
            self.narrowed_ms
                .fetch_max(set.narrowed_ms, Ordering::AcqRel);
        }
    }
}

impl Deref for Directories {
    type Target = Coherent;

    fn deref(&self) -> &Coherent {
        &self.coherent
    }
}
