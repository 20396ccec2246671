//! Whether a caller may do by today's owner, group and mode what the kernel has judged by those that it was
//! told: changed behind the pool, they are others by now. Where they are certainly the same the kernel's
//! word holds, and nobody is looked at.
//!
//! An access list that changes while the mode stays is not noticed: the kernel keeps it for as long as the
//! attributes.

use std::os::fd::BorrowedFd;

use rustix::fs::Statx;
use rustix::io::Errno;
use strandfs_fuse::{Context, FileKind};

use crate::base::rights::Rights;
use crate::base::sys;
use crate::ops::hidden_copies::is_granted;
use crate::ops::privilege::{self, caller_uid};
use crate::state::State;
use crate::state::identity::kind_of;
use crate::state::node::{Node, Told};
use crate::state::view::View;

/// Permissions as a class of a mode has them.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const EXECUTE: u32 = 0o1;

/// Of an `open(2)` by whoever is about to run the file (`__FMODE_EXEC` in the kernel's `fs.h`).
pub(crate) const FMODE_EXEC: i32 = 0x20;

/// One caller before one node.
pub(crate) struct TodaysRights<'a> {
    pool: &'a State,
    view: &'a View,
    cx: &'a Context<'a>,
    kind: FileKind,
    told: Told,
}

impl<'a> TodaysRights<'a> {
    /// By what the kernel was told of the node.
    pub fn of(
        pool: &'a State,
        view: &'a View,
        cx: &'a Context<'a>,
        node: &Node,
    ) -> TodaysRights<'a> {
        TodaysRights {
            pool,
            view,
            cx,
            kind: node.kind,
            told: node.rights_told.told(),
        }
    }

    /// Whether the kernel has judged by what the node has now, or nobody is to.
    pub fn are_those_told(&self, now: &Rights) -> bool {
        !self.view.settings.attributes.kernel_permissions_check
            || self.told.is(&self.view.presented(*now))
    }

    /// Whether a copy of these rights may be written to.
    ///
    /// # Errors
    /// EACCES if not.
    pub fn check_writer(&self, copy: BorrowedFd<'_>, now: &Rights) -> sys::Result<()> {
        self.check_granted(copy, now, WRITE)
    }

    /// Whether its times may be set to the present (fs/attr.c, `may_setattr`).
    ///
    /// # Errors
    /// EACCES if not.
    pub fn check_toucher(&self, copy: BorrowedFd<'_>, now: &Rights) -> sys::Result<()> {
        match self.are_those_told(now) || self.is_owner(now) {
            true => Ok(()),
            false => self.check_granted(copy, now, WRITE),
        }
    }

    /// Whether an attribute `user.*` may be set or removed (fs/xattr.c, `xattr_permission`).
    ///
    /// # Errors
    /// EPERM for who does not own a sticky directory, EACCES for who may not write.
    pub fn check_annotator(&self, copy: BorrowedFd<'_>, now: &Rights) -> sys::Result<()> {
        let is_sticky = self.kind == FileKind::Directory && now.mode & libc::S_ISVTX != 0;
        if is_sticky && !self.are_those_told(now) && !self.is_owner(now) {
            return Err(Errno::PERM);
        }
        self.check_writer(copy, now)
    }

    /// Whether `security.*` may be set or removed: a capability by who has power over owner and group
    /// (kernel/capability.c, `capable_wrt_inode_uidgid`).
    ///
    /// # Errors
    /// EPERM if not.
    pub fn check_securer(&self, now: &Rights) -> sys::Result<()> {
        match self.are_those_told(now) || privilege::sets_capabilities(self.cx) {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// Whether a capability may be removed: also by who writes, in whose name the kernel removes it.
    ///
    /// # Errors
    /// EPERM if not.
    pub fn check_taker(&self, copy: BorrowedFd<'_>, now: &Rights) -> sys::Result<()> {
        let secures = self.check_securer(now);
        secures.or_else(|refusal| self.check_writer(copy, now).map_err(|_| refusal))
    }

    /// Whether a copy may be given a further name (fs/namei.c, `may_linkat`).
    ///
    /// # Errors
    /// EPERM for who does not own what `fs.protected_hardlinks` protects.
    pub fn check_linker(&self, copy: BorrowedFd<'_>, stat: &Statx) -> sys::Result<()> {
        let now = Rights::of(stat);
        let has_set_id = now.mode & libc::S_ISUID != 0
            || now.mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP;
        let is_file = self.kind == FileKind::Regular && kind_of(stat) == FileKind::Regular;
        let is_ordinary = is_file && !has_set_id;
        let shown_uid = self.view.presented(now).uid;
        let is_settled = match is_file {
            // Whether the kernel has known of set-id bits nobody can tell.
            true if has_set_id => {
                self.are_those_told(&now) && !privilege::is_known(self.pool, self.cx)
            }
            true => self.are_those_told(&now),
            false => self.told.uid == Some(shown_uid),
        };
        let may = is_settled
            || !self.view.settings.attributes.kernel_permissions_check
            || self.is_owner(&now)
            || is_ordinary && self.is_granted(copy, &now, READ | WRITE)
            || !links_are_protected();
        match may {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// Whether the file may be opened so (fs/namei.c, `may_open`).
    ///
    /// # Errors
    /// EACCES if not; EPERM for who wants no access time to be set and is no owner.
    pub fn check_opener(&self, file: BorrowedFd<'_>, stat: &Statx, flags: i32) -> sys::Result<()> {
        let now = Rights::of(stat);
        if self.are_those_told(&now) {
            return Ok(());
        }
        let mut wanted = match flags & libc::O_ACCMODE {
            libc::O_RDONLY if flags & FMODE_EXEC != 0 => EXECUTE,
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if flags & libc::O_TRUNC != 0 {
            wanted |= WRITE;
        }
        self.check_granted(file, &now, wanted)?;
        let may_keep_time = flags & libc::O_NOATIME == 0
            || self.told.uid == Some(self.view.presented(now).uid)
            || self.is_owner(&now);
        match may_keep_time {
            true => Ok(()),
            false => Err(Errno::PERM),
        }
    }

    /// Of who is known to nobody (NFS, idmapped mounts), or not with all groups, the kernel's word is taken.
    fn check_granted(&self, copy: BorrowedFd<'_>, now: &Rights, wanted: u32) -> sys::Result<()> {
        let may = self.are_those_told(now)
            || self.is_granted(copy, now, wanted)
            || !privilege::is_known(self.pool, self.cx)
            || privilege::acts_for_others(self.cx);
        match may {
            true => Ok(()),
            false => Err(Errno::ACCESS),
        }
    }

    fn is_granted(&self, copy: BorrowedFd<'_>, now: &Rights, wanted: u32) -> bool {
        is_granted(self.cx, copy, &self.view.presented(*now), wanted)
    }

    fn is_owner(&self, now: &Rights) -> bool {
        let shown = self.view.presented(*now).uid;
        caller_uid(self.cx) == Some(shown) || privilege::acts_for_owner(self.cx, shown)
    }
}

/// `fs.protected_hardlinks` (proc_sys_fs(5)), which may change at any time; on where it cannot be read.
fn links_are_protected() -> bool {
    let setting = std::fs::read("/proc/sys/fs/protected_hardlinks");
    setting.map_or(true, |setting| !setting.starts_with(b"0"))
}
