//! From a node up to the root.

use std::ffi::OsStr;
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

/// What a request is about, as a path from the pool's root for people: a node, or a name in it. None
/// where the node has no name any more.
pub(crate) fn shown_path(
    pool: &State,
    node: Option<&Arc<Node>>,
    name: Option<&OsStr>,
) -> Option<String> {
    let mut path = relative_path(pool, node?)?;
    if let Some(name) = name {
        path.push(name);
    }
    Some(format!("/{}", path.display()))
}

/// The node of the directory that holds `node`'s newest name.
pub(crate) fn parent_of(pool: &State, node: &Arc<Node>) -> Option<Arc<Node>> {
    let parent = node.place().names.newest()?.parent;
    pool.nodes.get(parent)
}
