//! Puts the branch file in the place of a pool's file.

use libc::c_int;
use strandfs_preload_abi::BranchFile;

use super::calls::{self, Device, Identity};
use super::known::{Id, remember};
use super::sides::{self, Side};
use super::{shell, trust};

/// Flags of an open that has no data to speed up.
const LEFT_ALONE: c_int = libc::O_PATH | libc::O_DIRECTORY;
/// What the first open has done already.
const DONE: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;

/// Called with the result of an open. If it is a regular file of a pool, closes it and returns a
/// descriptor of the branch file, with the same flags. Leaves `errno` as it was.
///
/// Most files are nobody's pool's, and stacks may be small (those of signal handlers): what needs
/// room is in functions of its own.
pub fn improve(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let errno = calls::errno();
    let result = match candidate(fd) {
        Some((pool, flags)) if may_ask(fd, id(pool)) => swap(fd, flags, id(pool)),
        _ => fd,
    };
    calls::set_errno(errno);
    result
}

/// What may be a file of a pool, and the flags it was opened with.
#[inline(never)]
fn candidate(fd: c_int) -> Option<(Identity, c_int)> {
    let flags = calls::open_flags(fd)?;
    if flags & LEFT_ALONE != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return None;
    }
    let pool = calls::identity(fd)?;
    // FUSE mounts have no device of their own, hence major 0: this spares every program's files
    // elsewhere the look at the mount.
    (pool.is_regular && pool.device.major == 0).then_some((pool, flags))
}

/// Whether the server is asked. The look at the mount comes before the question: the server of a
/// mount that somebody else made answers what it likes.
#[inline(never)]
fn may_ask(fd: c_int, pool: Id) -> bool {
    sides::of(pool) != Some(Side::Pool) && !shell::is_one() && trust::is_trusted(fd)
}

#[inline(never)]
fn swap(fd: c_int, flags: c_int, pool: Id) -> c_int {
    let mut answer = BranchFile::EMPTY;
    if !calls::branch_file(fd, &mut answer) {
        return fd;
    }
    let Some(path) = answer.path_with_nul() else {
        return fd;
    };
    // What is at the path is not opened before it is known to be the file: opening a device or a
    // fifo that was put there could do harm by itself.
    let place = calls::place(path);
    if place < 0 {
        return fd;
    }
    let result = match is_the_file(place, &answer)
        && is_on_branchs_side(fd, pool, answer.open_elsewhere != 0)
        && remember(branch_id(&answer), calls::born(place), pool)
    {
        true => exchange(fd, place, flags),
        false => fd,
    };
    calls::close(place);
    result
}

/// Closes the pool's file and opens the branch file, in this order: a descriptor of the branch file
/// cannot be moved to another number without a close, by which the process would lose its locks.
/// The lowest free number is what open(2) returns.
fn exchange(fd: c_int, place: c_int, flags: c_int) -> c_int {
    let cloexec = calls::closes_at_exec(fd);
    let kept = calls::duplicate(fd, true);
    if kept < 0 {
        return fd;
    }
    calls::close(fd);
    let at_exec = if cloexec { libc::O_CLOEXEC } else { 0 };
    let flags = flags & !DONE & !libc::O_NOFOLLOW & !libc::O_CLOEXEC | at_exec | libc::O_NOCTTY;
    let mut result = calls::reopen(place, flags);
    if result < 0 {
        result = calls::duplicate(kept, cloexec);
    }
    if result < 0 {
        // Another thread took the number that was free.
        calls::close_at_exec(kept, cloexec);
        return kept;
    }
    calls::close(kept);
    result
}

/// Whether the file's descriptors are on the branch's side in this process. If that is yet to be
/// decided: not if there is one of the pool's, which may have locks, or get some.
fn is_on_branchs_side(fd: c_int, pool: Id, open_elsewhere: bool) -> bool {
    let decided = sides::of(pool).unwrap_or_else(|| {
        let is_other = |other| {
            other != fd
                && calls::identity(other).is_some_and(|found| found.is_regular && id(found) == pool)
        };
        let has_other = open_elsewhere && calls::any_descriptor(is_other) != Some(false);
        let wanted = if has_other { Side::Pool } else { Side::Branch };
        sides::decide(pool, wanted)
    });
    decided == Side::Branch
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

/// An identity as stat(2) tells it.
pub fn id(found: Identity) -> Id {
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
