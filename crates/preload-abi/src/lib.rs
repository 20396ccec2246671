//! What the preload library and the server say to each other: one ioctl on an open file of a pool,
//! answered with the place of the branch file beneath it.
//!
//! The answer grants nothing. The program opens the branch file itself, with its own rights, and
//! compares its identity with the answer's. It asks only a pool that root or the user themself has
//! mounted ([`MountSearch`]): any other server could name any file that the program may open.
#![no_std]
#![forbid(unsafe_code)]

mod mount;

pub use mount::{MountSearch, number};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Changes whenever [`BranchFile`] does.
pub const VERSION: u32 = 2;
/// Longest path with its final NUL. The whole answer has to fit on the stack of a signal handler.
pub const PATH_BYTES: usize = 992;

/// The answer.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct BranchFile {
    /// [`VERSION`] of the server.
    pub version: u32,
    /// Length of `path` without its NUL.
    pub path_bytes: u32,
    /// Major number of the branch file's device, as statx(2) tells it.
    pub device_major: u32,
    /// Its minor number.
    pub device_minor: u32,
    /// Inode number of the branch file.
    pub inode: u64,
    /// 0 if nobody else has the file open through the pool: no other open file description of it exists.
    pub open_elsewhere: u32,
    /// 0.
    pub reserved: u32,
    /// Absolute path of the branch file where the server sees it, ended by NUL.
    pub path: [u8; PATH_BYTES],
}

/// `_IOR('S', 0x5f, BranchFile)`: FUSE copies as many bytes out as the number encodes.
pub const BRANCH_FILE: u32 =
    (2 << 30) | ((size_of::<BranchFile>() as u32) << 16) | ((b'S' as u32) << 8) | 0x5f;

impl BranchFile {
    /// An answer yet to be filled.
    pub const EMPTY: BranchFile = BranchFile {
        version: 0,
        path_bytes: 0,
        device_major: 0,
        device_minor: 0,
        inode: 0,
        open_elsewhere: 0,
        reserved: 0,
        path: [0; PATH_BYTES],
    };

    /// The path with its NUL, if the answer is whole and of this version.
    pub fn path_with_nul(&self) -> Option<&core::ffi::CStr> {
        if self.version != VERSION || !self.path.starts_with(b"/") {
            return None;
        }
        let end = usize::try_from(self.path_bytes).ok()?.checked_add(1)?;
        core::ffi::CStr::from_bytes_with_nul(self.path.get(..end)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_encodes_the_size() {
        assert_eq!(size_of::<BranchFile>(), 1024);
        assert_eq!(BRANCH_FILE, 0x8400_535f);
    }

    #[test]
    fn only_a_whole_answer_has_a_path() {
        let mut answer = BranchFile::EMPTY;
        assert!(answer.path_with_nul().is_none());
        answer.version = VERSION;
        answer.path[..4].copy_from_slice(b"/a/b");
        answer.path_bytes = 4;
        assert_eq!(answer.path_with_nul().unwrap(), c"/a/b");
        for wrong in [3, 5, 992, u32::MAX] {
            answer.path_bytes = wrong;
            assert!(answer.path_with_nul().is_none(), "{wrong}");
        }
        answer.path_bytes = 4;
        answer.path[0] = b'x';
        assert!(answer.path_with_nul().is_none(), "relative");
    }
}
