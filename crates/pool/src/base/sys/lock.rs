//! Byte-range locks by open file description, and `flock`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::base::sys::Result;
use crate::base::sys::raw::last_errno;

/// A byte range to lock; `len_bytes` 0 means to the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLock {
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// First byte.
    pub start_bytes: i64,
    /// Length.
    pub len_bytes: i64,
}

impl RangeLock {
    fn raw(self) -> libc::flock {
        libc::flock {
            l_type: self.kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.start_bytes,
            l_len: self.len_bytes,
            l_pid: 0,
        }
    }
}

/// `F_OFD_SETLK`: does not wait.
///
/// # Errors
/// EAGAIN on a conflict, else those of `fcntl(2)`.
pub fn set_range_lock(fd: BorrowedFd<'_>, lock: RangeLock) -> Result<()> {
    let mut raw = lock.raw();
    // SAFETY: `raw` is a valid struct flock for the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw mut raw) };
    match result {
        0 => Ok(()),
        _ => match last_errno() {
            Errno::ACCESS => Err(Errno::AGAIN),
            other => Err(other),
        },
    }
}

/// `F_OFD_GETLK`: the first conflicting lock and its holder's pid (-1 for one held by an open
/// file description), or `None`.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn get_range_lock(fd: BorrowedFd<'_>, lock: RangeLock) -> Result<Option<(RangeLock, i32)>> {
    let mut raw = lock.raw();
    // SAFETY: `raw` is a valid struct flock for the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut raw) };
    if result != 0 {
        return Err(last_errno());
    }
    if i32::from(raw.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let found = RangeLock {
        kind: i32::from(raw.l_type),
        start_bytes: raw.l_start,
        len_bytes: raw.l_len,
    };
    Ok(Some((found, raw.l_pid)))
}

/// `flock(2)` with raw `LOCK_*` bits.
///
/// # Errors
/// EAGAIN (EWOULDBLOCK) on a conflict with `LOCK_NB`, EINTR when interrupted.
pub fn flock(fd: BorrowedFd<'_>, operation: i32) -> Result<()> {
    // SAFETY: plain integers.
    if unsafe { libc::flock(fd.as_raw_fd(), operation) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}
