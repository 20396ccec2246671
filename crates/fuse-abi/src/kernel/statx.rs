//! STATX: attributes with birth time.

use super::wire;

wire! {
    /// STATX.
    pub struct StatxIn {
        /// [`GETATTR_FH`](super::GETATTR_FH).
        pub getattr_flags: u32,
        /// Zero.
        pub reserved: u32,
        /// Handle.
        pub fh: u64,
        /// `AT_STATX_*`.
        pub sx_flags: u32,
        /// `STATX_*`, what is wanted.
        pub sx_mask: u32,
    }

    /// A time in [`Statx`].
    pub struct SxTime {
        /// Seconds.
        pub tv_sec: i64,
        /// Nanoseconds.
        pub tv_nsec: u32,
        /// Zero.
        pub reserved: i32,
    }

    /// The same as the C library's `struct statx` up to the device numbers.
    pub struct Statx {
        /// `STATX_*`, what is given.
        pub mask: u32,
        /// Preferred I/O size.
        pub blksize: u32,
        /// `STATX_ATTR_*`.
        pub attributes: u64,
        /// Number of names.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Type and permissions.
        pub mode: u16,
        /// Zero.
        pub spare0: u16,
        /// Inode number.
        pub ino: u64,
        /// Size in bytes.
        pub size: u64,
        /// Blocks of 512 bytes.
        pub blocks: u64,
        /// Which bits of `attributes` mean anything.
        pub attributes_mask: u64,
        /// Access.
        pub atime: SxTime,
        /// Birth.
        pub btime: SxTime,
        /// Change.
        pub ctime: SxTime,
        /// Modification.
        pub mtime: SxTime,
        /// Of a device node.
        pub rdev_major: u32,
        /// Of a device node.
        pub rdev_minor: u32,
        /// Ignored by the kernel.
        pub dev_major: u32,
        /// Ignored by the kernel.
        pub dev_minor: u32,
        /// Zero.
        pub spare2: [u64; 14],
    }

    /// Reply to STATX.
    pub struct StatxOut {
        /// Seconds the attributes may be cached.
        pub attr_valid: u64,
        /// And nanoseconds.
        pub attr_valid_nsec: u32,
        /// Zero.
        pub flags: u32,
        /// Zero.
        pub spare: [u64; 2],
        /// The attributes.
        pub stat: Statx,
    }
}

/// `Statx::mask`: everything `stat(2)` shows.
pub const STATX_BASIC_STATS: u32 = 0x7ff;
/// `Statx::mask`: birth time.
pub const STATX_BTIME: u32 = 0x800;
