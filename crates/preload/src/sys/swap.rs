//! Puts the branch file in the place of a pool's file.

use libc::c_int;
use strandfs_preload_abi::BranchFile;

use super::calls::{self, Device, Identity};
use super::known::{Id, remember};
use super::trust;

/// Flags of an open that has no data to speed up.
const LEFT_ALONE: c_int = libc::O_PATH | libc::O_DIRECTORY;
/// What the first open has done already.
const DONE: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;

/// Called with the result of an open. If it is a regular file of a pool, puts the branch file in
/// its place, at the same position and with the same flags. Leaves `errno` as it was.
pub fn improve(fd: c_int) -> c_int {
    if fd >= 0 {
        let errno = calls::errno();
        swap(fd);
        calls::set_errno(errno);
    }
    fd
}

fn swap(fd: c_int) -> Option<()> {
    let flags = calls::open_flags(fd)?;
    if flags & LEFT_ALONE != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return None;
    }
    let pool = calls::identity(fd)?;
    // FUSE mounts have no device of their own, hence major 0: this spares every program's files
    // elsewhere the look at the mount. It comes before the question: the server of a mount that
    // somebody else made answers what it likes.
    if !pool.is_regular || pool.device.major != 0 || !trust::is_trusted(fd) {
        return None;
    }
    let answer = calls::branch_file(fd)?;
    let path = answer.path_with_nul()?;
    // What is at the path is not opened before it is known to be the file: opening a device or a
    // fifo that was put there could do harm by itself.
    let place = calls::place(path);
    if place < 0 {
        return None;
    }
    let flags = flags & !DONE & !libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY;
    let branch = match is_the_file(place, &answer) {
        true => calls::reopen(place, flags),
        false => -1,
    };
    calls::close(place);
    if branch < 0 {
        return None;
    }
    if same_position(fd, branch) && remember(branch_id(&answer), id(pool)) {
        calls::replace(branch, fd, calls::closes_at_exec(fd));
    }
    calls::close(branch);
    Some(())
}

fn device(answer: &BranchFile) -> Device {
    Device {
        major: answer.device_major,
        minor: answer.device_minor,
    }
}

fn branch_id(answer: &BranchFile) -> Id {
    Id {
        device: calls::number(device(answer)),
        inode: answer.inode,
    }
}

fn id(found: Identity) -> Id {
    Id {
        device: calls::number(found.device),
        inode: found.inode,
    }
}

/// Whether what was found at the path is what the server spoke of: the file may have been renamed
/// meanwhile, and this process may see other mounts.
fn is_the_file(branch: c_int, answer: &BranchFile) -> bool {
    calls::identity(branch).is_some_and(|found| {
        found.is_regular && found.inode == answer.inode && found.device == device(answer)
    })
}

/// libc has moved the stream of `fopen(…, "a")` to its end.
fn same_position(fd: c_int, branch: c_int) -> bool {
    match calls::position(fd) {
        Some(0) => true,
        Some(at) => calls::set_position(branch, at),
        None => false,
    }
}
