//! Open directories: a listing made once, merged over the branches, with stable offsets.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use strandfs_fuse::{FileKind, Handle};

use crate::branch::BranchId;
use crate::coherence::Moment;
use crate::identity::{VolumeId, mix, stable_hash};
use crate::node::Node;

/// One name in a listing.
#[derive(Clone, Copy)]
pub struct Listed {
    start: usize,
    len: usize,
    /// Inode number on its branch.
    pub ino: u64,
    /// Type there, if the branch told.
    pub kind: Option<FileKind>,
    /// The branch it was first found on.
    pub branch: BranchId,
    /// The filesystem there.
    pub volume: VolumeId,
    /// Further branches have the name too.
    pub repeated: bool,
    /// Where reading goes on after it: made from the branch and the name, so that it means the
    /// same in every listing of the directory, whatever came or went between two of them.
    pub cookie: u64,
}

/// Of a cookie, which has 63 bits because the offset of lseek(2) is signed.
const HASH_BITS: u32 = 48;
const POSITION_MAX: u64 = (1 << (62 - HASH_BITS)) - 1;

/// All names of a directory at one moment.
#[derive(Default)]
pub struct Listing {
    names: Vec<u8>,
    entries: Vec<Listed>,
}

impl Listing {
    /// Adds a name; where it was found is said later, see [`Listing::set_origin`].
    pub fn push(&mut self, name: &OsStr, ino: u64, kind: Option<FileKind>) {
        let start = self.names.len();
        self.names.extend_from_slice(name.as_bytes());
        self.entries.push(Listed {
            start,
            len: name.len(),
            ino,
            kind,
            branch: BranchId(u16::MAX),
            volume: VolumeId(u16::MAX),
            repeated: false,
            cookie: 0,
        });
    }

    /// Says where the names from index `start` on were found.
    pub fn set_origin(&mut self, start: usize, branch: BranchId, volume: VolumeId) {
        for entry in self.entries.iter_mut().skip(start) {
            (entry.branch, entry.volume) = (branch, volume);
        }
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Drops the names from index `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
    }

    /// Adds the names of another listing behind the own ones.
    pub fn append(&mut self, other: &Listing) {
        let shift = self.names.len();
        self.names.extend_from_slice(&other.names);
        self.entries
            .extend(other.entries.iter().map(|entry| Listed {
                start: entry.start + shift,
                ..*entry
            }));
    }

    /// Drops the names that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&OsStr) -> bool) {
        let names = &self.names;
        self.entries.retain(|entry| {
            let name = names.get(entry.start..entry.start + entry.len);
            name.is_some_and(|name| keep(OsStr::from_bytes(name)))
        });
    }

    /// Gives the names their cookies and puts them into their order, that of the branches first.
    /// To be called once all are there.
    pub fn sort(&mut self, position: impl Fn(BranchId) -> usize) {
        for entry in &mut self.entries {
            let name = self.names.get(entry.start..entry.start + entry.len);
            let hash = mix(stable_hash(name.unwrap_or_default())) >> (64 - HASH_BITS);
            let at = (position(entry.branch) as u64).min(POSITION_MAX);
            entry.cookie = (at + 1) << HASH_BITS | hash;
        }
        self.entries
            .sort_unstable_by_key(|entry| (entry.cookie, entry.start));
        let mut last = 0;
        for entry in &mut self.entries {
            // Two names with one cookie are a rarity; both must be listed.
            entry.cookie = entry.cookie.max(last + 1);
            last = entry.cookie;
        }
    }

    /// The names after `cookie`.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (Listed, &OsStr)> {
        let start = self.entries.partition_point(|entry| entry.cookie <= cookie);
        (start..self.entries.len()).filter_map(|index| self.get(index))
    }

    /// Takes out the second and later of equal names, keeping the order.
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
                Some(first) => first.repeated = true,
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
    /// Made at the first read, remade when reading starts over; with when that began.
    pub listing: RwLock<Option<(Moment, Arc<Listing>)>>,
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
        let branch = |number, names: [&str; 2]| {
            let mut listing = Listing::default();
            for name in names {
                listing.push(OsStr::new(name), 1, None);
            }
            listing.set_origin(0, BranchId(number), VolumeId(number));
            listing
        };
        let mut listing = branch(0, ["b", "a"]);
        listing.append(&branch(1, ["b", "c"]));
        listing.keep_first_of_each_name();
        assert_eq!(listing.len(), 3);
        let seen: Vec<_> = (0..3).filter_map(|at| listing.get(at)).collect();
        let names: Vec<_> = seen
            .iter()
            .map(|(_, name)| name.to_str().unwrap())
            .collect();
        assert_eq!(names, ["b", "a", "c"]);
        let origins: Vec<_> = seen.iter().map(|(entry, _)| entry.branch.0).collect();
        assert_eq!(origins, [0, 0, 1]);
        let repeated: Vec<_> = seen.iter().map(|(entry, _)| entry.repeated).collect();
        assert_eq!(repeated, [true, false, false]);
    }

    #[test]
    fn reading_goes_on_where_it_was_whatever_came_and_went() {
        let list = |names: &[String]| {
            let mut listing = Listing::default();
            for name in names {
                listing.push(OsStr::new(name), 1, None);
            }
            listing.sort(|_| 0);
            listing
        };
        let many: Vec<String> = (0..1000).map(|number| format!("f{number}")).collect();
        let before = list(&many);
        let (middle, _) = before.after(0).nth(499).unwrap();
        let rest: Vec<_> = before.after(middle.cookie).map(|(_, name)| name).collect();
        assert_eq!(rest.len(), 500);
        // All that was read already is gone: not one of the rest is passed over.
        let left: Vec<String> = rest
            .iter()
            .map(|name| name.to_str().unwrap().into())
            .collect();
        let later = list(&left);
        assert!(later.after(middle.cookie).map(|(_, name)| name).eq(rest));
    }
}
