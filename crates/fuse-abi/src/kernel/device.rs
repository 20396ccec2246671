//! ioctls of `/dev/fuse`.

use super::wire;

/// Binds another descriptor of `/dev/fuse` to a connection; argument: `&u32`, the first one.
pub const DEV_IOC_CLONE: u32 = 0x8004_e500;
/// Registers a backing file; argument: `&BackingMap`, returns its id.
pub const DEV_IOC_BACKING_OPEN: u32 = 0x4010_e501;
/// Drops a backing file; argument: `&u32`, its id.
pub const DEV_IOC_BACKING_CLOSE: u32 = 0x4004_e502;
/// Makes mount(2) wait for INIT (Linux 6.18 and later).
pub const DEV_IOC_SYNC_INIT: u32 = 0x0000_e503;

wire! {
    /// A file to register for passthrough.
    pub struct BackingMap {
        /// The file.
        pub fd: i32,
        /// Zero.
        pub flags: u32,
        /// Zero.
        pub padding: u64,
    }
}
