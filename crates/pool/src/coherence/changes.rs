//! What changed since when, in fixed room: a counter, and when each of some thousand groups of
//! names and inodes last changed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::hash::{mix, stable_hash};

const GROUPS: usize = 4096;

/// A point in the sequence of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch(pub u64);

/// What may change: an inode or a name in a directory, by a number that others may share. To
/// share one only costs an answer its place in a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key(u64);

impl Key {
    /// The inode of this number, on any filesystem.
    pub fn inode(ino: u64) -> Self {
        Key(mix(ino))
    }

    /// A name in the directory of this number.
    pub fn name(dir_ino: u64, name: &OsStr) -> Self {
        Key(mix(dir_ino ^ stable_hash(name.as_bytes())))
    }
}

/// Changes by key.
///
/// A listener notes a change and then looks what the kernel was given (`KernelCache`); a request
/// notes what it is about to give and then looks for changes. One of them must see the other: both
/// stores come before both looks in one order (`SeqCst`).
pub(crate) struct Changes {
    count: AtomicU64,
    last: Box<[AtomicU64]>,
    /// Everything changed at this count.
    everything: AtomicU64,
    /// Counts changes of directories: a directory's branches are known while it stands still.
    structure: AtomicU64,
}

impl Default for Changes {
    fn default() -> Self {
        Changes {
            count: AtomicU64::new(0),
            last: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            everything: AtomicU64::new(0),
            structure: AtomicU64::new(0),
        }
    }
}

impl Changes {
    /// Now, for a look at the changes since, later.
    pub fn now(&self) -> Epoch {
        Epoch(self.count.load(Ordering::SeqCst))
    }

    /// The state of directories over all branches; as long as it stays, so do they.
    pub fn structure(&self) -> u64 {
        self.structure.load(Ordering::Acquire)
    }

    /// Directories changed their branches: what is known of them must be looked at again.
    pub fn structure_changed(&self) {
        self.structure.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes a change. To be called before anybody is told of it.
    pub fn note(&self, key: Key) {
        if let Some(last) = self.slot(key) {
            self.note_in(last);
        }
    }

    /// Notes that anything may have changed.
    pub fn note_everything(&self) {
        self.note_in(&self.everything);
    }

    /// Several threads may note at once, and then the same count: each is later than any moment
    /// that began before its change.
    fn note_in(&self, last: &AtomicU64) {
        let count = self.count.load(Ordering::SeqCst) + 1;
        last.fetch_max(count, Ordering::SeqCst);
        self.count.fetch_max(count, Ordering::SeqCst);
    }

    /// Whether what `keys` stand for may have changed since.
    pub fn since(&self, moment: Epoch, keys: impl IntoIterator<Item = Key>) -> bool {
        if self.count.load(Ordering::SeqCst) == moment.0 {
            return false;
        }
        self.everything.load(Ordering::SeqCst) > moment.0
            || keys.into_iter().any(|key| {
                self.slot(key)
                    .is_none_or(|last| last.load(Ordering::SeqCst) > moment.0)
            })
    }

    fn slot(&self, key: Key) -> Option<&AtomicU64> {
        self.last.get(key.0 as usize % GROUPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_by_those_who_began_before() {
        let changes = Changes::default();
        let (name, other) = (Key::name(5, OsStr::new("a")), Key::name(5, OsStr::new("b")));
        let before = changes.now();
        assert!(!changes.since(before, [name]));
        changes.note(name);
        assert!(changes.since(before, [other, name]));
        assert!(!changes.since(before, [other]));
        assert!(!changes.since(changes.now(), [name]));
        changes.note_everything();
        assert!(changes.since(before, [other]));
        assert!(!changes.since(changes.now(), [other]));
    }
}
