//! A descriptor that is closed when the process dies, whatever its threads are doing then.
//!
//! A killed process keeps its descriptors until its last thread is gone, and a thread in the middle
//! of a system call may not go: one that tells the kernel of a changed name waits for the lock of
//! the directory, held by whoever waits for an answer of this server. A pidfd says nothing until
//! then either. So the descriptor is held by a thread with a table of its own that never does
//! anything but die.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::sys;
use crate::types::Errno;

/// It sleeps, and that is all.
const STACK_BYTES: usize = 64 << 10;

/// After standard input, output and error.
const FIRST_BEYOND_STANDARD: u32 = 3;

/// Closes what this process was started with beside its standard streams: first thing in a process
/// that is to outlive others, and keeps what it holds alive. ENOSYS: Linux before 5.9.
pub fn close_inherited() -> io::Result<()> {
    Ok(sys::close_from(FIRST_BEYOND_STANDARD)?)
}

/// How the process of a pidfd has ended, as the status that wait(2) gives its parent; waits for no
/// longer than `patience` until it has. None if it is not known: Linux before 6.15, or a parent that
/// does not wait for it.
pub fn end_of(process: BorrowedFd<'_>, patience: Duration) -> Option<i32> {
    let deadline = Instant::now() + patience;
    loop {
        let status = sys::exit_status(process);
        if status.is_some() || Instant::now() >= deadline {
            return status;
        }
        // A pidfd says that the process is dead, but on older kernels not that somebody knows.
        thread::sleep(Duration::from_millis(20));
    }
}

/// Keeps a copy of `descriptor` open for as long as this process is alive: until it ends, or has
/// been killed, even if other threads of it cannot end. The caller closes its own.
///
/// ENOSYS: Linux before 5.9. Else as starting a thread.
pub fn hold_until_death(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let kept = descriptor.as_raw_fd();
    let (tell, told) = mpsc::sync_channel(1);
    let hold = move || {
        let outcome = sys::leave_descriptors_but(kept);
        let holds = outcome.is_ok();
        // The caller waits, for it borrows the descriptor until then.
        let _ = tell.send(outcome);
        drop(tell);
        if holds {
            loop {
                thread::park();
            }
        }
    };
    thread::Builder::new()
        .name("strandfs-life".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(hold)?;
    let outcome = told.recv().unwrap_or(Err(Errno::IO));
    Ok(outcome?)
}
