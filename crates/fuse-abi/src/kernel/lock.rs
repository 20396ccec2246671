//! Locks: GETLK, SETLK, SETLKW.

use super::wire;

wire! {
    /// A range and what is locked there.
    pub struct FileLock {
        /// First byte.
        pub start: u64,
        /// Last byte.
        pub end: u64,
        /// `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
        pub kind: u32,
        /// Holder.
        pub pid: u32,
    }

    /// GETLK, SETLK, SETLKW.
    pub struct LkIn {
        /// Handle.
        pub fh: u64,
        /// Lock owner.
        pub owner: u64,
        /// The lock.
        pub lk: FileLock,
        /// [`LK_FLOCK`].
        pub lk_flags: u32,
        /// Zero.
        pub padding: u32,
    }

    /// Reply to GETLK.
    pub struct LkOut {
        /// The conflicting lock.
        pub lk: FileLock,
    }
}

/// `LkIn::lk_flags`: it is `flock(2)`.
pub const LK_FLOCK: u32 = 1 << 0;
