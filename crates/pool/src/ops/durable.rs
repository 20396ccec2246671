//! What has to outlive a power cut: before something else is removed on another disk, or before it is
//! answered (`dirsync`). One disk comes back with its changes in their order, up to some moment; of two, each
//! has a moment of its own.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use strandfs_fuse::{Context, Entry, NodeId, OpenReply, Release};

use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::open::{open_for_reading, reopen};
use crate::base::sys;
use crate::directory::{Directories, forget, set};
use crate::ops::open;
use crate::state::node::DirEntry;

/// Whether two directories are on one filesystem, as far as can be told.
pub(super) fn same_disk(one: &DirEntry, other: &DirEntry) -> bool {
    let device = |dir: &DirEntry| {
        let stat = sys::statx_fd(dir.fd.as_fd()).ok()?;
        Some((stat.stx_dev_major, stat.stx_dev_minor))
    };
    let known = device(one);
    known.is_some() && known == device(other)
}

/// Has a file and its name in a directory on disk.
///
/// # Errors
/// Those of `fsync(2)` that tell of a loss. A file that the server may not read, and a filesystem
/// that syncs nothing, are left to themselves.
pub(super) fn name(dir: &DirEntry, name: &OsStr) -> sys::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&dir.fd, name, flags, Mode::empty())?;
    let stat = sys::statx_fd(file.as_fd())?;
    if FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::RegularFile
        && let Ok(file) = reopen(file.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)
    {
        sync(file)?;
    }
    self::dir(dir)
}

/// Has the names in a directory on disk.
///
/// # Errors
/// As for [`name`].
pub(super) fn dir(dir: &DirEntry) -> sys::Result<()> {
    match open_for_reading(dir.fd.as_fd()) {
        Ok(dir) => sync(dir),
        Err(Errno::ACCESS | Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// In a pool mounted `dirsync` or `sync`: has the names in some directories on disk, on every branch, after a
/// change of them. In any other there is nothing to do.
///
/// # Errors
/// As for [`name`]. The change has been made all the same.
pub(crate) fn names_in(pool: &Directories, cx: &Context<'_>, dirs: &[NodeId]) -> Result<()> {
    let flags = pool.view().settings.mount.flags;
    if !flags.sync && !flags.dirsync {
        return Ok(());
    }
    cx.may_block();
    for id in dirs {
        let found = pool.node(*id).and_then(|node| set::dir_set(pool, &node));
        let set = match found {
            // It is gone by now, and what was in it.
            Err(Error {
                errno: Errno::NOENT | Errno::STALE,
                ..
            }) => continue,
            found => found?,
        };
        for entry in &set.entries {
            (entry.branch)
                .call(Call::Sync, || dir(entry))
                .map_err(|errno| Error::at(&entry.branch, errno))?;
        }
    }
    Ok(())
}

/// The same for what was made in a directory. If that fails the kernel hears nothing of it.
///
/// # Errors
/// As for [`names_in`].
pub(crate) fn made(
    pool: &Directories,
    cx: &Context<'_>,
    parent: NodeId,
    entry: Entry,
) -> Result<Entry> {
    match names_in(pool, cx, &[parent]) {
        Ok(()) => Ok(entry),
        Err(error) => {
            forget::take_back(pool, &entry);
            Err(error)
        }
    }
}

/// The same for a file that was made and opened.
///
/// # Errors
/// As for [`names_in`].
pub(crate) fn created(
    pool: &Directories,
    cx: &Context<'_>,
    parent: NodeId,
    (entry, opened): (Entry, OpenReply),
) -> Result<(Entry, OpenReply)> {
    match made(pool, cx, parent, entry) {
        Ok(entry) => Ok((entry, opened)),
        Err(error) => {
            let closed = Release {
                handle: opened.handle,
                flags: 0,
                flush: false,
                flock_owner: None,
            };
            open::release(pool, &closed)?;
            Err(error)
        }
    }
}

fn sync(file: OwnedFd) -> sys::Result<()> {
    match rustix::fs::fsync(file) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::ROFS) => Ok(()),
        outcome => outcome,
    }
}
