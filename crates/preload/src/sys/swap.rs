//! Puts the branch file in the place of a pool's file.

use libc::c_int;
use strandfs_preload_abi::BranchFile;

use super::calls::{self, Device, Identity};
use super::known::{Id, remember};

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
    // elsewhere the ioctl.
    if !pool.is_regular || pool.device.major != 0 {
        return None;
    }
    let answer = calls::branch_file(fd)?;
    let path = answer.path_with_nul()?;
    let flags = flags & !DONE | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY;
    // SAFETY: `path` is a string ended by NUL.
    let branch = unsafe { calls::openat(libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    if branch < 0 {
        return None;
    }
    let fits = is_the_file(branch, &answer)
        && same_position(fd, branch)
        && remember(branch_id(&answer), id(pool));
    if fits {
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
