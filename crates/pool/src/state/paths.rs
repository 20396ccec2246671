//! From a node up to the root.

use std::sync::Arc;

use strandfs_fuse::NodeId;

use crate::state::State;
use crate::state::node::Node;

/// Directory components a chain of parents may have: PATH_MAX allows 2047 one-letter names, and
/// a process may go deeper step by step.
pub(crate) const DEPTH_MAX: usize = 65_536;

/// The path of a node below the pool's root, for messages and policies that need one.
pub fn relative_path(pool: &State, node: &Arc<Node>) -> Option<std::path::PathBuf> {
    let mut parts = Vec::new();
    let mut at = Arc::clone(node);
    while at.id != NodeId::ROOT {
        let name = at.name()?;
        parts.push(name.name);
        at = pool.nodes.get(name.parent)?;
        if parts.len() == DEPTH_MAX {
            return None;
        }
    }
    Some(parts.iter().rev().map(|part| &**part).collect())
}

/// The node of the directory that holds `node`'s newest name.
pub(crate) fn parent_of(pool: &State, node: &Arc<Node>) -> Option<Arc<Node>> {
    let parent = node.place().names.newest()?.parent;
    pool.nodes.get(parent)
}
