//! Whose word for holes is taken (`SEEK_HOLE`, `SEEK_DATA`, no blocks at all).
//!
//! A server, of this machine (FUSE) or another, does not know what the kernel has yet to write to it: where
//! that is, it says that there is a hole. Whoever believes it copies zeros.

use std::os::fd::BorrowedFd;

use crate::base::magic;

/// Whether the filesystem of a file tells holes by what is in the page cache, too. ZFS and the others that do
/// not count here may, or may not in some version.
pub(crate) fn are_told(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|fs| tells(fs.f_type as u64))
}

fn tells(kind: u64) -> bool {
    matches!(
        kind,
        magic::EXT4 | magic::XFS | magic::BTRFS | magic::TMPFS | magic::F2FS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_server_and_no_unknown_filesystem_is_believed() {
        assert!(tells(magic::EXT4) && tells(magic::TMPFS));
        // FUSE, NFS, SMB2, Ceph, 9p, overlayfs, ZFS.
        for kind in [
            0x6573_5546,
            0x6969,
            0xfe53_4d42,
            0x00c3_6400,
            0x0102_1997,
            0x794c_7630,
            0x2fc1_2fc1,
            0,
        ] {
            assert!(!tells(kind), "{kind:x}");
        }
    }
}
