//! What the kernel may hold of a node in its caches.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::base::hash::{mix, stable_hash};

/// What the kernel was given to keep.
///
/// Whoever gives notes that before a last look whether anything has changed; whoever has seen a
/// change notes the change before a look at what was given. One of the two sees the other: that
/// takes one order of all these steps (`SeqCst`, as in `Changes`).
#[derive(Default)]
pub struct KernelCache {
    mark: AtomicU64,
    attributes: AtomicBool,
    /// A directory's: marks of the names that the kernel was ever told lead to directories in it.
    dir_names: AtomicU64,
}

impl KernelCache {
    /// The series of a directory's listings that the kernel may keep, and since when nothing may
    /// have changed; 0 for none.
    pub fn listing_mark(&self) -> u64 {
        self.mark.load(Ordering::SeqCst)
    }

    /// The kernel may keep listings of another series.
    pub fn set_listing_mark(&self, mark: u64) {
        self.mark.store(mark, Ordering::SeqCst);
    }

    /// Listings that begin from now on are of another series.
    pub(super) fn end_listings(&self) {
        if self.listing_mark() != 0 {
            self.set_listing_mark(0);
        }
    }

    /// Notes the fingerprint of a file's content (`cache.files=auto-full`); whether the page cache
    /// may hold the same.
    pub fn has_content(&self, fingerprint: u64) -> bool {
        self.mark.swap(fingerprint, Ordering::Relaxed) == fingerprint
    }

    /// Notes that the kernel is about to be given attributes to keep.
    pub fn give_attributes(&self) {
        self.attributes.store(true, Ordering::SeqCst);
    }

    /// The kernel is about to be told to drop the attributes; whether it was given any since it was
    /// last told.
    pub fn take_attributes(&self) -> bool {
        self.attributes.swap(false, Ordering::SeqCst)
    }

    /// Notes that `name` in this directory leads to a directory, before the kernel is told so.
    pub fn note_dir(&self, name: &OsStr) {
        let mark = name_mark(name);
        if self.dir_names.load(Ordering::Relaxed) & mark == 0 {
            self.dir_names.fetch_or(mark, Ordering::SeqCst);
        }
    }

    /// Whether the kernel may hold a directory under `name` in this one. To be wrong about it costs
    /// a few notifications more; to know it costs no look at a branch.
    pub fn may_hold_dir(&self, name: &OsStr) -> bool {
        self.dir_names.load(Ordering::SeqCst) & name_mark(name) != 0
    }
}

/// One bit of 64, which other names may share.
fn name_mark(name: &OsStr) -> u64 {
    1 << (mix(stable_hash(name.as_bytes())) >> 58)
}
