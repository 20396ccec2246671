//! How the kernel sends requests, and what is done with their data.

use serde::{Deserialize, Serialize};

use crate::size::MessageSize;
use crate::words::FlushOnClose;

/// How the kernel sends requests, and what is done with their data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct RequestSettings {
    pub fuse_msg_size: MessageSize,
    /// KiB; 0: the kernel's own.
    pub readahead: u64,
    pub async_read: bool,
    pub direct_io_allow_mmap: bool,
    pub parallel_direct_writes: bool,
    pub flush_on_close: FlushOnClose,
    pub nullrw: bool,
}

impl Default for RequestSettings {
    fn default() -> Self {
        Self {
            fuse_msg_size: MessageSize::default(),
            readahead: 0,
            async_read: true,
            direct_io_allow_mmap: true,
            parallel_direct_writes: true,
            flush_on_close: FlushOnClose::OpenedForWrite,
            nullrw: false,
        }
    }
}
