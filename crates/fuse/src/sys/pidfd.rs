//! How a process that is no child of this one has ended.

use std::os::fd::{AsRawFd, BorrowedFd};

/// `PIDFD_GET_INFO`, of the first 64 bytes of `struct pidfd_info`.
const GET_INFO: u32 = 0xc040_ff0b;
/// `PIDFD_INFO_EXIT`.
const EXIT: u64 = 1 << 3;

/// The status as wait(2) gives it, once the process was waited for; none from Linux before 6.15.
pub(crate) fn exit_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = [0u64; 8];
    info[0] = EXIT;
    // SAFETY: the kernel reads and writes as many bytes as the number of the call says, which is
    // what `info` has.
    let result = unsafe {
        libc::ioctl(
            pidfd.as_raw_fd(),
            GET_INFO as libc::Ioctl,
            info.as_mut_ptr(),
        )
    };
    let bytes = info[7].to_ne_bytes();
    let status = i32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    (result == 0 && info[0] & EXIT != 0).then_some(status)
}
