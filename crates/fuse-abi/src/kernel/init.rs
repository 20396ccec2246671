//! Message headers and the INIT negotiation.

use super::wire;

/// The major version of the protocol; there is no other.
pub const KERNEL_VERSION: u32 = 7;
/// The newest minor version these structures know.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// The smallest buffer the kernel accepts for reading a request.
pub const MIN_READ_BUFFER_BYTES: usize = 8192;
/// Bit of `unique` in a request sent again after NOTIFY_RESEND; the reply must carry it too.
pub const UNIQUE_RESEND: u64 = 1 << 63;

wire! {
    /// Starts every request.
    pub struct InHeader {
        /// Length of the message with this header and all extensions.
        pub len: u32,
        /// [`Opcode`](super::Opcode).
        pub opcode: u32,
        /// Names the request in the reply and in INTERRUPT.
        pub unique: u64,
        /// The inode asked about.
        pub nodeid: u64,
        /// Caller's filesystem user id, or `u32::MAX`.
        pub uid: u32,
        /// Caller's filesystem group id, or `u32::MAX`.
        pub gid: u32,
        /// Caller's thread id, 0 if invisible here.
        pub pid: u32,
        /// Length of the extensions at the message's end, in units of 8 bytes.
        pub total_extlen: u16,
        /// Zero.
        pub padding: u16,
    }

    /// Starts every reply and notification.
    pub struct OutHeader {
        /// Length of the message with this header.
        pub len: u32,
        /// 0 or a negative error number; in a notification, its code.
        pub error: i32,
        /// The request answered; 0 in a notification.
        pub unique: u64,
    }

    /// INIT: what the kernel offers. Kernels before 7.36 send only the first four fields.
    pub struct InitIn {
        /// Major version.
        pub major: u32,
        /// Minor version.
        pub minor: u32,
        /// Largest readahead in bytes.
        pub max_readahead: u32,
        /// [`InitFlags`], bits 0 to 31.
        pub flags: u32,
        /// [`InitFlags`], bits 32 to 63; valid under `INIT_EXT`.
        pub flags2: u32,
        /// Zero.
        pub unused: [u32; 11],
    }

    /// INIT: what is agreed.
    pub struct InitOut {
        /// Major version.
        pub major: u32,
        /// Minor version.
        pub minor: u32,
        /// Largest readahead in bytes.
        pub max_readahead: u32,
        /// [`InitFlags`], bits 0 to 31.
        pub flags: u32,
        /// Most background requests in flight.
        pub max_background: u16,
        /// Background requests at which the kernel reports congestion.
        pub congestion_threshold: u16,
        /// Most bytes in one WRITE.
        pub max_write: u32,
        /// Granularity of timestamps in nanoseconds.
        pub time_gran: u32,
        /// Most pages in one request, under `MAX_PAGES`.
        pub max_pages: u16,
        /// Not used here (DAX).
        pub map_alignment: u16,
        /// [`InitFlags`], bits 32 to 63; read under `INIT_EXT`.
        pub flags2: u32,
        /// How deep the stack of filesystems may get with this one on top, under `PASSTHROUGH`.
        pub max_stack_depth: u32,
        /// Seconds after which the kernel aborts an unanswered connection, under
        /// `REQUEST_TIMEOUT`.
        pub request_timeout: u16,
        /// Zero.
        pub unused: [u16; 11],
    }

    /// INTERRUPT.
    pub struct InterruptIn {
        /// The `unique` of the request to interrupt.
        pub unique: u64,
    }
}

bitflags::bitflags! {
    /// What INIT negotiates: `flags` in the low half, `flags2` in the high half.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Several reads of one file in flight.
        const ASYNC_READ = 1 << 0;
        /// `fcntl` locks come to the server.
        const POSIX_LOCKS = 1 << 1;
        /// File handles in attribute requests; never in use.
        const FILE_OPS = 1 << 2;
        /// OPEN and CREATE carry `O_TRUNC`.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP of `.` and `..` is served (NFS export).
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes longer than 4 KiB.
        const BIG_WRITES = 1 << 5;
        /// The kernel leaves the umask to the server.
        const DONT_MASK = 1 << 6;
        /// The device can be spliced to.
        const SPLICE_WRITE = 1 << 7;
        /// Splicing can move pages.
        const SPLICE_MOVE = 1 << 8;
        /// The device can be spliced from.
        const SPLICE_READ = 1 << 9;
        /// `flock` locks come to the server.
        const FLOCK_LOCKS = 1 << 10;
        /// IOCTL on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Cached pages are dropped when attributes show a change.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS.
        const DO_READDIRPLUS = 1 << 13;
        /// READDIRPLUS only where the kernel expects look-ups to follow.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O may be asynchronous.
        const ASYNC_DIO = 1 << 15;
        /// Write-back caching; excludes `PASSTHROUGH`.
        const WRITEBACK_CACHE = 1 << 16;
        /// ENOSYS to OPEN means "no opens needed".
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Look-ups and listings of one directory in parallel.
        const PARALLEL_DIROPS = 1 << 18;
        /// The server clears set-id bits on write, chown and truncate (old rules).
        const HANDLE_KILLPRIV = 1 << 19;
        /// POSIX ACLs; implies default permissions.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort gives ECONNABORTED.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// Link targets are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// ENOSYS to OPENDIR means "no opens of directories needed".
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached pages are dropped only on request.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// `map_alignment` is valid (DAX).
        const MAP_ALIGNMENT = 1 << 26;
        /// Submounts.
        const SUBMOUNTS = 1 << 27;
        /// The server clears set-id bits when the kernel says so.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has its longer form.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Security contexts come with requests that create.
        const SECURITY_CTX = 1 << 32;
        /// DAX per inode.
        const HAS_INODE_DAX = 1 << 33;
        /// A supplementary group comes with requests that create.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Names can be expired without being dropped.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Files opened with `DIRECT_IO` can be mapped.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Passthrough to backing files.
        const PASSTHROUGH = 1 << 37;
        /// The server cannot be exported over NFS.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// NOTIFY_RESEND.
        const HAS_RESEND = 1 << 39;
        /// Idmapped mounts; needs default permissions, or the kernel fails the mount.
        const ALLOW_IDMAP = 1 << 40;
        /// Requests over io_uring.
        const OVER_IO_URING = 1 << 41;
        /// `request_timeout` is valid.
        const REQUEST_TIMEOUT = 1 << 42;
        // Bits this version has no name for must survive `offered`.
        const _ = !0;
    }
}

impl InitFlags {
    /// Joins the wire's two words.
    pub fn from_words(flags: u32, flags2: u32) -> Self {
        Self::from_bits_retain(u64::from(flags) | u64::from(flags2) << 32)
    }

    /// The wire's two words: `flags`, `flags2`.
    pub fn words(self) -> (u32, u32) {
        (self.bits() as u32, (self.bits() >> 32) as u32)
    }
}

impl InitIn {
    /// Everything the kernel offers; `flags2` counts only under `INIT_EXT`.
    pub fn offered(&self) -> InitFlags {
        let low = InitFlags::from_words(self.flags, 0);
        if low.contains(InitFlags::INIT_EXT) {
            InitFlags::from_words(self.flags, self.flags2)
        } else {
            low
        }
    }
}
