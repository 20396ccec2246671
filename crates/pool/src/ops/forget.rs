//! Nodes that the kernel has let go of.

use std::sync::Arc;

use crate::pool::Pool;
use crate::state::identity::split_id;
use crate::state::node::Node;

impl Pool {
    /// Drops references; what a dead node held is given back.
    pub(crate) fn unref(&self, node: &Arc<Node>, count: u64) {
        // Noted before the node is gone: a file handle may be opened at any moment.
        let remember = || {
            // A directory's id may come from any of its copies.
            let place = node.place();
            place
                .copies
                .iter()
                .for_each(|copy| self.volumes.remember(copy));
            if let (2.., Some((volume, ino))) = (place.copies.len(), split_id(node.id)) {
                self.volumes.remember_elder(volume, ino);
            }
        };
        if !self.nodes.unref(node, count, remember) {
            return;
        }
        if node.is_dir() {
            self.forget_copies(node);
            let dropped = node.place_mut().dirs.take();
            if let Some(set) = dropped {
                self.dir_fds.forget(set.entries.len());
            }
        }
    }
}
