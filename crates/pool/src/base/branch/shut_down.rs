//! Filesystems that have shut down: after an error (a disk that is gone, damage), or because somebody
//! told them to (`EXT4_IOC_SHUTDOWN`, `XFS_IOC_GOINGDOWN`), they answer nothing but EIO until they are
//! mounted anew. statvfs(2) and, with ext4, names that are remembered go on as ever.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::base::sys;

/// What is said of such a branch.
pub const SHUT_DOWN: &str = "its disk fails, or its filesystem has shut down after an error: see the \
                             kernel's log (dmesg), unmount it, check it, and mount it again";

/// Whether this is what such a filesystem answers.
pub fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::SHUTDOWN)
}

/// Whether the filesystem of a branch has shut down. Two calls have to say so which need nothing of its
/// disk where it is well and they fail: a disk that cannot read something is no reason to do without
/// the rest. May access the disk, and take its time.
pub fn has_shut_down(root: BorrowedFd<'_>) -> bool {
    // No such attribute: not even an error of the disk is likely, the root was just in use.
    // Branches are asked by threads with a table of their own, too.
    let path = sys::ProcPath::of_thread(root);
    let attribute = rustix::fs::getxattr(path.as_c_str(), c"user.strandfs.none", &mut [0; 1]);
    if !attribute.is_err_and(is_refusal) {
        return false;
    }
    let new = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(root, c".", new, Mode::RUSR) {
        Err(Errno::ROFS) => {
            let list = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(root, c".", list, Mode::empty()).is_err_and(is_refusal)
        }
        other => other.is_err_and(is_refusal),
    }
}
