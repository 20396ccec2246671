//! Directories that are being cloned to a branch: until one is like its model nobody sees it. It is
//! closed to all but its owner meanwhile, who is not yet the right one.

use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::fs::Statx;
use rustix::io::Errno;
use strandfs_fuse::FileKind;

use crate::base::sys;
use crate::coherence::CachedLookups;
use crate::directory::Directories;
use crate::state::identity::{Identity, kind_of};
use crate::state::node::DirEntry;

/// A name in the directory above.
type CloneName = (Identity, OsString);

/// Those of a pool. Where none is under way, looking costs two loads.
#[derive(Default)]
pub struct Clones {
    /// Counted before the first is made and after the last is finished.
    active: AtomicUsize,
    begun: AtomicU64,
    places: Mutex<Vec<CloneName>>,
}

/// From when on clones are looked out for.
#[derive(Clone, Copy)]
struct CloneWatch {
    idle: bool,
    begun: u64,
}

/// A clone is being made while this lives.
pub(crate) struct Making<'a> {
    clones: &'a Clones,
    place: CloneName,
}

impl Clones {
    /// To be called before a clone is made under `name` in `parent`.
    pub(crate) fn begin(&self, parent: &DirEntry, name: &OsStr) -> Making<'_> {
        let place = (parent.identity, name.to_owned());
        self.places.lock().push(place.clone());
        // In this order, for `watch` reads in the other.
        self.active.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::AcqRel);
        Making {
            clones: self,
            place,
        }
    }

    /// To be called before a name is looked at.
    fn watch(&self) -> CloneWatch {
        let begun = self.begun.load(Ordering::Acquire);
        CloneWatch {
            idle: self.active.load(Ordering::Acquire) == 0,
            begun,
        }
    }

    /// Whether what was seen since `watch` may have been a clone half made.
    fn disturbed(&self, watch: CloneWatch) -> bool {
        !watch.idle || self.begun.load(Ordering::Acquire) != watch.begun
    }

    /// Whether a clone is being made there.
    pub(crate) fn is_making(&self, parent: &DirEntry, name: &OsStr) -> bool {
        self.active.load(Ordering::Acquire) > 0
            && self
                .places
                .lock()
                .iter()
                .any(|(identity, making)| *identity == parent.identity && making == name)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut places = self.clones.places.lock();
        if let Some(index) = places.iter().position(|place| *place == self.place) {
            places.swap_remove(index);
        }
        self.clones.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What is under a name on a branch; nothing if it is a directory that is being cloned there.
///
/// # Errors
/// Those of `statx(2)`.
pub(crate) fn look_at_finished(
    pool: &Directories,
    remembered: &CachedLookups<'_>,
    dir: &DirEntry,
    name: &OsStr,
) -> sys::Result<Statx> {
    let watch = pool.clones.watch();
    let stat = remembered.look(dir, name)?;
    if kind_of(&stat) != FileKind::Directory || !pool.clones.disturbed(watch) {
        return Ok(stat);
    }
    match pool.clones.is_making(dir, name) {
        true => Err(Errno::NOENT),
        // It may have been finished since.
        false => remembered.look(dir, name),
    }
}
