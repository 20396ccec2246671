//! What btrfs tells and does by ioctl. Each takes an open directory, not `O_PATH`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::Result;
use super::filesystem_id::answer;

/// `BTRFS_IOC_FS_INFO`, of `struct btrfs_ioctl_fs_info_args`.
const INFO: u32 = 0x8400_941f;
const DEVICES_AT: usize = 8;
const UUID_AT: usize = 16;
/// `BTRFS_IOC_START_SYNC`, of the number of a transaction: the kernel says which it began to commit.
const START_SYNC: u32 = 0x8008_9418;
/// `BTRFS_IOC_WAIT_SYNC`, of that number.
const WAIT_SYNC: u32 = 0x4008_9416;

/// How many devices the btrfs of a directory consists of; none if it is another filesystem.
pub fn btrfs_devices(dir: BorrowedFd<'_>) -> Option<u64> {
    let info = answer::<1024>(dir, INFO)?;
    let count = info.get(DEVICES_AT..DEVICES_AT + 8)?;
    Some(u64::from_ne_bytes(count.try_into().ok()?))
}

/// The UUID by which the kernel knows the btrfs of a directory; none if it is another filesystem.
pub fn btrfs_uuid(dir: BorrowedFd<'_>) -> Option<[u8; 16]> {
    let info = answer::<1024>(dir, INFO)?;
    info.get(UUID_AT..UUID_AT + 16)?.try_into().ok()
}

/// Waits until all that was removed on the btrfs of a directory can be written over. What others have written
/// and nobody has synced is not written for this.
///
/// # Errors
/// ENOTTY on another filesystem; EROFS, EIO.
pub fn btrfs_commit(dir: BorrowedFd<'_>) -> Result<()> {
    let mut number = 0_u64;
    for command in [START_SYNC, WAIT_SYNC] {
        // SAFETY: both commands transfer eight bytes, and `number` holds them.
        let result =
            unsafe { libc::ioctl(dir.as_raw_fd(), command as libc::Ioctl, &raw mut number) };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn other_filesystems_say_that_they_are_none() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(btrfs_devices(proc.as_fd()), None);
        assert_eq!(btrfs_uuid(proc.as_fd()), None);
        assert_eq!(btrfs_commit(proc.as_fd()), Err(Errno::NOTTY));
    }
}
