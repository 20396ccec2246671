//! Pipes, sockets and devices that lose their last name while somebody has them open.
//!
//! The kernel opens them by itself, and the server holds nothing of them. They are held, by descriptors
//! that open nothing, from before the name goes until the kernel forgets the node.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, Statx};
use smallvec::SmallVec;
use strandfs_fuse::{FileKind, NodeId};

use crate::base::branch::Branch;
use crate::base::sys;
use crate::directory::Directories;
use crate::state::identity::kind_of;
use crate::state::node::{DirSet, Node};

/// What is held, by node.
#[derive(Default)]
pub(crate) struct RemovedFiles(Mutex<HashMap<NodeId, Arc<OwnedFd>>>);

/// What is opened for a removal that may fail.
pub(crate) type OpenedFiles = SmallVec<[(Arc<Node>, OwnedFd); 1]>;

/// Whether the kernel opens such a thing without the server.
fn is_opened_unseen(kind: FileKind) -> bool {
    !matches!(
        kind,
        FileKind::Regular | FileKind::Directory | FileKind::Symlink
    )
}

impl RemovedFiles {
    /// The node's, if its last name is gone.
    pub fn get(&self, node: &Node) -> Option<Arc<OwnedFd>> {
        if !is_opened_unseen(node.kind) {
            return None;
        }
        self.0.lock().get(&node.id).cloned()
    }
}

/// Opens what a name leads to, as found on branches, for those of its nodes that have no other way to
/// it once the name is gone. What cannot be opened is done without.
pub(crate) fn open_before_removal(
    pool: &Directories,
    set: &DirSet,
    name: &OsStr,
    found: &[(Arc<Branch>, Statx)],
    nodes: &[Arc<Node>],
) -> OpenedFiles {
    let mut opened = OpenedFiles::new();
    for node in nodes.iter().filter(|node| is_opened_unseen(node.kind)) {
        let own = |(branch, stat): &&(Arc<Branch>, Statx)| {
            let identity = node.primary();
            kind_of(stat) == node.kind && identity.is_some_and(|own| own.branch == branch.id)
        };
        let Some((branch, _)) = found.iter().find(own) else {
            continue;
        };
        opened.extend(set.on(branch.id).and_then(|dir| {
            let fd = open(pool, node, dir.fd.as_fd(), name)?;
            Some((Arc::clone(node), fd))
        }));
    }
    opened
}

/// The same where only one branch has the directory.
pub(crate) fn open_only(
    pool: &Directories,
    dir: &OwnedFd,
    name: &OsStr,
    nodes: &[Arc<Node>],
) -> OpenedFiles {
    let unseen = nodes.iter().filter(|node| is_opened_unseen(node.kind));
    unseen
        .filter_map(|node| Some((Arc::clone(node), open(pool, node, dir.as_fd(), name)?)))
        .collect()
}

fn open(
    pool: &Directories,
    node: &Node,
    dir: std::os::fd::BorrowedFd<'_>,
    name: &OsStr,
) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty()).ok()?;
    let stat = sys::statx_fd(fd.as_fd()).ok()?;
    let is_it = (node.primary()).is_some_and(|identity| pool.volumes.same(&identity, &stat));
    is_it.then_some(fd)
}

/// Holds what has no name left, as long as others have room: a user can make any number of pipes.
pub(crate) fn hold_removed(pool: &Directories, opened: OpenedFiles) {
    for (node, fd) in opened {
        let is_gone = sys::statx_fd(fd.as_fd()).is_ok_and(|stat| stat.stx_nlink == 0);
        if !is_gone || !pool.dir_fds.take_for_good(1) {
            continue;
        }
        let before = (pool.removed_files.0.lock()).insert(node.id, Arc::new(fd));
        if before.is_some() {
            pool.dir_fds.forget(1);
        }
        // Forgotten meanwhile: nobody would take it out again.
        let stays = pool.nodes.get(node.id);
        if !stays.is_some_and(|stays| Arc::ptr_eq(&stays, &node)) {
            forget(pool, &node);
        }
    }
}

/// The kernel has forgotten the node.
pub(crate) fn forget(pool: &Directories, node: &Node) {
    if is_opened_unseen(node.kind) && pool.removed_files.0.lock().remove(&node.id).is_some() {
        pool.dir_fds.forget(1);
    }
}

/// Lets go of what is on branches that have left the pool.
pub(crate) fn let_go_of_branches(pool: &Directories) {
    let view = Arc::clone(&pool.view());
    let held: Vec<NodeId> = pool.removed_files.0.lock().keys().copied().collect();
    for node in held.into_iter().filter_map(|id| pool.nodes.get(id)) {
        let branch = node.primary().map(|own| own.branch);
        if branch.is_none_or(|branch| view.branch(branch).is_none()) {
            forget(pool, &node);
        }
    }
}
