//! The table of descriptors that the threads of a process share.

use std::os::fd::RawFd;

use super::device::last_errno;
use crate::types::Errno;

/// Gives the calling thread a table of its own, without any descriptor in it: for a thread that
/// uses none, and drops nothing that holds one. ENOSYS: Linux before 5.9. ENOMEM, EMFILE.
pub(crate) fn leave_descriptors() -> Result<(), Errno> {
    close_in_own_table(0, libc::c_uint::MAX)
}

/// The same with one descriptor left in the new table, which nobody there owns: it is closed when
/// the thread ends. EBADF: it is negative. ENOSYS, ENOMEM, EMFILE.
pub(crate) fn leave_descriptors_but(kept: RawFd) -> Result<(), Errno> {
    let kept = libc::c_uint::try_from(kept).map_err(|_| Errno::BADF)?;
    close_in_own_table(kept + 1, libc::c_uint::MAX)?;
    match kept.checked_sub(1) {
        Some(last) => close_in_own_table(0, last),
        None => Ok(()),
    }
}

/// Closes `first` and all above it. Nobody in the process may own one of them.
pub(crate) fn close_from(first: libc::c_uint) -> Result<(), Errno> {
    close_in_own_table(first, libc::c_uint::MAX)
}

/// Closes a range in a table that is the calling thread's own from then on.
fn close_in_own_table(first: libc::c_uint, last: libc::c_uint) -> Result<(), Errno> {
    // SAFETY: no pointers are passed; descriptors are closed in the thread's own table only, which
    // no other thread sees.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            last,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    if result < 0 {
        return Err(last_errno());
    }
    Ok(())
}
