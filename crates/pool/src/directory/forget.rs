//! Nodes that the kernel has let go of.

use std::sync::Arc;

use strandfs_fuse::Entry;

use crate::coherence::copies;
use crate::directory::{Directories, removed_files};
use crate::state::identity::split_id;
use crate::state::node::Node;

/// An entry of which the kernel is not told after all.
pub(crate) fn take_back(pool: &Directories, entry: &Entry) {
    if let Some(node) = pool.nodes.get(entry.node) {
        unref(pool, &node, 1);
    }
}

/// Drops references; what a dead node held is given back.
pub(crate) fn unref(pool: &Directories, node: &Arc<Node>, count: u64) {
    // Noted before the node is gone: a file handle may be opened at any moment.
    let remember = || {
        // A directory's id may come from any of its copies.
        let place = node.place();
        place
            .copies
            .iter()
            .for_each(|copy| pool.volumes.remember(copy));
        if let (2.., Some((volume, ino))) = (place.copies.len(), split_id(node.id)) {
            pool.volumes.remember_elder(volume, ino);
        }
    };
    if !pool.nodes.unref(node, count, remember) {
        return;
    }
    removed_files::forget(pool, node);
    if node.is_dir() {
        copies::forget_copies(pool, node);
        let dropped = node.place_mut().dirs.take();
        if let Some(set) = dropped {
            pool.dir_fds.forget(set.entries.len());
        }
    }
}
