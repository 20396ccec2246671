//! GETATTR, STATX and SETATTR.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{
    AttrReply, Context, ExtendedAttr, FileAttr, Handle, NodeId, SetAttr, SetTime, StatxReply,
};

use crate::base::error::{Error, Result};
use crate::base::open::reopen;
use crate::base::sys::{self, Own};
use crate::mover::is_full;
use crate::ops::alteration::{ToMode, ToOwner, ToTimes};
use crate::pool::Pool;
use crate::state::attr::{bare_root, extended_attr, file_attr};
use crate::state::node::Node;

impl Pool {
    /// GETATTR.
    pub(crate) fn do_getattr(&self, id: NodeId, handle: Option<Handle>) -> Result<AttrReply> {
        let since = self.coherence.now();
        let node = self.node(id);
        if let Ok(node) = &node {
            self.look_for_mappings_left(node);
        }
        let mut attr = self.attr_by(id, handle)?;
        let view = self.view();
        view.dress(&mut attr);
        Ok(AttrReply {
            attr,
            attr_valid: self.attr_valid(&view, &*node?, attr.mode, since),
        })
    }

    /// Before the attributes of a file are asked for that was open so that it could be mapped:
    /// without a mapping they may be kept again.
    fn look_for_mappings_left(&self, node: &Arc<Node>) {
        if !node.mapped_perhaps.load(Ordering::SeqCst) || node.open.lock().is_some() {
            return;
        }
        if let Ok((_, file, _)) = self.open_inode(node, OFlags::RDONLY | OFlags::NOATIME) {
            node.look_for_mappings(&file, Own::Reader);
        }
    }

    fn attr_by(&self, id: NodeId, handle: Option<Handle>) -> Result<FileAttr> {
        if let Some(opened) = handle.and_then(|handle| self.files.get(handle)) {
            let stat = sys::statx_fd(opened.file()?.as_fd())?;
            let mut attr = file_attr(&stat, opened.node.ino);
            self.volumes.mounts.restrict(&stat, &mut attr);
            return Ok(attr);
        }
        self.attr(&self.node(id)?)
    }

    /// STATX: as GETATTR, with the birth time and flags of the first copy.
    pub(crate) fn do_statx(&self, id: NodeId, handle: Option<Handle>) -> Result<StatxReply> {
        let node = self.node(id)?;
        let since = self.coherence.now();
        let view = self.view();
        let (stat, mut attr) = if node.is_dir() {
            let set = self.dir_set_quickly(&node)?;
            if set.entries.is_empty() {
                return Ok(StatxReply {
                    extended: ExtendedAttr {
                        attr: bare_root(),
                        ..ExtendedAttr::default()
                    },
                    attr_valid: self.attr_valid(&view, &node, 0, since),
                });
            }
            let (merged, first) = self.dir_attr(&set, node.ino)?;
            (first, merged)
        } else {
            let opened = handle.and_then(|handle| self.files.get(handle));
            let stat = match opened {
                Some(opened) => sys::statx_fd(opened.file()?.as_fd())?,
                None => self.stat_file(&node)?,
            };
            (stat, self.shown_attr(&view, &node, &stat)?)
        };
        view.dress(&mut attr);
        let extended = extended_attr(&stat, attr);
        Ok(StatxReply {
            extended,
            attr_valid: self.attr_valid(&view, &node, attr.mode, since),
        })
    }

    /// SETATTR: mode, owner, size, times, in this order, each by its own policy; stops at the
    /// first that fails.
    pub(crate) fn do_setattr(
        &self,
        cx: &Context<'_>,
        id: NodeId,
        change: &SetAttr,
    ) -> Result<AttrReply> {
        let node = self.node(id)?;
        // One of several changes may have been made.
        let outcome = self.setattr_where_there_is_room(cx, &node, change);
        self.in_doubt_if_failed(id, outcome)
    }

    fn setattr_where_there_is_room(
        &self,
        cx: &Context<'_>,
        node: &Arc<Node>,
        change: &SetAttr,
    ) -> Result<AttrReply> {
        loop {
            let held = node.share_move_lock(cx);
            let place = node.primary();
            let refusal = match self.setattr_held(node, change) {
                Err(errno) if is_full(errno.errno) && !node.is_dir() => errno,
                outcome => return outcome,
            };
            drop(held);
            let size_bytes = change.size_bytes.ok_or(refusal)?;
            let growth = size_bytes.saturating_sub(self.stat_file(node)?.stx_size);
            self.make_room(cx, node, growth, refusal, || node.primary() != place)?;
        }
    }

    /// SETATTR while the file stays where it is.
    fn setattr_held(&self, node: &Arc<Node>, change: &SetAttr) -> Result<AttrReply> {
        let view = self.view();
        let rules = &view.settings.policies;
        if let Some(mode) = change.mode {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            // The kernel has decided already whether the caller may set S_ISGID here. Nothing else
            // in a mode needs the power.
            if mode.contains(Mode::SGID) {
                sys::want_fsetid(true)?;
            }
            self.change_copies(&view, node, rules.chmod, &ToMode(mode))?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            sys::want_fsetid(!change.kill_suidgid)?;
            self.change_copies(&view, node, rules.chown, &ToOwner(uid, gid))?;
        }
        if let Some(size_bytes) = change.size_bytes {
            sys::want_fsetid(!change.kill_suidgid)?;
            self.truncate(node, change.handle, size_bytes)?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(change.atime),
                last_modification: timespec(change.mtime),
            };
            self.change_copies(&view, node, rules.utimens, &ToTimes(times))?;
        }
        if node.is_dir() {
            self.attributes_changed(&*self.dir_set(node)?);
        }
        self.do_getattr(node.id, change.handle)
    }

    /// Through a handle only the open file changes; by name every copy the policy picks.
    fn truncate(&self, node: &Arc<Node>, handle: Option<Handle>, size_bytes: u64) -> Result<()> {
        if node.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if self.view().settings.nullrw {
            return Ok(());
        }
        if handle.is_some() {
            return Ok(rustix::fs::ftruncate(
                &*self.writable_file(node, handle)?,
                size_bytes,
            )?);
        }
        let view = self.view();
        let copies = self.copies_to_change(&view, node, view.settings.policies.truncate)?;
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
            sys::truncate(copy.fd.as_fd(), size_bytes).map_err(|errno| {
                if copies.len() > 1 {
                    tracing::error!(branch = %copy.branch.path.display(), %errno, "a copy could not be truncated; copies of it on other branches may have been");
                }
                Error::at(&copy.branch, errno)
            })?;
        }
        Ok(())
    }
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
