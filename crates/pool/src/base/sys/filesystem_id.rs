//! What filesystems are told apart by.

use std::os::fd::{AsRawFd, BorrowedFd};

/// `FS_IOC_GETFSUUID` (Linux 6.9), of `struct fsuuid2`: a length and 16 bytes.
const GET_UUID: u32 = 0x8011_1500;
/// `XFS_IOC_FSGEOMETRY_V1`, of `struct xfs_fsop_geom_v1`.
const XFS_GEOMETRY: u32 = 0x8070_5864;
const XFS_UUID_AT: usize = 64;

/// The UUID of the filesystem of an open directory (not `O_PATH`), which any caller may ask for. A
/// shorter one ends in zeros; none if the filesystem has none or the kernel does not tell.
pub fn filesystem_uuid(dir: BorrowedFd<'_>) -> Option<[u8; 16]> {
    let uuid = match answer::<17>(dir, GET_UUID) {
        // The first byte is its length.
        Some(answer) => answer.get(1..)?.try_into().ok()?,
        None => answer::<112>(dir, XFS_GEOMETRY)?
            .get(XFS_UUID_AT..XFS_UUID_AT + 16)?
            .try_into()
            .ok()?,
    };
    (uuid != [0; 16]).then_some(uuid)
}

/// What an ioctl says whose number has the size of its answer in it.
pub(super) fn answer<const SIZE: usize>(dir: BorrowedFd<'_>, command: u32) -> Option<[u8; SIZE]> {
    if (command >> 16 & 0x3fff) as usize != SIZE {
        return None;
    }
    let mut space = [0u8; SIZE];
    // SAFETY: such a command transfers as many bytes as its number says, and `space` holds them.
    let result =
        unsafe { libc::ioctl(dir.as_raw_fd(), command as libc::Ioctl, space.as_mut_ptr()) };
    (result == 0).then_some(space)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_has_no_uuid_says_so() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert_eq!(filesystem_uuid(proc.as_fd()), None);
    }
}
