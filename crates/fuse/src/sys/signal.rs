//! Signals: one that wakes a blocked thread, and those that end the server.

use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::process::Pid;

use super::device::last_errno;
use crate::types::Errno;

/// What ends a server.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signal that makes a blocked system call return EINTR. Not the first real-time signal:
/// other libraries like that one.
fn wake_signal() -> i32 {
    libc::SIGRTMIN() + 5
}

extern "C" fn do_nothing(_signal: i32) {}

fn check(result: i32) -> Result<(), Errno> {
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Gives the wake signal a handler that does nothing, so that it interrupts and does not kill.
pub(crate) fn install_wake_handler() -> Result<(), Errno> {
    // SAFETY: all-zero is a valid sigaction: default action, empty mask, no flags. Without
    // SA_RESTART a blocked call returns EINTR.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = do_nothing as extern "C" fn(i32) as usize;
    // SAFETY: the structure is complete, and the handler is safe in any context.
    check(unsafe { libc::sigaction(wake_signal(), &raw const action, ptr::null_mut()) })
}

/// Lets the wake signal through to the calling thread, whatever mask it inherited.
pub(crate) fn allow_wake_signal() -> Result<(), Errno> {
    change_mask(libc::SIG_UNBLOCK, &[wake_signal()]).map(drop)
}

/// Sends the wake signal to a thread of this process.
pub(crate) fn wake_thread(thread: Pid) -> Result<(), Errno> {
    let process = rustix::process::getpid();
    // SAFETY: no memory is passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            process.as_raw_nonzero().get(),
            thread.as_raw_nonzero().get(),
            wake_signal(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Writing to a pipe nobody reads, or beyond a limit of the server's own on the size of files
/// (`ulimit -f` of whoever mounted), is an error, not death.
pub(crate) fn survive_writes() -> Result<(), Errno> {
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: ignoring a signal runs no code.
        let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
        if before == libc::SIG_ERR {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// Blocks the ending signals in this thread (and those it starts) and opens a descriptor that
/// reads them.
pub(crate) fn signal_descriptor() -> Result<OwnedFd, Errno> {
    let set = change_mask(libc::SIG_BLOCK, &ENDING)?;
    // SAFETY: the set is initialised, and -1 asks for a new descriptor.
    let descriptor = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(last_errno());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Takes one signal from such a descriptor.
pub(crate) fn read_signal(descriptor: BorrowedFd<'_>) -> Result<i32, Errno> {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    rustix::io::retry_on_intr(|| rustix::io::read(descriptor, &mut info))?;
    // The structure starts with the signal's number, `ssi_signo`.
    let number = info.first_chunk().copied().unwrap_or_default();
    Ok(i32::from_ne_bytes(number))
}

/// Changes the calling thread's mask by these signals; returns them as a set.
fn change_mask(how: i32, signals: &[i32]) -> Result<libc::sigset_t, Errno> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    check(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
    // SAFETY: initialised by the line above.
    let mut set = unsafe { set.assume_init() };
    for &signal in signals {
        // SAFETY: the set is initialised.
        check(unsafe { libc::sigaddset(&raw mut set, signal) })?;
    }
    // SAFETY: the set is initialised, and the old mask is not asked for.
    let result = unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) };
    match result {
        0 => Ok(set),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}
