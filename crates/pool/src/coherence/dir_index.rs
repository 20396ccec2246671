//! Directories of branches by inode: to which directory of the pool each belongs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::{SmallVec, smallvec};
use strandfs_fuse::NodeId;

use crate::state::identity::{Identity, NumberHash, VolumeId};
use crate::state::node::{Node, NodeTable};

/// Entries before forgotten ones are first looked for.
const SWEEP_MIN: usize = 4096;

/// The directories that the node table does not find by number: all copies but the one a node
/// has its id from.
pub(crate) struct DirIndex {
    /// A copy that moved may be noted for the directory it left, too: that costs an invalidation.
    nodes: papaya::HashMap<(VolumeId, u64), SmallVec<[NodeId; 1]>, NumberHash>,
    sweep_at: AtomicUsize,
}

impl Default for DirIndex {
    fn default() -> Self {
        DirIndex {
            nodes: papaya::HashMap::with_hasher(NumberHash),
            sweep_at: AtomicUsize::new(SWEEP_MIN),
        }
    }
}

impl DirIndex {
    /// Notes the copies of a node. Entries are never taken out while the node lives: a copy that
    /// moved away may come back before anyone looks.
    pub fn note(&self, table: &NodeTable, node: NodeId, copies: &[Identity]) {
        for copy in copies {
            if copy.derived_id() != Some(node) {
                self.note_inode(table, node, (copy.volume, copy.ino));
            }
        }
    }

    /// Notes that an inode of a branch may be a copy of a node.
    pub fn note_inode(&self, table: &NodeTable, node: NodeId, key: (VolumeId, u64)) {
        let nodes = self.nodes.pin();
        if nodes.get(&key).is_some_and(|ids| ids.contains(&node)) {
            return;
        }
        nodes.update_or_insert_with(
            key,
            |ids| {
                let alive = ids.iter().filter(|id| table.get(**id).is_some());
                alive.copied().chain([node]).collect()
            },
            || smallvec![node],
        );
        if nodes.len() > self.sweep_at.load(Ordering::Relaxed) {
            nodes.retain(|_, ids| ids.iter().any(|id| table.get(*id).is_some()));
            let next = nodes.len().saturating_mul(2).max(SWEEP_MIN);
            self.sweep_at.store(next, Ordering::Relaxed);
        }
    }

    /// Drops the copies of a node that the kernel has forgotten, and that is in the table no more. A
    /// node of the same number may be there by now: its copies stay, and the caller notes them anew
    /// if it came meanwhile.
    pub fn forget(&self, table: &NodeTable, node: NodeId, copies: &[Identity]) {
        if self.nodes.is_empty() {
            return;
        }
        let nodes = self.nodes.pin();
        for copy in copies {
            let _ = nodes.remove_if(&(copy.volume, copy.ino), |_, ids| {
                ids[..] == [node] && table.get(node).is_none()
            });
        }
    }

    /// The nodes that an inode number of a branch may belong to, as far as the kernel knows them.
    pub fn find(&self, table: &NodeTable, volume: VolumeId, ino: u64) -> SmallVec<[Arc<Node>; 2]> {
        let mut found = table.find_all(volume, ino);
        if let Some(ids) = self.nodes.pin().get(&(volume, ino)) {
            let noted = ids.iter().filter_map(|id| table.get(*id));
            for node in noted {
                if found.iter().all(|known| known.id != node.id) {
                    found.push(node);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use strandfs_fuse::FileKind;

    use super::*;
    use crate::base::branch::BranchId;
    use crate::state::identity::Presented;
    use crate::state::node::Names;

    fn copy(volume: u16, ino: u64) -> Identity {
        Identity {
            branch: BranchId(volume),
            volume: VolumeId(volume),
            generation: 1,
            ino,
            btime_ns: 1,
            presented: Presented::Own,
        }
    }

    #[test]
    fn every_copy_leads_to_the_node_until_it_is_forgotten() {
        let (table, index) = (NodeTable::default(), DirIndex::default());
        let copies: SmallVec<[Identity; 1]> = smallvec![copy(0, 7), copy(1, 9)];
        let names = Names::one(NodeId::ROOT, OsStr::new("d"));
        let node = table
            .find_or_make(copies.clone(), FileKind::Directory, 1, names)
            .unwrap();
        index.note(&table, node.id, &copies);
        for (volume, ino) in [(0, 7), (1, 9)] {
            let found = index.find(&table, VolumeId(volume), ino);
            assert!(found.iter().map(|node| node.id).eq([node.id]));
        }
        assert!(index.find(&table, VolumeId(1), 7).is_empty());
        assert!(table.unref(&node, 1, || ()));
        index.forget(&table, node.id, &copies);
        assert!(index.nodes.is_empty());
    }

    /// One thread serves the kernel's FORGET, another its next LOOKUP.
    #[test]
    fn a_directory_that_is_forgotten_and_looked_up_at_once_keeps_its_copies() {
        let (table, index) = (NodeTable::default(), DirIndex::default());
        let copies: SmallVec<[Identity; 1]> = smallvec![copy(0, 7), copy(1, 9)];
        let look_up = || {
            let names = Names::one(NodeId::ROOT, OsStr::new("d"));
            let node = table.find_or_make(copies.clone(), FileKind::Directory, 1, names);
            let node = node.unwrap();
            index.note(&table, node.id, &copies);
            node
        };
        let forgotten = look_up();
        assert!(table.unref(&forgotten, 1, || ()));
        let again = look_up();
        assert_eq!(again.id, forgotten.id, "the scene is set");
        index.forget(&table, forgotten.id, &copies);
        let found = index.find(&table, VolumeId(1), 9);
        assert!(found.iter().any(|node| Arc::ptr_eq(node, &again)));
    }

    #[test]
    fn a_recycled_number_leads_to_old_and_new() {
        let (table, index) = (NodeTable::default(), DirIndex::default());
        let names = Names::one(NodeId::ROOT, OsStr::new("d"));
        for generation in 1..4 {
            let copies = smallvec![Identity {
                generation,
                ..copy(0, 7)
            }];
            let node = table
                .find_or_make(copies, FileKind::Directory, 1, names.clone())
                .unwrap();
            let found = index.find(&table, VolumeId(0), 7);
            assert!(found.iter().any(|known| known.id == node.id));
        }
    }
}
