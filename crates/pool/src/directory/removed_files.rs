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
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags, Statx};
use smallvec::SmallVec;
use strandfs_fuse::{FileKind, NodeId};

use crate::base::branch::Branch;
use crate::base::rank::{self, Mutex};
use crate::base::shares::{FairShare, FairShares};
use crate::base::sys;
use crate::directory::Directories;
use crate::state::identity::kind_of;
use crate::state::node::{DirSet, Node};
use crate::state::open_file::OpenState;

/// What is held, by node.
#[derive(Default)]
pub(crate) struct RemovedFiles {
    held: Mutex<HashMap<NodeId, Held>, { rank::REMOVED_FILES }>,
    /// How many regular files there are among them: without any none is looked for when the kernel forgets one.
    regular: AtomicUsize,
    awaited: FairShares,
}

/// A file that is held.
struct Held {
    fd: Arc<OwnedFd>,
    kind: FileKind,
    awaited: Option<Awaited>,
    _share: FairShare,
}

/// A file that somebody is about to open.
struct Awaited {
    /// In coarse milliseconds.
    until_ms: u64,
    _share: FairShare,
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
        let is_held = node.kind == FileKind::Regular && self.regular.load(Ordering::Acquire) > 0;
        is_held || is_opened_unseen(node.kind)
    }

    /// Holds a file, counted before anybody finds it. The one of two that goes: the other is held for longer.
    fn hold(&self, node: &Node, held: Held) -> Option<Held> {
        self.regular.fetch_add(regular(&held), Ordering::AcqRel);
        let mut all = self.held.lock();
        let (stays, goes) = match all.remove(&node.id) {
            Some(old) if held.awaited.is_some() => (old, Some(held)),
            old => (held, old),
        };
        all.insert(node.id, stays);
        drop(all);
        self.note_gone(goes.as_slice());
        goes
    }

    /// Whether the node's is held, if awaited until then.
    fn goes_on(&self, node: &Node, until_ms: u64) -> bool {
        match self.held.lock().get_mut(&node.id) {
            None => false,
            Some(held) => {
                let awaited = held.awaited.iter_mut();
                awaited.for_each(|awaited| awaited.until_ms = until_ms);
                true
            }
        }
    }

    fn note_gone(&self, gone: &[Held]) {
        let gone = gone.iter().map(regular).sum();
        self.regular.fetch_sub(gone, Ordering::AcqRel);
    }

    /// Lets go of what nobody came for.
    fn sweep(&self, pool: &Directories) {
        let now_ms = sys::mono_coarse_ms();
        let is_over = |held: &Held| (held.awaited.as_ref()).is_some_and(|a| a.until_ms <= now_ms);
        let over = |_: &NodeId, held: &mut Held| is_over(held);
        let gone: Vec<Held> = (self.held.lock().extract_if(over))
            .map(|(_, held)| held)
            .collect();
        self.note_gone(&gone);
        pool.dir_fds.forget(gone.len());
    }
}

fn regular(held: &Held) -> usize {
    usize::from(held.kind == FileKind::Regular)
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

/// Holds what has no name left, as long as its user has a share left: a user can make any number of pipes.
pub(crate) fn hold_removed(pool: &Directories, opened: OpenedFiles, user: impl Fn() -> u32) {
    for (node, fd) in opened {
        let is_gone = sys::statx_fd(fd.as_fd()).is_ok_and(|stat| stat.stx_nlink == 0);
        if !is_gone {
            continue;
        }
        let Some(share) = pool.dir_fds.take_for_good(&user, 1) else {
            continue;
        };
        let held = Held {
            fd: Arc::new(fd),
            kind: node.kind,
            awaited: None,
            _share: share,
        };
        if pool.removed_files.hold(&node, held).is_some() {
            pool.dir_fds.forget(1);
        }
        pool.dir_fds.make_room(pool, node.id);
        // Forgotten meanwhile: nobody would take it out again.
        let stays = pool.nodes.get(node.id);
        if !stays.is_some_and(|stays| Arc::ptr_eq(&stays, &node)) {
            forget(pool, &node);
        }
    }
}

/// Holds a file that a user is about to open, whose name others may take away first.
pub(crate) fn hold_awaited(pool: &Directories, node: &Arc<Node>, fd: Arc<OwnedFd>, user: u32) {
    let files = &pool.removed_files;
    files.sweep(pool);
    let until_ms = sys::mono_coarse_ms().saturating_add(AWAITED_MS);
    if files.goes_on(node, until_ms) {
        return;
    }
    let Some(awaits) = files.awaited.take(user, 1, AWAITED_MAX) else {
        return;
    };
    let Some(share) = pool.dir_fds.take_for_good(|| user, 1) else {
        return;
    };
    let held = Held {
        fd,
        kind: node.kind,
        awaited: Some(Awaited {
            until_ms,
            _share: awaits,
        }),
        _share: share,
    };
    if files.hold(node, held).is_some() {
        pool.dir_fds.forget(1);
    }
    pool.dir_fds.make_room(pool, node.id);
}

/// Lets go of files that nobody came to open.
pub(crate) fn let_go_of_awaited(pool: &Directories) {
    if pool.removed_files.regular.load(Ordering::Acquire) > 0 {
        pool.removed_files.sweep(pool);
    }
}

/// The kernel has forgotten the node.
pub(crate) fn forget(pool: &Directories, node: &Node) {
    let files = &pool.removed_files;
    if !files.may_hold(node) {
        return;
    }
    let held = files.held.lock().remove(&node.id);
    files.note_gone(held.as_slice());
    pool.dir_fds.forget(held.as_slice().len());
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use strandfs_options::Settings;

    use super::*;
    use crate::directory::{locate, lookup};
    use crate::pool::Pool;

    /// A pool of one branch with so many files `f0`, `f1`…, of which none are known.
    fn pool(house: &Path, files: usize) -> Arc<Pool> {
        (0..files).for_each(|n| std::fs::write(house.join(format!("f{n}")), "").unwrap());
        let mut settings = Settings::default();
        settings.add_branches(house.to_str().unwrap()).unwrap();
        Pool::new(settings).unwrap()
    }

    /// Whether a file is held that the user awaits.
    fn awaits(pool: &Arc<Pool>, user: u32, number: usize) -> bool {
        let name = format!("f{number}");
        let entry = lookup::lookup(pool, NodeId::ROOT, OsStr::new(&name)).unwrap();
        let node = pool.node(entry.node).unwrap();
        let found = locate::locate_shown(pool, &node).unwrap();
        hold_awaited(pool, &node, found.fd, user);
        pool.removed_files.get(&node).is_some()
    }

    #[test]
    fn a_user_who_awaits_very_many_files_leaves_some_to_others() {
        let (one, another) = (1234, 1235);
        let house = tempfile::tempdir().unwrap();
        let pool = pool(house.path(), AWAITED_MAX + 1);
        pool.dir_fds.set_limit(10 * AWAITED_MAX);
        let held = (0..AWAITED_MAX).filter(|n| awaits(&pool, one, *n)).count();
        assert!(held > AWAITED_MAX / 8, "{held}");
        assert!(awaits(&pool, another, AWAITED_MAX), "{held} are one user's");
    }

    #[test]
    fn nothing_is_looked_for_once_no_regular_file_is_held() {
        let house = tempfile::tempdir().unwrap();
        let pool = pool(house.path(), 2);
        let files = &pool.removed_files;
        let node = |name: &str| {
            let entry = lookup::lookup(&pool, NodeId::ROOT, OsStr::new(name)).unwrap();
            pool.node(entry.node).unwrap()
        };
        let (first, second) = (node("f0"), node("f1"));
        assert!(!files.may_hold(&first));
        assert!(awaits(&pool, 7, 0) && awaits(&pool, 7, 1) && awaits(&pool, 7, 1));
        assert!(files.may_hold(&first));
        forget(&pool, &first);
        assert!(files.get(&second).is_some());
        forget(&pool, &second);
        assert!(!files.may_hold(&first));
        assert!(awaits(&pool, 7, 0));
        for held in files.held.lock().values_mut() {
            held.awaited.as_mut().unwrap().until_ms = 0;
        }
        let_go_of_awaited(&pool);
        assert!(!files.may_hold(&first));
        assert_eq!(pool.dir_fds.open_count(), 0);
    }
}
