//! Attributes: GETATTR, SETATTR, STATFS.

use super::wire;

wire! {
    /// Attributes of an inode.
    pub struct Attr {
        /// Inode number shown to users.
        pub ino: u64,
        /// Size in bytes.
        pub size: u64,
        /// Blocks of 512 bytes.
        pub blocks: u64,
        /// Access time, seconds (two's complement).
        pub atime: u64,
        /// Modification time, seconds.
        pub mtime: u64,
        /// Change time, seconds.
        pub ctime: u64,
        /// Nanoseconds.
        pub atimensec: u32,
        /// Nanoseconds.
        pub mtimensec: u32,
        /// Nanoseconds.
        pub ctimensec: u32,
        /// Type and permissions.
        pub mode: u32,
        /// Number of names.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Device number, `new_encode_dev` form.
        pub rdev: u32,
        /// Preferred I/O size.
        pub blksize: u32,
        /// Submount and DAX flags; unused here.
        pub flags: u32,
    }

    /// Reply to GETATTR and SETATTR.
    pub struct AttrOut {
        /// Seconds the attributes may be cached.
        pub attr_valid: u64,
        /// And nanoseconds.
        pub attr_valid_nsec: u32,
        /// Zero.
        pub dummy: u32,
        /// The attributes.
        pub attr: Attr,
    }

    /// GETATTR.
    pub struct GetattrIn {
        /// [`GETATTR_FH`].
        pub getattr_flags: u32,
        /// Zero.
        pub dummy: u32,
        /// Handle, under [`GETATTR_FH`].
        pub fh: u64,
    }

    /// SETATTR.
    pub struct SetattrIn {
        /// [`SetattrValid`].
        pub valid: u32,
        /// Zero.
        pub padding: u32,
        /// Handle.
        pub fh: u64,
        /// Size in bytes.
        pub size: u64,
        /// Lock owner.
        pub lock_owner: u64,
        /// Access time, seconds.
        pub atime: u64,
        /// Modification time, seconds.
        pub mtime: u64,
        /// Change time, seconds.
        pub ctime: u64,
        /// Nanoseconds.
        pub atimensec: u32,
        /// Nanoseconds.
        pub mtimensec: u32,
        /// Nanoseconds.
        pub ctimensec: u32,
        /// Mode.
        pub mode: u32,
        /// Zero.
        pub unused4: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Zero.
        pub unused5: u32,
    }

    /// Reply to STATFS.
    pub struct StatfsOut {
        /// Blocks of `frsize` bytes.
        pub blocks: u64,
        /// Free.
        pub bfree: u64,
        /// Free for unprivileged users.
        pub bavail: u64,
        /// Inodes.
        pub files: u64,
        /// Free inodes.
        pub ffree: u64,
        /// Preferred I/O size.
        pub bsize: u32,
        /// Longest name.
        pub namelen: u32,
        /// Unit of the block counts.
        pub frsize: u32,
        /// Zero.
        pub padding: u32,
        /// Zero.
        pub spare: [u32; 6],
    }

    /// ACCESS.
    pub struct AccessIn {
        /// `R_OK`, `W_OK`, `X_OK`.
        pub mask: u32,
        /// Zero.
        pub padding: u32,
    }
}

/// `GetattrIn::getattr_flags`: the handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;

bitflags::bitflags! {
    /// Which fields of [`SetattrIn`] are to be set.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        /// `mode`.
        const MODE = 1 << 0;
        /// `uid`.
        const UID = 1 << 1;
        /// `gid`.
        const GID = 1 << 2;
        /// `size`.
        const SIZE = 1 << 3;
        /// `atime`.
        const ATIME = 1 << 4;
        /// `mtime`.
        const MTIME = 1 << 5;
        /// `fh` is valid.
        const FH = 1 << 6;
        /// Access time: the server's clock.
        const ATIME_NOW = 1 << 7;
        /// Modification time: the server's clock.
        const MTIME_NOW = 1 << 8;
        /// `lock_owner` is valid.
        const LOCKOWNER = 1 << 9;
        /// `ctime`.
        const CTIME = 1 << 10;
        /// Clear set-id bits.
        const KILL_SUIDGID = 1 << 11;
    }
}
