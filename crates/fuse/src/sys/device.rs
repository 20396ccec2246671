//! ioctls of `/dev/fuse`.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::abi::{BackingMap, DEV_IOC_BACKING_CLOSE, DEV_IOC_BACKING_OPEN};
use crate::types::Errno;

/// The error of the last libc call of this thread.
pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Registers `file` for passthrough; returns its id, never 0.
pub(crate) fn backing_open(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<u32, Errno> {
    let map = BackingMap {
        fd: file.as_raw_fd(),
        ..BackingMap::default()
    };
    // SAFETY: both descriptors are open, and the kernel only reads the structure, which has the
    // layout this command takes.
    let id = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            DEV_IOC_BACKING_OPEN as _,
            &raw const map,
        )
    };
    match u32::try_from(id) {
        Err(_) => Err(last_errno()),
        // No kernel gives it; a reply with it would open without passthrough.
        Ok(0) => Err(Errno::IO),
        Ok(id) => Ok(id),
    }
}

/// Drops a registration.
pub(crate) fn backing_close(device: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
    // SAFETY: the descriptor is open, and the kernel only reads the number.
    let result = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            DEV_IOC_BACKING_CLOSE as _,
            &raw const id,
        )
    };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}
