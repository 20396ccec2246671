//! What has to outlive a power cut before something else is removed on another disk. One disk comes
//! back with its changes in their order, up to some moment; of two, each has a moment of its own.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::base::open::{open_for_reading, reopen};
use crate::base::sys;
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

fn sync(file: OwnedFd) -> sys::Result<()> {
    match rustix::fs::fsync(file) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::ROFS) => Ok(()),
        outcome => outcome,
    }
}
