//! Opening and closing: OPEN, OPENDIR, CREATE, TMPFILE, FLUSH, RELEASE.

use super::wire;

wire! {
    /// OPEN and OPENDIR.
    pub struct OpenIn {
        /// `open(2)` flags.
        pub flags: u32,
        /// [`OPEN_KILL_SUIDGID`].
        pub open_flags: u32,
    }

    /// CREATE and TMPFILE; the name follows.
    pub struct CreateIn {
        /// `open(2)` flags.
        pub flags: u32,
        /// Mode.
        pub mode: u32,
        /// The caller's umask.
        pub umask: u32,
        /// [`OPEN_KILL_SUIDGID`].
        pub open_flags: u32,
    }

    /// Reply to OPEN and OPENDIR, and second part of the reply to CREATE and TMPFILE.
    pub struct OpenOut {
        /// The server's handle.
        pub fh: u64,
        /// `FOPEN_*`, [`OpenFlags`](crate::types::OpenFlags).
        pub open_flags: u32,
        /// Backing file, under `FOPEN_PASSTHROUGH`.
        pub backing_id: i32,
    }

    /// RELEASE and RELEASEDIR.
    pub struct ReleaseIn {
        /// Handle.
        pub fh: u64,
        /// `open(2)` flags.
        pub flags: u32,
        /// [`RELEASE_FLUSH`], [`RELEASE_FLOCK_UNLOCK`].
        pub release_flags: u32,
        /// Whose `flock` locks end.
        pub lock_owner: u64,
    }

    /// FLUSH.
    pub struct FlushIn {
        /// Handle.
        pub fh: u64,
        /// Zero.
        pub unused: u32,
        /// Zero.
        pub padding: u32,
        /// Whose POSIX locks end.
        pub lock_owner: u64,
    }
}

/// `open_flags` of OPEN and CREATE: clear set-id bits when truncating.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `ReleaseIn::release_flags`: flush first.
pub const RELEASE_FLUSH: u32 = 1 << 0;
/// `ReleaseIn::release_flags`: end `flock` locks of the owner.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
