//! Which directories of the pool a directory of a branch is a copy of.

use crate::coherence::Coherent;
use crate::coherence::event::FileId;
use crate::coherence::invalidate::{self, Nodes};
use crate::state::node::Node;

/// Notes the copies of a directory, to be found when one of them changes.
pub(crate) fn note_copies(pool: &Coherent, node: &Node) {
    let place = node.place();
    pool.coherence
        .index
        .note(&pool.nodes, node.id, &place.copies);
}

/// The kernel has forgotten a directory, which is in the table no more. It may have looked it up
/// again already.
pub(crate) fn forget_copies(pool: &Coherent, node: &Node) {
    let index = &pool.coherence.index;
    index.forget(&pool.nodes, node.id, &node.place().copies);
    if let Some(again) = pool.nodes.get(node.id) {
        note_copies(pool, &again);
    }
}

/// Notes that the directory of a branch may be a copy of these of the pool.
pub(crate) fn note_copy(pool: &Coherent, id: &FileId, unions: &Nodes) {
    for inode in invalidate::inodes_of(pool, id) {
        for node in unions {
            pool.coherence.index.note_inode(&pool.nodes, node.id, inode);
        }
    }
}
