//! Filesystems by the number that `statfs(2)` gives them (`linux/magic.h`).

pub(crate) const BTRFS: u64 = libc::BTRFS_SUPER_MAGIC as u64;
/// And ext2 and ext3.
pub(crate) const EXT4: u64 = libc::EXT4_SUPER_MAGIC as u64;
pub(crate) const F2FS: u64 = 0xf2f5_2010;
/// Of descriptors of processes, where each process has a number of its own (Linux 6.9).
pub(crate) const PIDFS: u64 = 0x5049_4446;
pub(crate) const TMPFS: u64 = libc::TMPFS_MAGIC as u64;
pub(crate) const XFS: u64 = libc::XFS_SUPER_MAGIC as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_as_the_kernel_has_them() {
        let all = [BTRFS, EXT4, TMPFS, XFS];
        assert_eq!(all, [0x9123_683e, 0xef53, 0x0102_1994, 0x5846_5342]);
    }
}
