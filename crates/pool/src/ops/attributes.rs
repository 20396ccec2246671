//! GETATTR, STATX and SETATTR.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use strandfs_options::Function;

use rustix::fs::{Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{
    AttrReply, Context, ExtendedAttr, FileAttr, Handle, NodeId, SetAttr, SetTime, StatxReply,
};

use crate::base::branch::BranchId;
use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::open::reopen;
use crate::base::sys::{self, Own};
use crate::coherence::{remembered, validity};
use crate::directory::{Directories, attr, do_without, locate, set};
use crate::mover::{self, Mover, Refused, is_full};
use crate::ops::alteration::{ToMode, ToOwner, ToTimes};
use crate::ops::hidden_copies::Power;
use crate::ops::{change, io};
use crate::state::attr::{bare_root, extended_attr, file_attr};
use crate::state::node::Node;

/// GETATTR.
pub(crate) fn getattr(pool: &Directories, id: NodeId, handle: Option<Handle>) -> Result<AttrReply> {
    let since = pool.coherence.changes.now();
    let node = pool.node(id);
    if let Ok(node) = &node {
        look_for_mappings_left(pool, node);
    }
    let mut attr = attr_by(pool, id, handle)?;
    let view = pool.view();
    let node = node?;
    view.tell(&node, &mut attr);
    Ok(AttrReply {
        attr,
        attr_valid: validity::attr_valid(pool, &view, &node, attr.mode, since),
    })
}

/// Before the attributes of a file are asked for that was open so that it could be mapped:
/// without a mapping they may be kept again.
fn look_for_mappings_left(pool: &Directories, node: &Arc<Node>) {
    if !node.mapped_perhaps.load(Ordering::Acquire) || node.open.lock().is_some() {
        return;
    }
    if let Ok((_, file, _)) = locate::open_inode(pool, node, OFlags::RDONLY | OFlags::NOATIME) {
        node.look_for_mappings(&file, Own::Reader);
    }
}

fn attr_by(pool: &Directories, id: NodeId, handle: Option<Handle>) -> Result<FileAttr> {
    if let Some(opened) = handle.and_then(|handle| pool.files.get(handle)) {
        let stat = opened.call(Call::Stat, |file| sys::statx_fd(file.as_fd()))?;
        let mut attr = file_attr(&stat, opened.node.ino);
        attr::count_unwritten(&pool.view(), &opened.node, &mut attr);
        pool.volumes.mounts.restrict(&stat, &mut attr);
        return Ok(attr);
    }
    attr::attr(pool, &pool.node(id)?)
}

/// STATX: as GETATTR, with the birth time and flags of the first copy.
pub(crate) fn statx(pool: &Directories, id: NodeId, handle: Option<Handle>) -> Result<StatxReply> {
    let node = pool.node(id)?;
    let since = pool.coherence.changes.now();
    let view = pool.view();
    let (stat, mut attr) = if node.is_dir() {
        let set = do_without::dir_set_quickly(pool, &node)?;
        if set.entries.is_empty() {
            let attr = bare_root();
            node.rights_told.note(&attr);
            return Ok(StatxReply {
                extended: ExtendedAttr {
                    attr,
                    ..ExtendedAttr::default()
                },
                attr_valid: validity::attr_valid(pool, &view, &node, 0, since),
            });
        }
        let (merged, first) = attr::dir_attr(pool, &set, node.ino)?;
        (first, merged)
    } else {
        let opened = handle.and_then(|handle| pool.files.get(handle));
        let stat = match opened {
            Some(opened) => opened.call(Call::Stat, |file| sys::statx_fd(file.as_fd()))?,
            None => locate::stat_file(pool, &node)?,
        };
        (stat, attr::shown_attr(pool, &view, &node, &stat)?)
    };
    view.tell(&node, &mut attr);
    let extended = extended_attr(&stat, attr);
    Ok(StatxReply {
        extended,
        attr_valid: validity::attr_valid(pool, &view, &node, attr.mode, since),
    })
}

/// SETATTR: mode, owner, size, times, in this order, each by its own policy; stops at the
/// first that fails.
pub(crate) fn setattr(
    pool: &Mover,
    cx: &Context<'_>,
    id: NodeId,
    change: &SetAttr,
) -> Result<AttrReply> {
    let node = pool.node(id)?;
    // One of several changes may have been made.
    let outcome = setattr_where_there_is_room(pool, cx, &node, change);
    io::in_doubt_if_failed(pool, id, outcome)
}

fn setattr_where_there_is_room(
    pool: &Mover,
    cx: &Context<'_>,
    node: &Arc<Node>,
    change: &SetAttr,
) -> Result<AttrReply> {
    let mut times = 0;
    let mut refused_by: SmallVec<[BranchId; 4]> = SmallVec::new();
    loop {
        let held = node.share_move_lock(cx);
        let place = node.primary();
        let refusal = match setattr_held(pool, cx, node, change) {
            Err(errno) if is_full(errno.errno) && !node.is_dir() => errno,
            outcome => return outcome,
        };
        drop(held);
        let size_bytes = change.size_bytes.ok_or(refusal)?;
        if times > 0 && cx.interrupted() {
            return Err(refusal);
        }
        refused_by.extend(place.map(|identity| identity.branch));
        let before_bytes = locate::stat_file(pool, node)?.stx_size;
        let refused = Refused {
            file: None,
            offset_bytes: before_bytes,
            need_bytes: size_bytes.saturating_sub(before_bytes),
            refusal,
            times,
            by: &refused_by,
        };
        mover::make_room(pool, cx, node, &refused, || node.primary() != place)?;
        times += 1;
    }
}

/// SETATTR while the file stays where it is.
fn setattr_held(
    pool: &Directories,
    cx: &Context<'_>,
    node: &Arc<Node>,
    change: &SetAttr,
) -> Result<AttrReply> {
    let view = pool.view();
    let rules = &view.settings.policies;
    if let Some(mode) = change.mode {
        let mode = Mode::from_raw_mode(mode & 0o7777);
        change::change_copies(
            pool,
            &view,
            node,
            rules.get(Function::Chmod),
            (cx, Power::Mode(mode.as_raw_mode())),
            &ToMode(mode),
        )?;
    }
    if change.uid.is_some() || change.gid.is_some() {
        let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
        sys::want_fsetid(!change.kill_suidgid)?;
        change::change_copies(
            pool,
            &view,
            node,
            rules.get(Function::Chown),
            (cx, Power::Give(change.uid, change.gid)),
            &ToOwner(uid, gid),
        )?;
    }
    if let Some(size_bytes) = change.size_bytes {
        sys::want_fsetid(!change.kill_suidgid)?;
        truncate(pool, cx, node, change.handle, size_bytes)?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        let times = Timestamps {
            last_access: timespec(change.atime),
            last_modification: timespec(change.mtime),
        };
        change::change_copies(
            pool,
            &view,
            node,
            rules.get(Function::Utimens),
            (cx, power_for_times(change)),
            &ToTimes(times),
        )?;
    }
    if node.is_dir() {
        remembered::attributes_changed(&*set::dir_set(pool, node)?);
    }
    let told = getattr(pool, node.id, change.handle)?;
    if change.mode.is_some() || change.uid.is_some() || change.gid.is_some() {
        node.rights_told.settle(&told.attr);
    }
    Ok(told)
}

/// Whoever may write may set both times to the present; all else is the owner's to give (fs/attr.c,
/// `setattr_prepare`), but for the time that the kernel keeps of writes in its cache and brings in
/// anybody's name, by a file that is open for writing.
fn power_for_times(change: &SetAttr) -> Power {
    if change.size_bytes.is_some() {
        return Power::WriteUnasked;
    }
    // With a cache of writes the kernel says what time it is.
    let is_now = |time| match (time, change.ctime) {
        (SetTime::Now, _) => true,
        (SetTime::At(at), Some(now)) => at == now,
        (SetTime::At(_), None) => false,
    };
    match (change.atime, change.mtime) {
        (None, Some(SetTime::At(_))) if change.ctime.is_some() && change.handle.is_some() => {
            Power::WriteUnasked
        }
        (Some(SetTime::Now), Some(mtime)) if is_now(mtime) => Power::Touch,
        _ => Power::Own,
    }
}

/// Through a handle only the open file changes; by name every copy the policy picks.
fn truncate(
    pool: &Directories,
    cx: &Context<'_>,
    node: &Arc<Node>,
    handle: Option<Handle>,
    size_bytes: u64,
) -> Result<()> {
    if node.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if pool.view().settings.requests.nullrw {
        return Ok(());
    }
    if handle.is_some() {
        return Ok(rustix::fs::ftruncate(
            &*io::writable_file(pool, node, handle)?,
            size_bytes,
        )?);
    }
    let view = pool.view();
    let copies = change::copies_to_change(
        pool,
        &view,
        node,
        view.policy(Function::Truncate),
        (cx, Power::Write),
    )?;
    // What is cut off cannot be put back: all must be writable before one is cut. And while they
    // are open for writing nobody gets a lease that the truncation would wait for.
    let mut writable = SmallVec::<[OwnedFd; 1]>::new();
    for copy in &copies {
        let file = reopen(copy.fd.as_fd(), OFlags::WRONLY);
        writable.push(file.map_err(|errno| Error::at(&copy.branch, errno))?);
    }
    // The one that users see is the last.
    for copy in copies.iter().rev() {
        // Not through an open file: a truncation to the same size then moves the times on XFS.
        let truncate = || sys::truncate(copy.fd.as_fd(), size_bytes);
        copy.branch.call(Call::Change, truncate).map_err(|errno| {
            if copies.len() > 1 {
                tracing::error!(branch = %copy.branch.path.display(), %errno, "a copy could not be truncated; copies of it on other branches may have been");
            }
            Error::at(&copy.branch, errno)
        })?;
    }
    Ok(())
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        Some(SetTime::Now) => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        Some(SetTime::At(at)) => Timespec {
            tv_sec: at.seconds,
            tv_nsec: i64::from(at.nanoseconds),
        },
    }
}
