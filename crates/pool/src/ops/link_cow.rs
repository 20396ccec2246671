//! `link-cow`: a name of a hard-linked file gets a file of its own before it is written to.
//!
//! OPEN tells the inode, not by which name it was reached. It is answered ESTALE, upon which the
//! kernel walks the path once more, looking up every name; in that look-up, by the same task, the
//! name gets its copy, and what is then opened is another inode with one name.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;
use strandfs_fuse::{Context, FileKind, NodeId, SetAttr};

use crate::base::branch::BranchId;
use crate::base::error::{Error, Result};
use crate::base::metadata::{copy_file_metadata, copy_inode_flags, copy_project, set_times};
use crate::base::shares::{FairShare, FairShares};
use crate::base::step::step;
use crate::base::sys::{self, btime_ns};
use crate::directory::lookup::{self, Presentations};
use crate::directory::{Directories, locate, set};
use crate::mover::{Record, copy_data};
use crate::ops::{Ops, account, remove};
use crate::state::identity::kind_of;
use crate::state::node::{DirEntry, Node};
use crate::state::paths;
use crate::state::view::View;

/// A look-up that has not come by now belongs to something else.
const AWAITED_MS: u64 = 60_000;
/// The kernel looks up once more upon a failure; what comes later is something else.
const FAILED_MS: u64 = 10_000;
/// A file that changes on its branch while it is copied is copied again this often.
const TRIES: usize = 3;

/// A directory on one branch, and its path below the branch's root.
struct DirOnBranch<'a> {
    dir: &'a DirEntry,
    path: &'a Path,
}

/// So many tasks at most: each look-up asks whether it is one of theirs.
const AWAITED_MAX: usize = 4096;

/// What is known of a task that wants to write to a file with several names.
struct Awaited {
    wants: Wants,
    since_ms: u64,
    _share: FairShare,
}

#[derive(Clone, Copy)]
struct Wants {
    node: NodeId,
    /// Why the copy could not be made: the kernel drops the name it knows upon the first error,
    /// looks up again, and only then tells the caller.
    failed: Option<Errno>,
}

impl Awaited {
    fn is_over(&self, now_ms: u64) -> bool {
        let life_ms = match self.wants.failed {
            None => AWAITED_MS,
            Some(_) => FAILED_MS,
        };
        now_ms.saturating_sub(self.since_ms) >= life_ms
    }
}

/// The opens that wait for their name.
#[derive(Default)]
pub(crate) struct LinkCow {
    awaited: Mutex<HashMap<u32, Awaited>>,
    count: AtomicUsize,
    shares: FairShares,
    /// One copy at a time on each branch (of sixteen; further ones share).
    copying: [Mutex<()>; 16],
}

impl LinkCow {
    /// Waits for the look-up of a user's task.
    ///
    /// # Errors
    /// EBUSY for a user who has very many tasks waited for: they look up nothing, and come again.
    fn await_name(&self, (task, user): (u32, u32), wants: Wants) -> sys::Result<()> {
        let since_ms = sys::mono_coarse_ms();
        let mut awaited = self.awaited.lock();
        awaited.remove(&task);
        let share = || self.shares.take(user, 1, AWAITED_MAX);
        let share = share().or_else(|| {
            awaited.retain(|_, old| !old.is_over(since_ms));
            share()
        });
        if let Some(share) = share {
            let one = Awaited {
                wants,
                since_ms,
                _share: share,
            };
            awaited.insert(task, one);
        }
        self.count.store(awaited.len(), Ordering::Release);
        match awaited.contains_key(&task) {
            true => Ok(()),
            false => Err(Errno::BUSY),
        }
    }

    /// What the task wants to write to. Costs nothing while nobody does.
    fn awaited_by(&self, task: u32) -> Option<Wants> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let awaited = self.awaited.lock();
        let entry = awaited.get(&task)?;
        (!entry.is_over(sys::mono_coarse_ms())).then_some(entry.wants)
    }

    fn found_name(&self, task: u32) {
        let mut awaited = self.awaited.lock();
        awaited.remove(&task);
        self.count.store(awaited.len(), Ordering::Release);
    }

    fn one_at_a_time(&self, branch: BranchId) -> Option<MutexGuard<'_, ()>> {
        let index = usize::from(branch.0) % self.copying.len();
        self.copying.get(index).map(Mutex::lock)
    }
}

/// Whether a handle can write to it now.
fn is_written(node: &Node) -> bool {
    node.open.lock().as_ref().is_some_and(|open| {
        let mut handles = open.handles().iter().filter_map(std::sync::Weak::upgrade);
        handles.any(|handle| handle.writable)
    })
}

/// Lets an open for writing of a file with several names wait for the name.
///
/// # Errors
/// ESTALE: look the name up again; EBUSY for a user who has very many tasks do so.
pub(crate) fn open_breaks_link(
    pool: &Ops,
    cx: &Context<'_>,
    node: &Node,
    file: BorrowedFd<'_>,
) -> Result<()> {
    breaks_link(pool, cx, node, sys::statx_fd(file)?.stx_nlink)
}

/// The same for `truncate(2)`, which opens nothing.
///
/// # Errors
/// As for [`open_breaks_link`].
pub(crate) fn change_breaks_link(
    pool: &Ops,
    cx: &Context<'_>,
    id: NodeId,
    change: &SetAttr,
) -> Result<()> {
    let by_name = change.size_bytes.is_some() && change.handle.is_none();
    if !by_name || !pool.view().settings.presentation.link_cow {
        return Ok(());
    }
    let node = pool.node(id)?;
    if node.kind != FileKind::Regular {
        return Ok(());
    }
    breaks_link(pool, cx, &node, locate::stat_file(pool, &node)?.stx_nlink)
}

fn breaks_link(pool: &Ops, cx: &Context<'_>, node: &Node, links: u32) -> Result<()> {
    // A followed symlink's target is written as it is: which of its names the link means is
    // not the pool's to say.
    if links < 2 || node.follows() || is_written(node) {
        return Ok(());
    }
    let wants = Wants {
        node: node.id,
        failed: None,
    };
    pool.link_cow
        .await_name((cx.pid, account::user(cx)), wants)?;
    Err(Error::expected(Errno::STALE))
}

/// Before a look-up: if the task is about to write to the file of this name, the name gets a
/// copy of its own on every branch where it shares one.
///
/// # Errors
/// What keeps the copy from being made (ENOSPC, EIO); EBUSY if the file changes all the time;
/// EOPNOTSUPP if the branch has no nameless files or cannot exchange names.
pub(crate) fn break_link(pool: &Ops, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
    let Some(awaited) = pool.link_cow.awaited_by(cx.pid) else {
        return Ok(());
    };
    let view = pool.view();
    let parent = pool.node(parent)?;
    if !parent.is_dir() {
        return Ok(());
    }
    let set = set::dir_set(pool, &parent)?;
    let Some(node) = visible(pool, &view, &set, name, awaited.node)? else {
        return Ok(());
    };
    pool.link_cow.found_name(cx.pid);
    if let Some(errno) = awaited.failed {
        return Err(Error::expected(errno));
    }
    cx.may_block();
    let _held = node.share_move_lock(cx);
    let path = paths::relative_path(pool, &parent).ok_or(Errno::STALE)?;
    for dir in set.entries.iter().filter(|dir| !dir.branch.read_only()) {
        let place = DirOnBranch { dir, path: &path };
        let outcome = break_on(pool, &place, name, &node);
        if let Err(errno) = outcome {
            let wants = Wants {
                node: node.id,
                failed: Some(errno.errno),
            };
            // Where that cannot be, the kernel looks once more, and tries it.
            let _ = pool.link_cow.await_name((cx.pid, account::user(cx)), wants);
            return Err(Error::at(&dir.branch, errno));
        }
    }
    node.remove_name(parent.id, name);
    Ok(())
}

/// The node that users see under a name, if it is the one awaited.
fn visible(
    pool: &Directories,
    view: &View,
    set: &crate::state::node::DirSet,
    name: &OsStr,
    awaited: NodeId,
) -> Result<Option<Arc<Node>>> {
    let copies = lookup::find_copies(pool, view, set, name, Presentations::Own)?;
    let Some(first) = copies.first() else {
        return Ok(None);
    };
    let nodes = remove::nodes_at(pool, first.dir, name);
    Ok(nodes.into_iter().find(|node| node.id == awaited))
}

fn break_on(pool: &Ops, place: &DirOnBranch<'_>, name: &OsStr, node: &Node) -> Result<()> {
    let dir = place.dir;
    let _alone = pool.link_cow.one_at_a_time(dir.branch.id);
    for _ in 0..TRIES {
        let stat = match sys::statx_name(dir.fd.as_fd(), name) {
            Ok(stat) if kind_of(&stat) == FileKind::Regular && stat.stx_nlink > 1 => stat,
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        if is_written(node) {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let source = rustix::fs::openat(&dir.fd, name, flags, Mode::empty())?;
        let copy = match own_copy(dir, source.as_fd(), &stat) {
            // Cut, perhaps.
            Err(_) if !unchanged(source.as_fd(), &stat)? => continue,
            other => other?,
        };
        if unchanged(source.as_fd(), &stat)? && take_name(place, name, &copy, &stat)? {
            tracing::debug!(branch = %dir.branch.path.display(), ?name, "link-cow: a name got its own copy");
            return Ok(());
        }
    }
    Err(Errno::BUSY.into())
}

/// Puts a complete copy in the place of a name that leads to the inode of `stat`; false if it
/// leads elsewhere by now. Whatever the name leads to is never without a name, and what a crash
/// leaves under the other one the next server takes away.
fn take_name(place: &DirOnBranch<'_>, name: &OsStr, copy: &OwnedFd, stat: &Statx) -> Result<bool> {
    let made = sys::statx_fd(copy.as_fd())?;
    let branch = &place.dir.branch;
    step();
    let record = Record::of_own_copy(branch, place.path, name, stat, &made)?;
    let other = record.part_name();
    step();
    let outcome = change_places(place.dir, name, &other, copy, stat);
    step();
    // Where our name could not be removed the record stays with it.
    let left = sys::statx_name(place.dir.fd.as_fd(), &other);
    if matches!(left, Err(Errno::NOENT)) {
        record.end();
    }
    outcome
}

fn change_places(
    dir: &DirEntry,
    name: &OsStr,
    other: &OsStr,
    copy: &OwnedFd,
    stat: &Statx,
) -> Result<bool> {
    let path = sys::ProcPath::new(copy);
    let follow = AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), &dir.fd, other, follow)?;
    step();
    let fd = dir.fd.as_fd();
    let exchange = || sys::rename_flags(fd, other, fd, name, libc::RENAME_EXCHANGE);
    let drop_other = || rustix::fs::unlinkat(&dir.fd, other, AtFlags::empty());
    match exchange() {
        Ok(()) => {}
        Err(errno) => {
            drop_other()?;
            return match errno {
                Errno::NOENT => Ok(false),
                Errno::INVAL => Err(Errno::OPNOTSUPP.into()),
                errno => Err(errno.into()),
            };
        }
    }
    step();
    let out = sys::statx_name(fd, other)?;
    let given = sys::statx_name(fd, name)?;
    let made = sys::statx_fd(copy.as_fd())?;
    let right = is_inode(&out, stat) && is_inode(&given, &made);
    if !right {
        // Someone gave the name, or ours, to another file meanwhile: the name gets that back.
        exchange()?;
    }
    drop_other()?;
    Ok(right)
}

fn is_inode(one: &Statx, other: &Statx) -> bool {
    let key = |stat: &Statx| (stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor);
    key(one) == key(other) && btime_ns(one) == btime_ns(other)
}

/// A nameless file like the one of `stat`, safe on the branch's disk.
fn own_copy(dir: &DirEntry, source: BorrowedFd<'_>, stat: &Statx) -> Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let copy = match rustix::fs::openat(&dir.fd, c".", flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::ISDIR | Errno::INVAL) => return Err(Errno::OPNOTSUPP.into()),
        other => other?,
    };
    copy_project(source, copy.as_fd(), dir.fd.as_fd())?;
    copy_data(source, copy.as_fd(), stat.stx_size)?;
    copy_file_metadata(source, copy.as_fd(), stat)?;
    copy_inode_flags(source, copy.as_fd());
    set_times(copy.as_fd(), stat)?;
    rustix::fs::fsync(&copy)?;
    Ok(copy)
}

/// Whether a file is as it was: the same inode, content and attributes.
fn unchanged(file: BorrowedFd<'_>, before: &Statx) -> Result<bool> {
    let now = sys::statx_fd(file)?;
    let marks = |stat: &Statx| {
        let (mtime, ctime) = (stat.stx_mtime, stat.stx_ctime);
        (
            stat.stx_ino,
            stat.stx_size,
            (mtime.tv_sec, mtime.tv_nsec),
            (ctime.tv_sec, ctime.tv_nsec),
        )
    };
    Ok(marks(&now) == marks(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_whose_tasks_come_for_very_many_names_and_look_none_up_leaves_room_to_others() {
        let (link_cow, one, another) = (LinkCow::default(), 1234, 1235);
        let wants = Wants {
            node: NodeId(7),
            failed: None,
        };
        let tasks = 1..=2 * AWAITED_MAX as u32;
        let awaited = tasks
            .filter(|task| link_cow.await_name((*task, one), wants).is_ok())
            .count();
        assert!((100..AWAITED_MAX).contains(&awaited), "{awaited}");
        assert!(link_cow.awaited_by(1).is_some() && link_cow.awaited_by(u32::MAX).is_none());
        assert_eq!(link_cow.await_name((u32::MAX, another), wants), Ok(()));
        assert!(link_cow.awaited_by(u32::MAX).is_some());
        // What nobody looks up any more makes room.
        for old in link_cow.awaited.lock().values_mut() {
            old.since_ms = 0;
        }
        let is_long_ago = sys::mono_coarse_ms() > AWAITED_MS;
        let again = link_cow.await_name((u32::MAX - 1, one), wants);
        assert!(again.is_ok() || !is_long_ago);
    }
}
