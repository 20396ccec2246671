//! The names of the control file, which lies on no branch: other operations keep off them.

use std::ffi::OsStr;

use rustix::io::Errno;
use strandfs_fuse::NodeId;

use crate::base::error::Result;

/// The names in the root, with their nodes: ids that are neither derived nor counted.
pub(crate) const FILES: [(&str, NodeId, u64); 2] = [
    (".strandfs", NodeId(u64::MAX >> 1), 2),
    (".mergerfs", NodeId((u64::MAX >> 1) - 1), 3),
];

/// Whether a name in a directory is the control file's.
pub(crate) fn is_control_name(parent: NodeId, name: &OsStr) -> bool {
    parent == NodeId::ROOT && FILES.iter().any(|(known, ..)| name == *known)
}

/// Whether a node is the control file.
pub(crate) fn is_control_node(node: NodeId) -> bool {
    FILES.iter().any(|(_, known, _)| node == *known)
}

/// Refuses to make, move or remove the control file.
///
/// # Errors
/// EPERM.
pub(crate) fn refuse_control_name(parent: NodeId, name: &OsStr) -> Result<()> {
    match is_control_name(parent, name) {
        true => Err(Errno::PERM.into()),
        false => Ok(()),
    }
}

/// Refuses what only files with bytes can do.
///
/// # Errors
/// EPERM.
pub(crate) fn refuse_control_node(node: NodeId) -> Result<()> {
    match is_control_node(node) {
        true => Err(Errno::PERM.into()),
        false => Ok(()),
    }
}
