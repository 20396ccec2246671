//! The file that is to move: where it is, all its names, and where it must not go.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, Statx, StatxAttributes};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::{FileKind, NodeId};
use strandfs_options::{Function, Policy};

use crate::base::branch::{Branch, BranchId};
use crate::base::error::Result;
use crate::base::metadata::is_fixed;
use crate::base::open::reopen;
use crate::base::sys::{self, Own};
use crate::directory::{locate, set};
use crate::mover::{MoveError, Mover, fitness};
use crate::state::identity::Identity;
use crate::state::node::{DirEntry, Node};
use crate::state::open_file::{IoMode, OpenFile};
use crate::state::view::View;

/// How often is asked whether the file is still written to, and after how long again.
const ASKED_MAX: u32 = 50;
const ASKED_EVERY: Duration = Duration::from_millis(4);
/// How long calls that are under way are waited for.
const CALLS_MAX: Duration = Duration::from_secs(30);

/// One name of the file, with its directory on the file's branch.
pub(super) struct SourceName {
    pub(super) parent: Arc<Node>,
    pub(super) dir: DirEntry,
    pub(super) name: Box<OsStr>,
}

/// A file about to move.
pub(super) struct Source {
    pub(super) branch: Arc<Branch>,
    pub(super) identity: Identity,
    /// Open for reading.
    pub(super) file: OwnedFd,
    pub(super) stat: Statx,
    /// Every name it has; none for a file removed while open.
    pub(super) names: SmallVec<[SourceName; 1]>,
    /// The directory by which the policy chooses.
    pub(super) parent: Arc<Node>,
    /// Branches it cannot go to: its own, and those where it would meet or hide behind a file of
    /// the same name.
    pub(super) unfit: SmallVec<[BranchId; 4]>,
}

impl Source {
    /// The file of `node`, if it can move. To be asked while holding the node's move lock exclusively.
    ///
    /// # Errors
    /// Why it cannot.
    pub(super) fn of(pool: &Mover, view: &View, node: &Arc<Node>) -> Result<Source, MoveError> {
        if node.kind != FileKind::Regular {
            return Err(MoveError::OtherCopy);
        }
        check_handles(node)?;
        if handles_of(node).any(|opened| opened.has_unreported()) {
            return Err(MoveError::Unwritten(Errno::IO));
        }
        let identity = node.primary().ok_or(Errno::STALE)?;
        let located = locate::locate(pool, node)?;
        let writers = writers_of(node);
        check_writers(node, &writers)?;
        // Who wrote past an earlier server may still do so; among several writers the kernel does not tell.
        if matches!(writers, Writers::Several) && view.settings.passthrough.preload {
            return Err(MoveError::Preload);
        }
        let file = open_quietly(&located.fd)?;
        if matches!(writers, Writers::None) {
            check_unwritten(node, &file)?;
        }
        let stat = sys::statx_fd(file.as_fd())?;
        if !pool.volumes.same(&identity, &stat)
            || !all_handles_on(node, &stat)
            || open_by_a_symlink(pool, &stat)
        {
            return Err(MoveError::OtherCopy);
        }
        if pool.preload_told.knows(&stat) {
            return Err(MoveError::Preload);
        }
        // An encrypted file would be plain on the other branch, a verified one nobody's to trust.
        let bound = StatxAttributes::ENCRYPTED | StatxAttributes::VERITY;
        if is_fixed(&stat) || stat.stx_attributes.intersects(bound) {
            return Err(MoveError::Fixed);
        }
        let names = names_of(pool, node, &identity);
        if names.len() as u64 != u64::from(stat.stx_nlink) {
            return Err(MoveError::Names {
                known: names.len(),
                links: stat.stx_nlink,
            });
        }
        fitness::check_source_dirs(&names)?;
        let parent = match names.first() {
            Some(name) => Arc::clone(&name.parent),
            None => pool.nodes.get(NodeId::ROOT).ok_or(Errno::STALE)?,
        };
        let unfit = unfit_branches(pool, view, &identity, &names)?;
        Ok(Source {
            branch: located.branch,
            identity,
            file,
            stat,
            names,
            parent,
            unfit,
        })
    }

    /// The bytes it occupies.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.stat.stx_blocks.saturating_mul(512)
    }

    /// Waits until nothing of it is being written to its disk.
    ///
    /// # Errors
    /// The disk has refused some of it: whoever wrote that has yet to be told, by the file that is there.
    pub(super) fn check_written(&self, node: &Node) -> Result<(), MoveError> {
        for opened in handles_of(node) {
            opened.wait_for_writeback().map_err(MoveError::Unwritten)?;
        }
        match sys::wait_for_writeback(self.file.as_fd()) {
            // A filesystem that has nothing to wait for.
            Ok(()) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::SPIPE) => Ok(()),
            Err(errno) => Err(MoveError::Unwritten(errno)),
        }
    }

    /// Whether nobody writes to it any more. To be asked when the pool's own handles have left it:
    /// copying took its time, and of several writers the kernel does not tell whose they are.
    ///
    /// # Errors
    /// Somebody would go on writing to a file that is gone.
    pub(super) fn check_left(&self, node: &Node) -> Result<(), MoveError> {
        for _ in 0..ASKED_MAX {
            match sys::written_by_others(self.file.as_fd(), Own::Reader) {
                Ok(false) => return Ok(()),
                // Descriptors in other tables are closed a moment later.
                Ok(true) => std::thread::sleep(ASKED_EVERY),
                Err(_) if node.mapped_perhaps.load(Ordering::Relaxed) => break,
                Err(_) => return Ok(()),
            }
        }
        Err(MoveError::Mapped)
    }

    /// The descriptors under the pool's handles, in as far as calls may be under way on them.
    pub(super) fn in_use(node: &Node) -> SmallVec<[Weak<OwnedFd>; 2]> {
        let files = handles_of(node).filter_map(|opened| opened.file_here());
        files.map(|file| Arc::downgrade(&file)).collect()
    }

    /// Waits until calls on descriptors that the handles have left are over: reads, and above all syncs.
    pub(super) fn wait_for_calls(left: &[Weak<OwnedFd>]) {
        let until = Instant::now() + CALLS_MAX;
        while left.iter().any(|file| file.strong_count() > 0) && Instant::now() < until {
            std::thread::sleep(ASKED_EVERY);
        }
    }

    /// Whether a handle of another node has it open, see [`open_by_a_symlink`].
    pub(super) fn is_open_by_a_symlink(&self, pool: &Mover) -> bool {
        open_by_a_symlink(pool, &self.stat)
    }

    /// Whether nobody has changed it on its branch since it was looked at, and all its names
    /// still lead to it.
    pub(super) fn is_unchanged(&self) -> bool {
        let Ok(now) = sys::statx_fd(self.file.as_fd()) else {
            return false;
        };
        let key = |stat: &Statx| {
            let times = [stat.stx_mtime, stat.stx_ctime];
            let times = times.map(|time| (time.tv_sec, time.tv_nsec));
            (stat.stx_size, stat.stx_nlink, times)
        };
        key(&now) == key(&self.stat) && self.names.iter().all(|name| self.leads_here(name))
    }

    /// Whether the name still leads to the file.
    pub(super) fn leads_here(&self, name: &SourceName) -> bool {
        sys::statx_name(name.dir.fd.as_fd(), &name.name).is_ok_and(|stat| {
            let device = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor);
            stat.stx_ino == self.stat.stx_ino && device(&stat) == device(&self.stat)
        })
    }
}

/// What the kernel does by itself cannot be led elsewhere, nor can its mappings be seen.
fn check_handles(node: &Node) -> Result<(), MoveError> {
    match node.open.lock().as_ref().map(|open| open.mode) {
        Some(IoMode::Passthrough(_)) => Err(MoveError::Passthrough),
        _ => Ok(()),
    }
}

/// The handles it is open by, each of them there until the caller has done with it.
fn handles_of(node: &Node) -> impl Iterator<Item = Arc<OpenFile>> {
    let open = node.open.lock();
    let handles = open.iter().flat_map(|open| open.handles());
    let all: SmallVec<[Arc<OpenFile>; 2]> = handles.filter_map(Weak::upgrade).collect();
    all.into_iter()
}

/// The handles that can write.
enum Writers {
    None,
    /// Its branch file.
    One(Arc<OwnedFd>),
    Several,
}

fn writers_of(node: &Node) -> Writers {
    let mut writers =
        handles_of(node).filter(|opened| opened.writable && opened.branch_id().is_some());
    match (writers.next(), writers.next()) {
        (None, _) => Writers::None,
        (Some(only), None) => only.file().map_or(Writers::Several, Writers::One),
        _ => Writers::Several,
    }
}

/// Somebody else who has the branch's file open for writing would go on writing to the file that is left behind,
/// whether past the pool or through a mapping made in passthrough, which holds the branch's file and not the
/// handle that it was made through. Of one writer of the pool's the kernel tells whether there are others.
fn check_writers(node: &Node, writers: &Writers) -> Result<(), MoveError> {
    if let Writers::One(only) = writers {
        match sys::written_by_others(only.as_fd(), Own::Writer) {
            Ok(false) => {
                node.mapped_perhaps.store(false, Ordering::Relaxed);
                return Ok(());
            }
            // Where readers count as well, it may have been one of the pool's; what keeps its locks there is a
            // writer, too. Then it is told at the end, see [`Source::check_left`].
            Ok(true)
                if node.locks().is_none()
                    && (sys::leases_ignore_readers() || !has_readers(node)) =>
            {
                return Err(MoveError::Mapped);
            }
            Ok(true) | Err(_) => {}
        }
    }
    if matches!(writers, Writers::None) || !node.mapped_perhaps.load(Ordering::Relaxed) {
        Ok(())
    } else {
        Err(MoveError::Mapped)
    }
}

/// Whether the pool has it open for reading only.
fn has_readers(node: &Node) -> bool {
    handles_of(node).any(|opened| !opened.writable)
}

/// Whether someone writes to a file that the pool has not open for writing: behind the pool, or
/// through a mapping made in passthrough.
fn check_unwritten(node: &Node, file: &OwnedFd) -> Result<(), MoveError> {
    match sys::written_by_others(file.as_fd(), Own::Reader) {
        Ok(true) => Err(MoveError::Mapped),
        Ok(false) => {
            node.mapped_perhaps.store(false, Ordering::Relaxed);
            Ok(())
        }
        // In a user namespace nobody may ask about files of others: somebody may write to it.
        Err(Errno::ACCESS) => Err(MoveError::Mapped),
        // Not known.
        Err(_) if node.mapped_perhaps.load(Ordering::Relaxed) => Err(MoveError::Mapped),
        Err(_) => Ok(()),
    }
}

/// `func.open` may have opened another copy than the node's own.
fn all_handles_on(node: &Node, stat: &Statx) -> bool {
    let open = node.open.lock();
    let Some(open) = open.as_ref() else {
        return true;
    };
    open.handles()
        .iter()
        .filter_map(|handle| handle.upgrade()?.file().ok())
        .all(|file| is_inode(&file, stat))
}

/// Whether the file is open through a symlink of the branch that is shown as what it leads to:
/// such a handle belongs to another node and would stay behind.
fn open_by_a_symlink(pool: &Mover, stat: &Statx) -> bool {
    pool.files.any(|opened| {
        opened.node.follows() && opened.file().is_ok_and(|file| is_inode(&file, stat))
    })
}

fn is_inode(file: &OwnedFd, stat: &Statx) -> bool {
    let key = |stat: &Statx| (stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor);
    sys::statx_fd(file.as_fd()).is_ok_and(|found| key(&found) == key(stat))
}

/// Opens for reading, without leaving an access time where that is allowed.
fn open_quietly(fd: &OwnedFd) -> sys::Result<OwnedFd> {
    match reopen(fd.as_fd(), OFlags::RDONLY | OFlags::NOATIME) {
        Err(Errno::PERM) => reopen(fd.as_fd(), OFlags::RDONLY),
        other => other,
    }
}

/// The known names that lead to the file on its branch.
fn names_of(pool: &Mover, node: &Arc<Node>, identity: &Identity) -> SmallVec<[SourceName; 1]> {
    let known: Vec<_> = node.place().names.iter().cloned().collect();
    let mut found: SmallVec<[SourceName; 1]> = smallvec![];
    for name in known {
        let Some(parent) = pool.nodes.get(name.parent) else {
            continue;
        };
        let Ok(set) = set::dir_set_now(pool, &parent) else {
            continue;
        };
        let Some(dir) = set.on(identity.branch) else {
            continue;
        };
        let stat = sys::statx_name(dir.fd.as_fd(), &name.name);
        if stat.is_ok_and(|stat| pool.volumes.same(identity, &stat)) {
            found.push(SourceName {
                parent,
                dir: dir.clone(),
                name: name.name,
            });
        }
    }
    found
}

/// A branch that has one of the names cannot take the file; and where the first copy counts, one
/// behind it would hide the file.
fn unfit_branches(
    pool: &Mover,
    view: &View,
    identity: &Identity,
    names: &[SourceName],
) -> Result<SmallVec<[BranchId; 4]>, MoveError> {
    let mut unfit: SmallVec<[BranchId; 4]> = smallvec![identity.branch];
    let mut foremost = usize::MAX;
    for name in names {
        let set = set::dir_set_now(pool, &name.parent)?;
        for dir in set
            .entries
            .iter()
            .filter(|dir| dir.branch.id != identity.branch)
        {
            match sys::statx_name(dir.fd.as_fd(), &name.name) {
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // Not known not to have it.
                Err(_) => unfit.push(dir.branch.id),
                Ok(_) => {
                    unfit.push(dir.branch.id);
                    foremost = foremost.min(view.position(dir.branch.id));
                }
            }
        }
    }
    if foremost != usize::MAX {
        if !crate::base::policy::same_search(view.policy(Function::Getattr), Policy::Ff) {
            return Err(MoveError::OtherCopy);
        }
        let behind = view.branches.iter().skip(foremost);
        unfit.extend(behind.map(|branch| branch.id));
    }
    Ok(unfit)
}
