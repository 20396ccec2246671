//! A thread with a table of descriptors of its own.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::base::sys::Result;
use crate::base::sys::raw::last_errno;
use crate::base::thread;

/// The first number that is not a standard stream's.
const FIRST: RawFd = 3;

/// Runs `body` on a new thread that has a table of its own, in which there are `kept` and the
/// standard streams; nothing else of the process's is open in it, and what is opened there is
/// nobody else's. `body` carries nothing with it that could hold a descriptor of the other table.
///
/// The thread must not log: the log's number means another file there. It is never interrupted by a
/// signal, whose handlers use descriptors of the process.
///
/// # Errors
/// ENOSYS before Linux 5.9; those of starting a thread and of `dup(2)`.
pub fn spawn_with_own_table(name: &str, kept: &OwnedFd, body: fn(OwnedFd)) -> Result<()> {
    let kept = rustix::io::fcntl_dupfd_cloexec(kept, FIRST)?;
    let number = kept.as_raw_fd();
    let (tell, told) = mpsc::sync_channel(1);
    let thread = move || {
        let alone = block_signals().and_then(|()| leave_table_but(number));
        let begun = alone.is_ok();
        let _ = tell.send(alone);
        if !begun {
            return;
        }
        // SAFETY: the number is open in this thread's own table since the call above, where nobody
        // else knows of it.
        body(unsafe { OwnedFd::from_raw_fd(number) });
    };
    thread::start(name, thread)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    // Until then the thread needs `kept` in the table that both share.
    told.recv().unwrap_or(Err(Errno::AGAIN))
}

/// Runs `body` on a new thread with a table of its own, in which there are `kept` and the standard
/// streams. Should the thread hang for ever, it keeps nothing else of a server open that is killed
/// meanwhile, above all not its connection. Nothing of the other table is copied on the way: to close a
/// copy is to flush the file, which may hang, too. `value` holds no descriptor.
///
/// The thread must not log, as of [`spawn_with_own_table`].
///
/// # Errors
/// ENOSYS before Linux 5.9; EPERM where a sandbox refuses `pidfd_getfd(2)`; those of starting a thread.
pub fn spawn_apart<T: Send + 'static>(
    name: &str,
    kept: BorrowedFd<'_>,
    value: T,
    body: fn(OwnedFd, T),
) -> Result<()> {
    let number = kept.as_raw_fd();
    let (tell, told) = mpsc::sync_channel(1);
    let thread = move || {
        let alone = block_signals().and_then(|()| leave_table_and_take(number));
        let (outcome, kept) = match alone {
            Ok(kept) => (Ok(()), Some(kept)),
            Err(errno) => (Err(errno), None),
        };
        let _ = tell.send(outcome);
        if let Some(kept) = kept {
            body(kept, value);
        }
    };
    thread::start(name, thread)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    // Until then the thread needs `kept` in the table of the others.
    told.recv().unwrap_or(Err(Errno::AGAIN))
}

/// Gives the calling thread a table of its own, with the standard streams and a copy of a descriptor of
/// the table that the others share.
fn leave_table_and_take(kept: RawFd) -> Result<OwnedFd> {
    close_in_own_table(FIRST, RawFd::MAX)?;
    fill_standard_streams();
    // That of the first thread, whose table it is.
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    pidfd_getfd(&process, kept, PidfdGetfdFlags::empty())
}

/// Gives the calling thread a table of its own, with `kept` and the standard streams in it.
fn leave_table_but(kept: RawFd) -> Result<()> {
    close_in_own_table(kept + 1, RawFd::MAX)?;
    if kept > FIRST {
        close_in_own_table(FIRST, kept - 1)?;
    }
    fill_standard_streams();
    Ok(())
}

/// A message to a standard stream must never land in what is opened here next.
fn fill_standard_streams() {
    while let Ok(stream) = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty()) {
        if stream.as_raw_fd() >= FIRST {
            break;
        }
        std::mem::forget(stream);
    }
}

fn close_in_own_table(first: RawFd, last: RawFd) -> Result<()> {
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
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn block_signals() -> Result<()> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set it is given, which sigmask then reads; the old mask is
    // not asked for.
    let errno = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut())
    };
    match errno {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Says which numbers are open.
    fn list(socket: OwnedFd) {
        list_with(socket, "");
    }

    fn list_with(socket: OwnedFd, word: &str) {
        use std::io::Write;
        let open: Vec<RawFd> = (0..1024)
            .filter(|number| {
                // SAFETY: only looked at.
                unsafe { libc::fcntl(*number, libc::F_GETFD) != -1 }
            })
            .collect();
        let text = format!("{} {:?}{word}", socket.as_raw_fd(), open);
        UnixStream::from(socket).write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn the_thread_has_nothing_but_what_it_was_given() {
        let _others: Vec<_> = (0..20).map(|_| tempfile::tempfile().unwrap()).collect();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        spawn_with_own_table("test", &OwnedFd::from(theirs), list).unwrap();
        let mut text = String::new();
        // It ends here: no copy of the other end is left in this table.
        ours.read_to_string(&mut text).unwrap();
        let number = text.split(' ').next().unwrap();
        assert_eq!(text, format!("{number} [0, 1, 2, {number}]"));
    }

    #[test]
    fn a_thread_apart_has_what_it_asks_and_nothing_else() {
        let _others: Vec<_> = (0..20).map(|_| tempfile::tempfile().unwrap()).collect();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let body = |socket, word: &str| list_with(socket, word);
        spawn_apart(
            "test",
            OwnedFd::from(theirs.try_clone().unwrap()).as_fd(),
            " told",
            body,
        )
        .unwrap();
        drop(theirs);
        let mut text = String::new();
        ours.read_to_string(&mut text).unwrap();
        let number = text.split(' ').next().unwrap();
        assert_eq!(text, format!("{number} [0, 1, 2, {number}] told"));
    }
}
