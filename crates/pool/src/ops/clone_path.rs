//! Making a directory on a branch that lacks it, like the one that exists elsewhere.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Statx, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::branch::Branch;
use crate::locate::reopen;
use crate::node::{DirEntry, Node};
use crate::pool::Pool;
use crate::sys;

impl Pool {
    /// The directory of `node` on `branch`, made there (with its parents) if it is missing.
    ///
    /// # Errors
    /// Those of `mkdir(2)` on the branch; ENOENT if the directory is gone everywhere.
    pub(crate) fn ensure_dir(
        &self,
        node: &Arc<Node>,
        branch: &Arc<Branch>,
    ) -> sys::Result<DirEntry> {
        let mut missing = Vec::new();
        let mut at = Arc::clone(node);
        let mut here = loop {
            if let Some(entry) = self.dir_set(&at)?.on(branch.id) {
                break entry.clone();
            }
            let parent = self.parent_of(&at).ok_or(Errno::NOENT)?;
            missing.push(at);
            at = parent;
        };
        while let Some(next) = missing.pop() {
            let name = next.name().ok_or(Errno::NOENT)?.name;
            let model = self
                .dir_set(&next)?
                .entries
                .first()
                .cloned()
                .ok_or(Errno::NOENT)?;
            here = self.clone_dir(&model, &here, branch, &name)?;
            self.add_copy(&next, here.clone());
        }
        Ok(here)
    }

    fn clone_dir(
        &self,
        model: &DirEntry,
        parent: &DirEntry,
        branch: &Arc<Branch>,
        name: &OsStr,
    ) -> sys::Result<DirEntry> {
        let stat = sys::statx_fd(model.fd.as_fd())?;
        let parent_stat = sys::statx_fd(parent.fd.as_fd())?;
        sys::want_fsetid(true)?;
        // Closed to others until its owner and ACL are in place.
        match sys::with_umask(0, || rustix::fs::mkdirat(&parent.fd, name, Mode::RWXU)) {
            Ok(()) => {}
            // Made meanwhile by someone else: theirs to keep as it is.
            Err(Errno::EXIST) => return self.open_dir_entry(branch, parent.fd.as_fd(), name),
            Err(errno) => return Err(errno),
        }
        let entry = self.open_dir_entry(branch, parent.fd.as_fd(), name)?;
        if let Err(errno) = copy_metadata(model.fd.as_fd(), entry.fd.as_fd(), &stat) {
            // Half-made directories would show wrong permissions: better none.
            let _ = rustix::fs::unlinkat(&parent.fd, name, AtFlags::REMOVEDIR);
            return Err(errno);
        }
        // Making the clone is no change that users made: the parent's times stay.
        let _ = set_times(parent.fd.as_fd(), &parent_stat);
        Ok(entry)
    }

    /// Adds a branch's directory to a node's, in branch order.
    pub(crate) fn add_copy(&self, node: &Arc<Node>, entry: DirEntry) {
        let Ok(set) = self.dir_set(node) else { return };
        if set.on(entry.branch.id).is_some() {
            return;
        }
        let view = self.view();
        let mut entries: SmallVec<[DirEntry; 2]> = set.entries.clone();
        entries.push(entry);
        entries.sort_by_key(|entry| view.position(entry.branch.id));
        self.install(node, entries, sys::mono_coarse_ms(), set.generation);
    }
}

/// Owner, xattrs (ACLs among them), mode and times, in the order in which none undoes another.
fn copy_metadata(from: BorrowedFd<'_>, to: BorrowedFd<'_>, stat: &Statx) -> sys::Result<()> {
    let (uid, gid) = (Uid::from_raw(stat.stx_uid), Gid::from_raw(stat.stx_gid));
    match rustix::fs::chownat(to, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
        // Not root: everything is the server's own anyway.
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    copy_xattrs(from, to)?;
    let mode = Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777);
    let path = sys::ProcPath::new(to);
    rustix::fs::chmodat(rustix::fs::CWD, path.as_c_str(), mode, AtFlags::empty())?;
    copy_inode_flags(from, to);
    set_times(to, stat)
}

fn set_times(fd: BorrowedFd<'_>, stat: &Statx) -> sys::Result<()> {
    let spec = |time: rustix::fs::StatxTimestamp| Timespec {
        tv_sec: time.tv_sec,
        tv_nsec: i64::from(time.tv_nsec),
    };
    let times = Timestamps {
        last_access: spec(stat.stx_atime),
        last_modification: spec(stat.stx_mtime),
    };
    let path = sys::ProcPath::new(fd);
    rustix::fs::utimensat(rustix::fs::CWD, path.as_c_str(), &times, AtFlags::empty())
}

/// Copies every extended attribute the target can take. `security.*` names that the branch sets
/// by itself (labels) are not an error when refused.
///
/// # Errors
/// ENOSPC and the like: what says the branch cannot hold the directory faithfully.
fn copy_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> sys::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    // What the clone inherited from its parent is not the model's.
    for acl in ["system.posix_acl_access", "system.posix_acl_default"] {
        match sys::removexattr(to, OsStr::new(acl)) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    let len = match sys::listxattr(from, None) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(()),
        Ok(len) => len,
        Err(errno) => return Err(errno),
    };
    let mut names = vec![0u8; len + 256];
    let len = sys::listxattr(from, Some(&mut names))?;
    names.truncate(len);
    let mut value = vec![0u8; 65_536];
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let name = OsStr::from_bytes(name);
        let len = match sys::getxattr(from, name, Some(&mut value)) {
            Ok(len) => len,
            Err(Errno::NODATA) => continue,
            Err(errno) => return Err(errno),
        };
        match sys::setxattr(to, name, value.get(..len).unwrap_or_default(), 0) {
            Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Inode flags (no-copy-on-write, append-only, …), as far as the branch knows them.
fn copy_inode_flags(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
    const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
    /// What `chattr` may set and a directory passes on: not the filesystem's own state bits,
    /// nor immutable, which would forbid the very file being made.
    const COPIED: u32 = 0x0000_0001
        | 0x0000_0002
        | 0x0000_0004
        | 0x0000_0008
        | 0x0000_0040
        | 0x0000_0080
        | 0x0001_0000
        | 0x0080_0000;
    let read = |fd: BorrowedFd<'_>| -> sys::Result<(std::os::fd::OwnedFd, u32)> {
        let open = reopen(fd, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut word = [0u8; 8];
        sys::fs_ioctl(open.as_fd(), FS_IOC_GETFLAGS, &mut word)?;
        let [a, b, c, d, ..] = word;
        Ok((open, u32::from_ne_bytes([a, b, c, d])))
    };
    let (Ok((_, wanted)), Ok((target, has))) = (read(from), read(to)) else {
        return;
    };
    let flags = (has & !COPIED) | (wanted & COPIED);
    if flags != has {
        let mut word = [0u8; 8];
        word[..4].copy_from_slice(&flags.to_ne_bytes());
        let _ = sys::fs_ioctl(target.as_fd(), FS_IOC_SETFLAGS, &mut word);
    }
}
