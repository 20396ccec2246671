//! Whether a file is open for writing anywhere on this machine, asked by way of a lease.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use parking_lot::RwLock;
use rustix::io::Errno;

use super::Result;
use super::raw::last_errno;

/// From `asm-generic/fcntl.h`; not in `libc`.
const F_SETSIG: libc::c_int = 10;

/// Held for reading while a lease of this process stands.
static ASKING: RwLock<()> = RwLock::new(());
/// How long one side waits for the other: a branch that hangs must not hold up the others.
const PATIENCE: Duration = Duration::from_millis(200);

/// Opens while this process has no lease: what refuses with EAGAIN is somebody else's.
pub fn without_own_leases<T>(open: impl FnOnce() -> T) -> T {
    let _none = ASKING.try_write_for(PATIENCE);
    open()
}

/// How `fd` is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// For reading only.
    Reader,
    /// For writing.
    Writer,
}

/// Whether the file behind `fd` is open for writing, or mapped so, by anyone but `fd` itself.
///
/// The kernel grants a lease only to who is alone; this one is given back at once. Where it
/// counts readers too (IMA), those make a [`Own::Writer`] look accompanied.
///
/// # Errors
/// EINVAL and the like where the filesystem has no leases; EACCES without CAP_LEASE.
pub fn written_by_others(fd: BorrowedFd<'_>, own: Own) -> Result<bool> {
    let lease = match own {
        Own::Reader => libc::F_RDLCK,
        Own::Writer => libc::F_WRLCK,
    };
    // Whoever opens the file in this very moment makes the kernel send a signal: one that is
    // ignored, where the usual SIGIO would end the server.
    control(fd, F_SETSIG, libc::SIGURG)?;
    let Some(_asking) = ASKING.try_read_for(PATIENCE) else {
        // Somebody is opening a file, of all the files there are perhaps this one.
        return Ok(true);
    };
    match control(fd, libc::F_SETLEASE, lease) {
        Ok(()) => control(fd, libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(Errno::AGAIN) => Ok(true),
        Err(errno) => Err(errno),
    }
}

fn control(fd: BorrowedFd<'_>, command: libc::c_int, value: libc::c_int) -> Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, value) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn writers_are_found_and_the_asker_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let asked = |file: &File, own| written_by_others(file.as_fd(), own);
        if asked(&reader, Own::Reader) == Err(Errno::INVAL) {
            return;
        }
        assert_eq!(asked(&reader, Own::Reader), Ok(true));
        drop(reader);
        assert_eq!(asked(&writer, Own::Writer), Ok(false));
        let second = File::options().append(true).open(&path).unwrap();
        assert_eq!(asked(&writer, Own::Writer), Ok(true));
        drop((writer, second));
        let reader = File::open(&path).unwrap();
        assert_eq!(asked(&reader, Own::Reader), Ok(false));
    }
}
