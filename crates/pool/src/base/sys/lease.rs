//! Whether a file is open for writing anywhere on this machine, asked by way of a lease.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::io::Errno;

use crate::base::sys::raw::last_errno;
use crate::base::sys::{ProcPath, Result};

/// From `asm-generic/fcntl.h`; not in `libc`.
const F_SETSIG: libc::c_int = 10;

/// Leases of this process that stand this moment.
static STANDING: AtomicUsize = AtomicUsize::new(0);
/// Leases that this process has asked for so far.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// How long own leases are waited for. Nothing is held meanwhile that a branch which hangs in an
/// open, or in a lease, could keep from the others.
const PATIENCE: Duration = Duration::from_millis(200);

/// Opens, again while a lease of this process may be what refuses: EAGAIN is somebody else's then.
pub fn without_own_leases<T>(open: impl Fn() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let asked = ASKED.load(Ordering::SeqCst);
        let stands = STANDING.load(Ordering::SeqCst) > 0;
        let outcome = open();
        let is_own = stands || ASKED.load(Ordering::SeqCst) != asked;
        if !matches!(outcome, Err(Errno::AGAIN)) || !is_own || start.elapsed() > PATIENCE {
            return outcome;
        }
        std::thread::yield_now();
    }
}

/// One lease of this process, from before it is asked for.
struct Standing;

impl Standing {
    fn begin() -> Standing {
        // In this order, and all in one (hence SeqCst): an opener who sees none standing sees the
        // next one begin.
        STANDING.fetch_add(1, Ordering::SeqCst);
        ASKED.fetch_add(1, Ordering::SeqCst);
        Standing
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        STANDING.fetch_sub(1, Ordering::SeqCst);
    }
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
    let _standing = Standing::begin();
    match control(fd, libc::F_SETLEASE, lease) {
        Ok(()) => control(fd, libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(Errno::AGAIN) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Whether a writer gets a lease though others have the file open for reading: not where the kernel counts readers
/// (CONFIG_IMA). False where that cannot be tried.
pub fn leases_ignore_readers() -> bool {
    static IGNORE: OnceLock<bool> = OnceLock::new();
    *IGNORE.get_or_init(|| {
        let probe = || -> Result<bool> {
            let writer = memfd_create("strandfs-lease", MemfdFlags::CLOEXEC)?;
            let path = ProcPath::new(writer.as_fd());
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let reader = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
            let is_counted = written_by_others(writer.as_fd(), Own::Writer)?;
            drop(reader);
            Ok(!is_counted)
        };
        probe().unwrap_or(false)
    })
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
    fn a_lease_of_somebody_else_is_met_once_and_an_own_one_until_it_is_over() {
        let opens = std::cell::Cell::new(0);
        let refused = || {
            opens.set(opens.get() + 1);
            match opens.get() {
                5 => Ok(()),
                _ => Err(Errno::AGAIN),
            }
        };
        let own = Standing::begin();
        assert_eq!(without_own_leases(refused), Ok(()));
        drop(own);
        opens.set(10);
        // Other tests of this process may ask for leases of their own in this moment.
        assert_eq!(without_own_leases(refused), Err(Errno::AGAIN));
    }

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
