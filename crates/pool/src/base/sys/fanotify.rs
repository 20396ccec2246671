//! fanotify: change events of whole filesystems, by file handle.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::base::sys::Result;
use crate::base::sys::raw::last_errno;

/// Every event that is watched for.
pub const WATCHABLE: u64 = libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_MOVED_FROM
    | libc::FAN_MOVED_TO
    | libc::FAN_MODIFY
    | libc::FAN_ATTRIB
    | libc::FAN_ONDIR;

/// What a group reports, for each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The directory, the name in it, and the inode behind the name.
    Names,
    /// The inode alone.
    Inodes,
}

/// A new group that never drops events for lack of room and never blocks a read.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN, EINVAL on a kernel that cannot report this, EMFILE.
pub fn fanotify_group(report: Report) -> Result<OwnedFd> {
    let detail = match report {
        Report::Names => libc::FAN_REPORT_DFID_NAME_TARGET,
        Report::Inodes => libc::FAN_REPORT_FID,
    };
    let flags = libc::FAN_CLASS_NOTIF
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_UNLIMITED_QUEUE
        | libc::FAN_UNLIMITED_MARKS
        | detail;
    let event_flags = (libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC).cast_unsigned();
    // SAFETY: no pointers are passed.
    let result = unsafe { libc::fanotify_init(flags, event_flags) };
    if result < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel just returned this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Reports the events of `mask` (`FAN_*`) anywhere on the filesystem of `at` (not `O_PATH`).
///
/// # Errors
/// EXDEV for a btrfs subvolume, ENODEV and EOPNOTSUPP where the filesystem has no identifier or
/// no file handles, EPERM.
pub fn fanotify_watch_filesystem(
    group: BorrowedFd<'_>,
    at: BorrowedFd<'_>,
    mask: u64,
) -> Result<()> {
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_FILESYSTEM;
    mark(group, flags, mask, at.as_raw_fd(), None)
}

/// Ends the reports of the filesystem of `at` to these groups.
pub fn fanotify_unwatch(groups: &[BorrowedFd<'_>], at: BorrowedFd<'_>) {
    for group in groups {
        let flags = libc::FAN_MARK_REMOVE | libc::FAN_MARK_FILESYSTEM;
        // Nothing reported is what is wanted, whatever the reason.
        let _ = mark(*group, flags, WATCHABLE, at.as_raw_fd(), None);
    }
}

/// Holds back the events of `mask` of the inode at `path`, or lets them pass again. The kernel
/// may let them pass earlier, when it drops the inode from memory.
///
/// # Errors
/// Those of `fanotify_mark(2)`; ENOENT if nothing was held back.
pub fn fanotify_ignore(group: BorrowedFd<'_>, path: &CStr, mask: u64, ignore: bool) -> Result<()> {
    let flags = if ignore {
        libc::FAN_MARK_ADD | libc::FAN_MARK_EVICTABLE
    } else {
        libc::FAN_MARK_REMOVE
    };
    let flags = flags | libc::FAN_MARK_IGNORE_SURV;
    mark(group, flags, mask, libc::AT_FDCWD, Some(path))
}

/// Lets the events of all inodes pass again.
///
/// # Errors
/// Those of `fanotify_mark(2)`.
pub fn fanotify_ignore_nothing(group: BorrowedFd<'_>) -> Result<()> {
    mark(group, libc::FAN_MARK_FLUSH, 0, libc::AT_FDCWD, None)
}

fn mark(
    group: BorrowedFd<'_>,
    flags: libc::c_uint,
    mask: u64,
    at: libc::c_int,
    path: Option<&CStr>,
) -> Result<()> {
    let path = path.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: `path` is null or ends with NUL and outlives the call.
    let result = unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, at, path) };
    if result < 0 {
        return Err(last_errno());
    }
    Ok(())
}
