//! Open directories: a listing made once, merged over the branches, with stable offsets.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use strandfs_fuse::{FileKind, Handle};

use crate::branch::BranchId;
use crate::node::Node;

/// One name in a listing.
#[derive(Clone, Copy)]
pub struct Listed {
    start: usize,
    len: usize,
    /// Inode number as users see it.
    pub ino: u64,
    /// Type, if the branch told.
    pub kind: Option<FileKind>,
    /// The branch it was first found on.
    pub branch: BranchId,
    /// The number is that of a node the kernel knows.
    pub live: bool,
}

impl Listed {
    /// What is known of a name beside the name.
    pub fn new(ino: u64, kind: Option<FileKind>, branch: BranchId, live: bool) -> Self {
        Listed {
            start: 0,
            len: 0,
            ino,
            kind,
            branch,
            live,
        }
    }
}

/// All names of a directory at one moment.
#[derive(Default)]
pub struct Listing {
    names: Vec<u8>,
    entries: Vec<Listed>,
}

impl Listing {
    /// Adds a name; `entry` says the rest.
    pub fn push(&mut self, name: &OsStr, entry: Listed) {
        let start = self.names.len();
        self.names.extend_from_slice(name.as_bytes());
        self.entries.push(Listed {
            start,
            len: name.len(),
            ..entry
        });
    }

    /// Takes out the second and later of equal names, keeping the order. The first takes over
    /// the number of a live one: a directory keeps the number of the branch it was first seen
    /// on while it is known, wherever it appears later.
    pub fn keep_first_of_each_name(&mut self) {
        let names = &self.names;
        let name_of = |entry: &Listed| names.get(entry.start..entry.start + entry.len);
        let mut firsts: HashMap<&[u8], usize> = HashMap::with_capacity(self.entries.len());
        let mut kept: Vec<Listed> = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let Some(name) = name_of(entry) else { continue };
            match firsts.get(name).and_then(|index| kept.get_mut(*index)) {
                None => {
                    firsts.insert(name, kept.len());
                    kept.push(*entry);
                }
                Some(first) if entry.live && !first.live => {
                    first.ino = entry.ino;
                    first.live = true;
                }
                Some(_) => {}
            }
        }
        self.entries = kept;
    }

    /// The entry at `index` and its name.
    pub fn get(&self, index: usize) -> Option<(Listed, &OsStr)> {
        let entry = *self.entries.get(index)?;
        let name = self.names.get(entry.start..entry.start + entry.len)?;
        Some((entry, OsStr::from_bytes(name)))
    }
}

/// One open directory of the pool.
pub struct OpenDir {
    /// The directory.
    pub node: Arc<Node>,
    /// Made at the first read, remade when reading starts over.
    pub listing: RwLock<Option<Arc<Listing>>>,
}

/// All open directories by handle.
pub struct DirHandles {
    open: papaya::HashMap<u64, Arc<OpenDir>>,
    next: AtomicU64,
}

impl Default for DirHandles {
    fn default() -> Self {
        DirHandles {
            open: papaya::HashMap::new(),
            next: AtomicU64::new(1),
        }
    }
}

impl DirHandles {
    /// Opens a directory.
    pub fn insert(&self, node: Arc<Node>) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let opened = OpenDir {
            node,
            listing: RwLock::new(None),
        };
        self.open.pin().insert(handle, Arc::new(opened));
        Handle(handle)
    }

    /// An open directory.
    pub fn get(&self, handle: Handle) -> Option<Arc<OpenDir>> {
        self.open.pin().get(&handle.0).cloned()
    }

    /// Closes one.
    pub fn remove(&self, handle: Handle) -> Option<Arc<OpenDir>> {
        self.open.pin().remove(&handle.0).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_names_stays() {
        let mut listing = Listing::default();
        for (name, branch) in [("b", 0), ("a", 0), ("b", 1), ("c", 1)] {
            listing.push(
                OsStr::new(name),
                Listed::new(1, None, BranchId(branch), branch == 1),
            );
        }
        listing.keep_first_of_each_name();
        let names: Vec<_> = (0..3)
            .map(|i| listing.get(i).unwrap().1.to_owned())
            .collect();
        assert_eq!(names, ["b", "a", "c"]);
        assert_eq!(listing.get(0).unwrap().0.branch, BranchId(0));
        assert!(
            listing.get(0).unwrap().0.live,
            "the live number was taken over"
        );
        assert!(listing.get(3).is_none());
    }
}
