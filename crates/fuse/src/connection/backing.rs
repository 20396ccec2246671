//! Backing files: what passthrough opens read, write and map instead of asking the server.

use std::os::fd::BorrowedFd;

use super::Connection;
use crate::sys;
use crate::types::{BackingId, Errno};

impl Connection {
    /// Registers `file` as a target of passthrough. The kernel keeps the file open until
    /// [`close_backing`](Self::close_backing) and the last open that uses the id; the caller may
    /// close its own descriptor at once. All opens of one inode must use the same id, or the
    /// later ones fail with EIO.
    ///
    /// EPERM: passthrough was not negotiated, or the server lacks CAP_SYS_ADMIN. EINVAL: not a
    /// file that can be read and written through the page cache (a device, a directory). ELOOP:
    /// the file lies on too deep a stack of filesystems (see `Wants::max_stack_depth`). ENOTTY:
    /// the kernel is older than 6.9.
    pub fn open_backing(&self, file: BorrowedFd<'_>) -> Result<BackingId, Errno> {
        sys::backing_open(self.device(), file).map(BackingId)
    }

    /// Gives an id back. Opens that use it go on to work.
    pub fn close_backing(&self, id: BackingId) {
        if let Err(errno) = sys::backing_close(self.device(), id.0) {
            // Ends with the connection anyway; an id unknown to the kernel is our error.
            tracing::warn!(id = id.0, %errno, "closing a backing file failed");
        }
    }
}
