//! What is done through an open file: READ, WRITE, FSYNC, FALLOCATE, LSEEK, COPY_FILE_RANGE,
//! IOCTL, POLL, BMAP, and the DAX mappings.

use super::wire;

wire! {
    /// READ, READDIR and READDIRPLUS.
    pub struct ReadIn {
        /// Handle.
        pub fh: u64,
        /// Where to start.
        pub offset: u64,
        /// How much.
        pub size: u32,
        /// [`READ_LOCKOWNER`].
        pub read_flags: u32,
        /// Lock owner.
        pub lock_owner: u64,
        /// `open(2)` flags.
        pub flags: u32,
        /// Zero.
        pub padding: u32,
    }

    /// WRITE; the data follows.
    pub struct WriteIn {
        /// Handle.
        pub fh: u64,
        /// Where to start.
        pub offset: u64,
        /// How much.
        pub size: u32,
        /// [`WRITE_CACHE`], [`WRITE_LOCKOWNER`], [`WRITE_KILL_SUIDGID`].
        pub write_flags: u32,
        /// Lock owner.
        pub lock_owner: u64,
        /// `open(2)` flags.
        pub flags: u32,
        /// Zero.
        pub padding: u32,
    }

    /// Reply to WRITE and COPY_FILE_RANGE.
    pub struct WriteOut {
        /// Bytes written.
        pub size: u32,
        /// Zero.
        pub padding: u32,
    }

    /// FSYNC and FSYNCDIR.
    pub struct FsyncIn {
        /// Handle.
        pub fh: u64,
        /// [`FSYNC_FDATASYNC`].
        pub fsync_flags: u32,
        /// Zero.
        pub padding: u32,
    }

    /// SYNCFS.
    pub struct SyncfsIn {
        /// Zero.
        pub padding: u64,
    }

    /// FALLOCATE.
    pub struct FallocateIn {
        /// Handle.
        pub fh: u64,
        /// Start.
        pub offset: u64,
        /// Length.
        pub length: u64,
        /// `FALLOC_FL_*`.
        pub mode: u32,
        /// Zero.
        pub padding: u32,
    }

    /// LSEEK.
    pub struct LseekIn {
        /// Handle.
        pub fh: u64,
        /// From where.
        pub offset: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        pub whence: u32,
        /// Zero.
        pub padding: u32,
    }

    /// Reply to LSEEK.
    pub struct LseekOut {
        /// Where it is.
        pub offset: u64,
    }

    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    pub struct CopyFileRangeIn {
        /// Source handle.
        pub fh_in: u64,
        /// Source offset.
        pub off_in: u64,
        /// Target inode.
        pub nodeid_out: u64,
        /// Target handle.
        pub fh_out: u64,
        /// Target offset.
        pub off_out: u64,
        /// How much.
        pub len: u64,
        /// Flags.
        pub flags: u64,
    }

    /// Reply to COPY_FILE_RANGE_64.
    pub struct CopyFileRangeOut {
        /// How much was copied.
        pub bytes_copied: u64,
    }

    /// IOCTL; the input data follows.
    pub struct IoctlIn {
        /// Handle.
        pub fh: u64,
        /// `IOCTL_*`.
        pub flags: u32,
        /// Command.
        pub cmd: u32,
        /// Argument word.
        pub arg: u64,
        /// Bytes of input.
        pub in_size: u32,
        /// Room for output.
        pub out_size: u32,
    }

    /// Reply to IOCTL; the output data follows.
    pub struct IoctlOut {
        /// Return value of the call.
        pub result: i32,
        /// Zero in the restricted mode.
        pub flags: u32,
        /// Zero in the restricted mode.
        pub in_iovs: u32,
        /// Zero in the restricted mode.
        pub out_iovs: u32,
    }

    /// POLL.
    pub struct PollIn {
        /// Handle.
        pub fh: u64,
        /// The kernel's name for the waiter, for NOTIFY_POLL.
        pub kh: u64,
        /// [`POLL_SCHEDULE_NOTIFY`].
        pub flags: u32,
        /// `POLL*` asked for.
        pub events: u32,
    }

    /// Reply to POLL.
    pub struct PollOut {
        /// `POLL*` ready.
        pub revents: u32,
        /// Zero.
        pub padding: u32,
    }

    /// BMAP.
    pub struct BmapIn {
        /// Block of the file.
        pub block: u64,
        /// Bytes in a block.
        pub blocksize: u32,
        /// Zero.
        pub padding: u32,
    }

    /// Reply to BMAP.
    pub struct BmapOut {
        /// Block of the device.
        pub block: u64,
    }

    /// SETUPMAPPING (DAX; refused).
    pub struct SetupmappingIn {
        /// Handle.
        pub fh: u64,
        /// Offset in the file.
        pub foffset: u64,
        /// Length.
        pub len: u64,
        /// Read, write.
        pub flags: u64,
        /// Offset in the window.
        pub moffset: u64,
    }

    /// REMOVEMAPPING (DAX; refused); `count` times [`RemovemappingOne`] follow.
    pub struct RemovemappingIn {
        /// How many follow.
        pub count: u32,
    }

    /// One mapping to remove.
    pub struct RemovemappingOne {
        /// Offset in the window.
        pub moffset: u64,
        /// Length.
        pub len: u64,
    }
}

/// `ReadIn::read_flags`: `lock_owner` is valid.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `WriteIn::write_flags`: from the page cache; the handle is a guess.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `WriteIn::write_flags`: `lock_owner` is valid.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `WriteIn::write_flags`: clear set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FsyncIn::fsync_flags`: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `IoctlIn::flags`: data areas are not bounded by the command; only for CUSE.
pub const IOCTL_UNRESTRICTED: u32 = 1 << 1;
/// `IoctlIn::flags`: the caller's words have 32 bits.
pub const IOCTL_32BIT: u32 = 1 << 3;
/// `IoctlIn::flags`: the handle is a directory's.
pub const IOCTL_DIR: u32 = 1 << 4;
/// `PollIn::flags`: a notification is wanted when ready.
pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
