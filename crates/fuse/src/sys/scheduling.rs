//! Who runs first where two threads share a CPU.

use std::sync::OnceLock;

use rustix::process::Pid;

use super::device::last_errno;
use crate::types::Errno;

/// `IOPRIO_WHO_PROCESS`: one thread (ioprio_set(2)).
const ONE_THREAD: libc::c_int = 1;
/// Where the class stands in an I/O priority.
const CLASS_SHIFT: u32 = 13;
/// The class of those who share a disk by their levels.
const BEST_EFFORT: libc::c_int = 2;

/// Lets a thread (`None`: the calling one) run only when its CPU has nothing else to do (`SCHED_IDLE`),
/// or as others do again (`SCHED_OTHER`), with the nice value it had. Its I/O stays what it was: without
/// a priority of its own it would become idle with the thread (ioprio_set(2)).
///
/// # Errors
/// EPERM without CAP_SYS_NICE and with an RLIMIT_NICE below the nice value, when it is to run as others do
/// again (sched(7)); ESRCH if the thread has ended.
pub(crate) fn set_yielding(thread: Option<Pid>, yields: bool) -> Result<(), Errno> {
    let tid = thread.map_or(0, |thread| thread.as_raw_nonzero().get());
    if yields {
        keep_io_priority(tid)?;
    }
    let policy = match yields {
        true => libc::SCHED_IDLE,
        false => libc::SCHED_OTHER,
    };
    // The kernel's `struct sched_param`. Its call is made directly: musl has another structure of that name,
    // and its functions answer ENOSYS, since what POSIX asks of them is for processes and not for threads.
    let priority: libc::c_int = 0;
    // SAFETY: the number lives for the call, which only reads it.
    let result = unsafe {
        let priority = &raw const priority;
        libc::syscall(libc::SYS_sched_setscheduler, tid, policy, priority)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Whether threads may give way and run as others do again. Tried once, by a thread that ends after it.
pub(crate) fn can_yield() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    let attempt = || set_yielding(None, true).and_then(|()| set_yielding(None, false));
    *CAN.get_or_init(|| {
        // Where no thread can be had nothing is tried: the reader goes on as it is.
        let tried = std::thread::Builder::new().spawn(attempt);
        tried.is_ok_and(|tried| tried.join().is_ok_and(|tried| tried.is_ok()))
    })
}

/// Has the calling thread run as others do, whatever it was started as.
///
/// # Errors
/// As of [`set_yielding`].
pub(crate) fn run_as_others() -> Result<(), Errno> {
    if own_policy() == libc::c_long::from(libc::SCHED_IDLE) {
        set_yielding(None, false)?;
    }
    Ok(())
}

/// How the calling thread is scheduled.
fn own_policy() -> libc::c_long {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) }
}

/// Writes down as a thread's own I/O priority what follows from its nice value.
fn keep_io_priority(tid: libc::pid_t) -> Result<(), Errno> {
    let nice = rustix::process::getpriority_process(Pid::from_raw(tid))?;
    let wanted = (BEST_EFFORT << CLASS_SHIFT) | ((nice + 20) / 5);
    // SAFETY: no memory is passed.
    let own = unsafe { libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, tid) };
    // Newer kernels tell of a thread without one what follows, which may not be its own yet.
    if own >> CLASS_SHIFT != 0 && own != libc::c_long::from(wanted) {
        return Ok(());
    }
    // SAFETY: no memory is passed.
    if unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, tid, wanted) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io_class() -> libc::c_long {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, 0) >> CLASS_SHIFT }
    }

    #[test]
    fn a_thread_that_gives_way_keeps_its_place_at_the_disk_and_hands_nothing_down() {
        if !can_yield() {
            return;
        }
        set_yielding(None, true).unwrap();
        assert_eq!(own_policy(), libc::SCHED_IDLE.into());
        assert_eq!(io_class(), BEST_EFFORT.into(), "not the idle class");
        let child = std::thread::spawn(|| {
            let inherited = own_policy();
            run_as_others().unwrap();
            [inherited, own_policy()]
        });
        let expected = [libc::SCHED_IDLE, libc::SCHED_OTHER].map(libc::c_long::from);
        assert_eq!(child.join().unwrap(), expected);
        set_yielding(None, false).unwrap();
        assert_eq!(own_policy(), libc::SCHED_OTHER.into());
    }
}
