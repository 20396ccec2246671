//! Open directories: a listing made once, merged over the branches, with stable offsets.

use std::collections::HashSet;
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
}

/// All names of a directory at one moment.
#[derive(Default)]
pub struct Listing {
    names: Vec<u8>,
    entries: Vec<Listed>,
}

impl Listing {
    /// Adds a name.
    pub fn push(&mut self, name: &OsStr, ino: u64, kind: Option<FileKind>, branch: BranchId) {
        let start = self.names.len();
        self.names.extend_from_slice(name.as_bytes());
        self.entries.push(Listed {
            start,
            len: name.len(),
            ino,
            kind,
            branch,
        });
    }

    /// Takes out the second and later of equal names, keeping the order.
    pub fn keep_first_of_each_name(&mut self) {
        let names = &self.names;
        let mut seen: HashSet<&[u8]> = HashSet::with_capacity(self.entries.len());
        self.entries.retain(|entry| {
            names
                .get(entry.start..entry.start + entry.len)
                .is_some_and(|name| seen.insert(name))
        });
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
            listing.push(OsStr::new(name), 1, None, BranchId(branch));
        }
        listing.keep_first_of_each_name();
        let names: Vec<_> = (0..3)
            .map(|i| listing.get(i).unwrap().1.to_owned())
            .collect();
        assert_eq!(names, ["b", "a", "c"]);
        assert_eq!(listing.get(0).unwrap().0.branch, BranchId(0));
        assert!(listing.get(3).is_none());
    }
}
