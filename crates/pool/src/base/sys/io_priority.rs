//! The I/O priority of a thread: the caller's for the caller's requests.

use std::cell::Cell;

use rustix::io::Errno;

use crate::base::sys::Result;
use crate::base::sys::raw::last_errno;

/// `IOPRIO_WHO_PROCESS`: one thread.
const ONE_THREAD: libc::c_int = 1;
/// No class: the priority follows the nice value.
const NONE: libc::c_int = 0;

/// The class of those who wait for everybody else, as the kernel packs it.
const IDLE: libc::c_int = 3 << 13;

thread_local! {
    /// What this thread was given; its own at the start is none.
    static PRIORITY: Cell<libc::c_int> = const { Cell::new(NONE) };
}

/// Gives this thread the I/O priority of the thread `caller`. It keeps it until another caller's
/// differs, so requests of one caller cost one system call each.
///
/// # Errors
/// ESRCH if the caller is gone (or outside our pid namespace); EPERM for a real-time class the
/// server may not use.
pub fn adopt_io_priority(caller: u32) -> Result<()> {
    if caller == 0 {
        return Err(Errno::SRCH);
    }
    // SAFETY: no memory is passed.
    let wanted = unsafe { libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, caller) };
    let wanted = libc::c_int::try_from(wanted).map_err(|_| Errno::INVAL)?;
    if wanted < 0 {
        return Err(last_errno());
    }
    set(wanted)
}

/// Takes an adopted I/O priority off this thread. Costs nothing where there is none.
///
/// # Errors
/// None the kernel is known to give.
pub fn drop_io_priority() -> Result<()> {
    set(NONE)
}

/// Lets this thread use a disk only when nobody else does, where the disk's scheduler knows
/// priorities; [`drop_io_priority`] ends it.
///
/// # Errors
/// None the kernel is known to give.
pub fn idle_io_priority() -> Result<()> {
    set(IDLE)
}

fn set(wanted: libc::c_int) -> Result<()> {
    if PRIORITY.get() == wanted {
        return Ok(());
    }
    // SAFETY: no memory is passed; 0 is the calling thread.
    if unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, 0, wanted) } != 0 {
        return Err(last_errno());
    }
    PRIORITY.set(wanted);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> libc::c_long {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, 0) }
    }

    #[test]
    fn a_callers_priority_is_taken_on_and_dropped() {
        let caller = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        let before = own();
        // SAFETY: no memory is passed.
        let lowered = unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, 0, IDLE) };
        assert_eq!(lowered, 0);
        std::thread::spawn(move || {
            adopt_io_priority(caller).unwrap();
            assert_eq!(own(), libc::c_long::from(IDLE));
            drop_io_priority().unwrap();
            assert_ne!(own(), libc::c_long::from(IDLE));
            assert_eq!(adopt_io_priority(0), Err(Errno::SRCH));
        })
        .join()
        .unwrap();
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, 0, before) };
    }
}
