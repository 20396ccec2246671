//! Opening on a branch: directories to look into or to read, and files anew.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::base::sys;

/// A new open file description of the inode behind `fd`, which may be `O_PATH`.
///
/// # Errors
/// Those of `open(2)`; EAGAIN while somebody has a lease that stands against it: no thread waits.
pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> sys::Result<OwnedFd> {
    let path = sys::ProcPath::new(fd);
    let flags = flags.difference(OFlags::NOFOLLOW) | OFlags::CLOEXEC | OFlags::NONBLOCK;
    past_own_leases(|| rustix::fs::open(path.as_c_str(), flags, Mode::empty()))
}

/// Opens with `O_NONBLOCK`. The server takes leases itself, for a moment, to learn who writes: to
/// meet one of those is no reason to fail, or to pass over a copy.
pub(crate) fn past_own_leases(open: impl Fn() -> sys::Result<OwnedFd>) -> sys::Result<OwnedFd> {
    match open() {
        Err(Errno::AGAIN) => sys::without_own_leases(open),
        outcome => outcome,
    }
}

/// A directory by its name, to be looked into.
///
/// # Errors
/// Those of `open(2)`.
pub(crate) fn open_dir(dir: BorrowedFd<'_>, name: &OsStr) -> sys::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// A directory open for reading, without a trace in its access time.
pub(crate) fn open_readable(dir: BorrowedFd<'_>, name: &OsStr) -> sys::Result<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOATIME;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// A descriptor of a directory that can be read from its start.
pub(crate) fn open_for_reading(dir: BorrowedFd<'_>) -> sys::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOATIME;
    match rustix::fs::openat(dir, c".", flags, Mode::empty()) {
        // O_NOATIME is for owners.
        Err(Errno::PERM) => {
            let flags = flags.difference(OFlags::NOATIME);
            rustix::fs::openat(dir, c".", flags, Mode::empty())
        }
        other => other,
    }
}
