//! The table of descriptors that the threads of a process share.

use crate::types::Errno;

/// Gives the calling thread a table of its own, without any descriptor in it: for a thread that
/// uses none, and drops nothing that holds one. ENOSYS: Linux before 5.9. ENOMEM, EMFILE.
pub(crate) fn leave_descriptors() -> Result<(), Errno> {
    let (first, last) = (0, libc::c_uint::MAX);
    // SAFETY: no pointers are passed; descriptors are closed in the new table only, which no other
    // thread sees.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}
