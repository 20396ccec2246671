//! Pipes, sockets and devices that lose their last name while somebody has them open, and files of which
//! another copy is open than the one that is shown (`func.open`, or where that one could not be opened).
//!
//! The kernel opens the former by itself, and the server holds nothing of either. They are held, by
//! descriptors that open nothing, from before the name goes until the kernel forgets the node.
//!
//! For a moment also what a thread looks up that came too late for a file before (`ops/sent_to_look.rs`).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, Statx};
use smallvec::SmallVec;
use strandfs_fuse::{FileKind, NodeId};

use crate::base::branch::Branch;
use crate::base::rank::{self, Mutex};
use crate::base::sys;
use crate::directory::Directories;
use crate::state::identity::kind_of;
use crate::state::node::{DirSet, Node};
use crate::state::open_file::OpenState;

/// What is held, by node.
#[derive(Default)]
pub(crate) struct RemovedFiles {
    held: Mutex<HashMap<NodeId, Held>, { rank::REMOVED_FILES }>,
    /// There was a regular file among them: else none is looked for when the kernel forgets one.
    regular: AtomicBool,
}

/// A file that is held.
struct Held {
    fd: Arc<OwnedFd>,
    /// Until when, in coarse milliseconds; `None`: until the kernel forgets the node.
    until_ms: Option<u64>,
}

/// How long a file is held that somebody is about to open.
const AWAITED_MS: u64 = 1000;
/// So many of those at most, for they cost others room.
const AWAITED_MAX: usize = 256;

/// What is opened for a removal that may fail.
pub(crate) type OpenedFiles = SmallVec<[(Arc<Node>, OwnedFd); 1]>;

/// Whether the kernel opens such a thing without the server.
fn is_opened_unseen(kind: FileKind) -> bool {
    !matches!(
        kind,
        FileKind::Regular | FileKind::Directory | FileKind::Symlink
    )
}

/// Whether what the node shows is held by none of its open files.
fn has_no_other_way(pool: &Directories, node: &Node) -> bool {
    match node.kind {
        FileKind::Regular if pool.view().branches.len() > 1 => {
            let is_elsewhere = |open: &OpenState| {
                let own = node.primary();
                own.is_some_and(|own| open.open_on(own.branch).is_none())
            };
            node.open.lock().as_deref().is_some_and(is_elsewhere)
        }
        kind => is_opened_unseen(kind),
    }
}

impl RemovedFiles {
    /// The node's, if its last name is gone.
    pub fn get(&self, node: &Node) -> Option<Arc<OwnedFd>> {
        match self.may_hold(node) {
            true => (self.held.lock().get(&node.id)).map(|held| Arc::clone(&held.fd)),
            false => None,
        }
    }

    /// Whether the node's may be among them.
    fn may_hold(&self, node: &Node) -> bool {
        let is_held = node.kind == FileKind::Regular && self.regular.load(Ordering::Acquire);
        is_held || is_opened_unseen(node.kind)
    }

    fn hold(&self, node: &Node, held: Held) -> Option<Held> {
        if node.kind == FileKind::Regular {
            self.regular.store(true, Ordering::Release);
        }
        self.held.lock().insert(node.id, held)
    }

    /// Lets go of what nobody came for; how many are awaited still.
    fn sweep(&self, pool: &Directories) -> usize {
        let now_ms = sys::mono_coarse_ms();
        let mut held = self.held.lock();
        let before = held.len();
        held.retain(|_, held| held.until_ms.is_none_or(|until_ms| now_ms < until_ms));
        pool.dir_fds.forget(before - held.len());
        held.values().filter(|held| held.until_ms.is_some()).count()
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
    for node in nodes.iter().filter(|node| has_no_other_way(pool, node)) {
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
    let held = nodes.iter().filter(|node| has_no_other_way(pool, node));
    held.filter_map(|node| Some((Arc::clone(node), open(pool, node, dir.as_fd(), name)?)))
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
        let held = Held {
            fd: Arc::new(fd),
            until_ms: None,
        };
        if pool.removed_files.hold(&node, held).is_some() {
            pool.dir_fds.forget(1);
        }
        // Forgotten meanwhile: nobody would take it out again.
        let stays = pool.nodes.get(node.id);
        if !stays.is_some_and(|stays| Arc::ptr_eq(&stays, &node)) {
            forget(pool, &node);
        }
    }
}

/// Holds a file that somebody is about to open, whose name others may take away first.
pub(crate) fn hold_awaited(pool: &Directories, node: &Arc<Node>, fd: Arc<OwnedFd>) {
    let files = &pool.removed_files;
    if files.sweep(pool) >= AWAITED_MAX || !pool.dir_fds.take_for_good(1) {
        return;
    }
    let until_ms = Some(sys::mono_coarse_ms().saturating_add(AWAITED_MS));
    files.regular.store(true, Ordering::Release);
    let mut held = files.held.lock();
    match held.get_mut(&node.id) {
        None => {
            held.insert(node.id, Held { fd, until_ms });
        }
        Some(held) => {
            pool.dir_fds.forget(1);
            if held.until_ms.is_some() {
                held.until_ms = until_ms;
            }
        }
    }
}

/// Lets go of files that nobody came to open.
pub(crate) fn let_go_of_awaited(pool: &Directories) {
    if pool.removed_files.regular.load(Ordering::Acquire) {
        pool.removed_files.sweep(pool);
    }
}

/// The kernel has forgotten the node.
pub(crate) fn forget(pool: &Directories, node: &Node) {
    if !pool.removed_files.may_hold(node) {
        return;
    }
    let held = pool.removed_files.held.lock().remove(&node.id);
    if held.is_some() {
        pool.dir_fds.forget(1);
    }
}

/// Lets go of what is on branches that have left the pool.
pub(crate) fn let_go_of_branches(pool: &Directories) {
    let view = Arc::clone(&pool.view());
    let held: Vec<NodeId> = pool.removed_files.held.lock().keys().copied().collect();
    for node in held.into_iter().filter_map(|id| pool.nodes.get(id)) {
        let branch = node.primary().map(|own| own.branch);
        if branch.is_none_or(|branch| view.branch(branch).is_none()) {
            forget(pool, &node);
        }
    }
}
