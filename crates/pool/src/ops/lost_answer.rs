//! Calls on names that a branch carries out and says it has not: a disk that fails in the middle, a server
//! whose answer is lost. Such a call is made a second time nowhere: it would meet its own work, or there
//! would be two of what was asked for once. Where the branch cannot be asked what has become of it the
//! request ends there, too.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::base::error::{Error, Result};
use crate::base::open::reopen;
use crate::base::sys;
use crate::state::node::DirEntry;

/// Whether a branch has judged the call, and not begun with it.
pub(super) fn is_judged(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EXIST
            | Errno::NOENT
            | Errno::NOTDIR
            | Errno::ISDIR
            | Errno::NOTEMPTY
            | Errno::ACCESS
            | Errno::PERM
            | Errno::ROFS
            | Errno::XDEV
            | Errno::INVAL
            | Errno::NAMETOOLONG
            | Errno::LOOP
            | Errno::MLINK
            | Errno::BUSY
            | Errno::NOSYS
            | Errno::MFILE
            | Errno::NFILE
    )
}

/// The failure to make a name that was not there before.
#[cold]
pub(super) fn of_making(dir: &DirEntry, name: &OsStr, error: Error) -> Error {
    if is_judged(error.errno) {
        return error;
    }
    match sys::statx_name(dir.fd.as_fd(), name) {
        Err(Errno::NOENT) => error,
        Ok(_) | Err(_) => error.after_effect(),
    }
}

/// What a removal is that failed.
///
/// # Errors
/// The failure, where the name is there or may be.
#[cold]
pub(super) fn of_removing(dir: &DirEntry, name: &OsStr, errno: Errno) -> Result<()> {
    match sys::statx_name(dir.fd.as_fd(), name) {
        Err(Errno::NOENT) => Ok(()),
        Err(_) if !is_judged(errno) => Err(Error::from(errno).after_effect()),
        Ok(_) | Err(_) => Err(errno.into()),
    }
}

/// What an append is that failed, to a file that ended there as far as the kernel knew: a second time it would
/// be in the file twice.
///
/// # Errors
/// The failure, where the file ends there still, or what follows is not what was appended.
#[cold]
pub(super) fn of_appending(
    file: BorrowedFd<'_>,
    data: &[u8],
    end: u64,
    error: Error,
) -> Result<usize> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let stat = rustix::fs::statx(file, c"", flags, StatxFlags::SIZE);
    if stat.is_ok_and(|stat| stat.stx_size == end) {
        return Err(error);
    }
    let mut found = vec![0; data.len()];
    let mut read = || rustix::io::pread(reopen(file, OFlags::RDONLY)?, &mut found, end);
    match read() == Ok(data.len()) && found == data {
        true => Ok(data.len()),
        false => Err(error.after_effect()),
    }
}

/// What a rename is that failed, of the inode number `ino` from one name to another.
///
/// # Errors
/// The failure, where the inode has its old name or may have it.
#[cold]
pub(super) fn of_renaming(
    ino: u64,
    (from, from_name): (&DirEntry, &OsStr),
    (to, to_name): (&DirEntry, &OsStr),
    errno: Errno,
) -> Result<()> {
    let has_it = |dir: &DirEntry, name| match sys::statx_name(dir.fd.as_fd(), name) {
        Ok(stat) => Some(stat.stx_ino == ino),
        Err(Errno::NOENT) => Some(false),
        Err(_) => None,
    };
    match (has_it(from, from_name), has_it(to, to_name)) {
        (Some(false), Some(true)) => Ok(()),
        (Some(true), _) => Err(errno.into()),
        _ if is_judged(errno) => Err(errno.into()),
        _ => Err(Error::from(errno).after_effect()),
    }
}
