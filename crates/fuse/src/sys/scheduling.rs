//! Who runs first where two threads share a CPU.

use std::cell::Cell;
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
    set_policy(tid, policy, 0)
}

thread_local! {
    /// The thread runs before others for the sake of [`set_urgent`], and not because the whole process does.
    static URGENT: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs before others by [`set_urgent`].
pub(crate) fn is_urgent() -> bool {
    URGENT.get()
}

/// For a thread that was started by an urgent one and inherits that: see [`run_as_others`].
pub(crate) fn inherit_urgency() {
    URGENT.set(true);
}

/// Lets the calling thread run before all that have no real-time priority (`SCHED_FIFO`, the lowest one).
/// What it starts inherits that.
///
/// # Errors
/// EPERM without CAP_SYS_NICE, or where the system grants no such priority (`RestrictRealtime=` of a
/// systemd unit, a group of the CPU controller without real-time budget).
pub(crate) fn set_urgent() -> Result<(), Errno> {
    // Somebody may have given the whole process such a priority, or a higher one.
    if [libc::SCHED_FIFO, libc::SCHED_RR]
        .map(libc::c_long::from)
        .contains(&own_policy())
    {
        return Ok(());
    }
    set_policy(0, libc::SCHED_FIFO, 1)?;
    URGENT.set(true);
    Ok(())
}

fn set_policy(tid: libc::pid_t, policy: libc::c_int, priority: libc::c_int) -> Result<(), Errno> {
    // The kernel's `struct sched_param`. Its call is made directly: musl has another structure of that name,
    // and its functions answer ENOSYS, since what POSIX asks of them is for processes and not for threads.
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

/// Has the calling thread run as others do, though it gives way to them or runs before them by this module.
///
/// # Errors
/// As of [`set_yielding`].
pub(crate) fn run_as_others() -> Result<(), Errno> {
    if URGENT.get() || own_policy() == libc::c_long::from(libc::SCHED_IDLE) {
        set_yielding(None, false)?;
        URGENT.set(false);
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

    #[test]
    fn what_an_urgent_thread_starts_runs_as_others_do() {
        let urgent = std::thread::spawn(|| {
            let before = rustix::process::getpriority_process(None).unwrap();
            if set_urgent().is_err() {
                return;
            }
            assert_eq!(own_policy(), libc::SCHED_FIFO.into());
            let urgent = is_urgent();
            let child = std::thread::spawn(move || {
                if urgent {
                    inherit_urgency();
                }
                run_as_others().unwrap();
                let nice = rustix::process::getpriority_process(None).unwrap();
                (own_policy(), nice)
            });
            assert_eq!(child.join().unwrap(), (libc::SCHED_OTHER.into(), before));
        });
        urgent.join().unwrap();
    }
}
