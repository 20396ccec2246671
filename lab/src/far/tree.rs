//! The names that the kernel knows, by node.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use strandfs_fuse::NodeId;

struct Node {
    /// None where the name is gone.
    place: Option<(NodeId, OsString)>,
    /// How often the kernel has been told of it.
    lookups: u64,
}

/// Nodes by number, and by name.
#[derive(Default)]
pub struct Tree {
    nodes: HashMap<NodeId, Node>,
    names: HashMap<(NodeId, OsString), NodeId>,
    made: u64,
}

impl Tree {
    /// Where a node is, from the root; `None` if its name is gone.
    pub fn path(&self, node: NodeId) -> Option<PathBuf> {
        let mut parts = Vec::new();
        let mut at = node;
        while at != NodeId::ROOT {
            let (parent, name) = self.nodes.get(&at)?.place.as_ref()?;
            parts.push(name);
            at = *parent;
        }
        Some(parts.into_iter().rev().collect())
    }

    /// The node of a name that was found; the kernel is told of it once more.
    pub fn looked_up(&mut self, parent: NodeId, name: &OsStr) -> NodeId {
        let place = (parent, name.to_owned());
        if let Some(&known) = self.names.get(&place)
            && let Some(node) = self.nodes.get_mut(&known)
        {
            node.lookups += 1;
            return known;
        }
        self.made += 1;
        let id = NodeId(NodeId::ROOT.0 + self.made);
        let node = Node {
            place: Some(place.clone()),
            lookups: 1,
        };
        self.nodes.insert(id, node);
        self.names.insert(place, id);
        id
    }

    /// A node that the kernel knows no more has no number.
    pub fn forget(&mut self, node: NodeId, lookups: u64) {
        let Some(known) = self.nodes.get_mut(&node) else {
            return;
        };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            if let Some(place) = known.place.take() {
                self.names.remove(&place);
            }
            self.nodes.remove(&node);
        }
    }

    /// A name is gone; what is open of it stays.
    pub fn removed(&mut self, parent: NodeId, name: &OsStr) {
        let gone = self.names.remove(&(parent, name.to_owned()));
        if let Some(node) = gone.and_then(|it| self.nodes.get_mut(&it)) {
            node.place = None;
        }
    }

    /// What had the one name has the other, with all that lies below it.
    pub fn renamed(&mut self, from: (NodeId, &OsStr), to: (NodeId, &OsStr)) {
        self.removed(to.0, to.1);
        let (from, to) = ((from.0, from.1.to_owned()), (to.0, to.1.to_owned()));
        if let Some(moved) = self.names.remove(&from) {
            if let Some(node) = self.nodes.get_mut(&moved) {
                node.place = Some(to.clone());
            }
            self.names.insert(to, moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_lies_below_a_renamed_directory_goes_with_it_and_what_was_replaced_has_no_name() {
        let mut tree = Tree::default();
        let name = OsStr::new;
        let old = tree.looked_up(NodeId::ROOT, name("old"));
        let file = tree.looked_up(old, name("f"));
        let replaced = tree.looked_up(NodeId::ROOT, name("new"));
        assert_eq!(tree.looked_up(old, name("f")), file);
        tree.renamed((NodeId::ROOT, name("old")), (NodeId::ROOT, name("new")));
        assert_eq!(tree.path(file).as_deref(), Some(Path::new("new/f")));
        assert_eq!(tree.path(replaced), None);
        assert_eq!(tree.looked_up(NodeId::ROOT, name("new")), old);
        // Told of twice: known until both are taken back.
        tree.forget(file, 1);
        assert!(tree.path(file).is_some());
        tree.forget(file, 1);
        assert_eq!(tree.path(file), None);
        assert!(tree.looked_up(old, name("f")) != file);
    }
}
