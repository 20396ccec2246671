//! What XFS does by ioctl.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::Result;

/// `XFS_IOC_FREE_EOFBLOCKS`, of `struct xfs_fs_eofblocks`.
const FREE_EOFBLOCKS: u32 = 0x8080_583a;
const VERSION: u32 = 1;
/// `XFS_EOF_FLAGS_SYNC`.
const FLAG_SYNC: u32 = 1;

/// Waits until what was removed on the XFS of an open directory (not `O_PATH`) is free: it sees to that a
/// while later otherwise. It also gives back what it has reserved ahead of writers; with `of_all` also ahead
/// of those who are writing, for each of whom it waits.
///
/// # Errors
/// ENOTTY on another filesystem; EROFS; EPERM without CAP_SYS_ADMIN.
pub fn xfs_reclaim(dir: BorrowedFd<'_>, of_all: bool) -> Result<()> {
    let mut wanted = [0_u32; 32];
    (wanted[0], wanted[1]) = (VERSION, u32::from(of_all) * FLAG_SYNC);
    // SAFETY: the command reads 128 bytes, which `wanted` has, and writes none.
    let result = unsafe {
        libc::ioctl(
            dir.as_raw_fd(),
            FREE_EOFBLOCKS as libc::Ioctl,
            wanted.as_mut_ptr(),
        )
    };
    match result {
        0 => Ok(()),
        _ => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn other_filesystems_say_that_they_are_none() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(xfs_reclaim(proc.as_fd(), true), Err(Errno::NOTTY));
    }
}
