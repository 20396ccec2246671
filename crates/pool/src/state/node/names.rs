//! The names a node is known by.

use std::ffi::{OsStr, OsString};

use smallvec::SmallVec;
use strandfs_fuse::NodeId;

/// At most this many names of a hard-linked file are remembered; the inode is also found
/// without any (by handle), so this bounds memory, not ability.
const NAMES_MAX: usize = 8;

/// A dentry: the parent's node and the name in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The directory.
    pub parent: NodeId,
    /// The name in it.
    pub name: Box<OsStr>,
}

/// Known names, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Names {
    list: SmallVec<[Name; 1]>,
}

impl Names {
    /// One name.
    pub fn one(parent: NodeId, name: &OsStr) -> Self {
        let mut names = Names::default();
        names.add(parent, name);
        names
    }

    /// The name added last.
    pub fn newest(&self) -> Option<&Name> {
        self.list.last()
    }

    /// All of them, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Name> {
        self.list.iter().rev()
    }

    /// Whether this is the name added last.
    pub fn newest_is(&self, parent: NodeId, name: &OsStr) -> bool {
        self.newest()
            .is_some_and(|newest| newest.parent == parent && *newest.name == *name)
    }

    /// Makes this the newest name.
    pub fn add(&mut self, parent: NodeId, name: &OsStr) {
        self.remove(parent, name);
        if self.list.len() == NAMES_MAX {
            self.list.remove(0);
        }
        self.list.push(Name {
            parent,
            name: OsString::from(name).into_boxed_os_str(),
        });
    }

    /// Makes this the only name.
    pub fn replace_all(&mut self, parent: NodeId, name: &OsStr) {
        self.list.clear();
        self.add(parent, name);
    }

    /// Drops a name.
    pub fn remove(&mut self, parent: NodeId, name: &OsStr) {
        self.list
            .retain(|known| known.parent != parent || *known.name != *name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_newest_last() {
        let mut names = Names::default();
        for index in 0..20 {
            names.add(NodeId(1), OsStr::new(&format!("n{index}")));
        }
        assert_eq!(names.iter().count(), NAMES_MAX);
        assert!(names.newest_is(NodeId(1), OsStr::new("n19")));
        names.add(NodeId(1), OsStr::new("n15"));
        assert!(names.newest_is(NodeId(1), OsStr::new("n15")));
        assert_eq!(names.iter().count(), NAMES_MAX);
        names.remove(NodeId(1), OsStr::new("n15"));
        assert!(names.newest_is(NodeId(1), OsStr::new("n19")));
    }
}
