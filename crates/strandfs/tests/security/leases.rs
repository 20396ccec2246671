//! A lease on a file of one user holds up nobody else.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::locks::{alice_works, open_pool, transports};
use super::people::{MALLORY, act_as, command_as};
use crate::need_root;
use crate::support::files::{errno, open_with};
use crate::support::{Pool, eventually};

const PATIENCE: Duration = Duration::from_secs(60);
/// From `asm-generic/fcntl.h`; not in `libc`.
const F_SETSIG: i32 = 10;

/// A lease on a file of a branch: who has it does nothing when it is to be given up.
struct Lease(File);

impl Lease {
    /// For writing: every other open waits.
    fn take(path: &Path) -> Lease {
        let file = open_with(path, 0).unwrap();
        // SAFETY: no memory is passed.
        let control =
            |command: i32, value: i32| unsafe { libc::fcntl(file.as_raw_fd(), command, value) };
        // One that is ignored, where SIGIO would end the test.
        assert_eq!(control(F_SETSIG, libc::SIGURG), 0);
        // The pool may still have it open: it is told of a close later.
        eventually("a lease", PATIENCE, || {
            control(libc::F_SETLEASE, libc::F_WRLCK) == 0
        });
        Lease(file)
    }

    fn give_up(self) {
        drop(self.0);
    }
}

/// A file of Mallory's, which nobody has open.
fn own_file(pool: &Pool) {
    act_as(MALLORY, || fs::write(pool.path("leased"), "data").unwrap());
}

/// Threads of Mallory's that do something with the leased file, and have begun to.
fn crowd(pool: &Pool, size: usize, act: fn(&Path)) -> Vec<JoinHandle<()>> {
    let path = pool.path("leased");
    let (began, all) = std::sync::mpsc::channel();
    let threads = act_as(MALLORY, || {
        let start = |_| {
            let (path, began) = (path.clone(), began.clone());
            thread::spawn(move || {
                began.send(()).unwrap();
                act(&path);
            })
        };
        (0..size).map(start).collect()
    });
    (0..size).for_each(|_| all.recv_timeout(PATIENCE).unwrap());
    // What comes first is the crowd's.
    thread::sleep(Duration::from_millis(300));
    threads
}

fn finish(threads: Vec<JoinHandle<()>>) {
    eventually("all to go on", PATIENCE, || {
        threads.iter().all(JoinHandle::is_finished)
    });
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// 700 opens of one's own file stopped everybody for as long as a lease may stand.
#[test]
fn opens_that_wait_for_a_lease_hold_up_nobody() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!("threads=8,transport={transport}"));
        own_file(&pool);
        let lease = Lease::take(&pool.on(0, "leased"));
        let threads = crowd(&pool, 60, |path| {
            assert_eq!(fs::read(path).unwrap(), b"data");
        });
        alice_works(&pool, "beside opens of a leased file");
        // Not only when the kernel has taken the lease away.
        let wait = threads.iter().all(|thread| !thread.is_finished());
        assert!(wait, "the work of another user ends before their wait does");
        let state = &pool.status()["branches"][0]["condition"]["state"];
        assert_eq!(state, "ok");
        lease.give_up();
        finish(threads);
    }
}

#[test]
fn truncations_that_wait_for_a_lease_hold_up_nobody() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!("threads=8,transport={transport}"));
        own_file(&pool);
        let lease = Lease::take(&pool.on(0, "leased"));
        let threads = crowd(&pool, 30, |path| {
            let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
            // SAFETY: a string with its end.
            assert_eq!(unsafe { libc::truncate(name.as_ptr(), 2) }, 0);
        });
        alice_works(&pool, "beside truncations of a leased file");
        let wait = threads.iter().all(|thread| !thread.is_finished());
        assert!(wait, "the work of another user ends before their wait does");
        lease.give_up();
        finish(threads);
        assert_eq!(fs::read(pool.path("leased")).unwrap(), b"da");
    }
}

/// As on the bare filesystem.
#[test]
fn who_does_not_want_to_wait_for_a_lease_is_told_at_once() {
    need_root!();
    let pool = open_pool("threads=8");
    own_file(&pool);
    let lease = Lease::take(&pool.on(0, "leased"));
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(pool.path("leased"));
    assert_eq!(errno(opened), Errno::AGAIN);
    lease.give_up();
    assert_eq!(fs::read(pool.path("leased")).unwrap(), b"data");
}

#[test]
fn an_open_that_waits_for_a_lease_ends_with_its_process() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!("threads=8,transport={transport}"));
        own_file(&pool);
        let lease = Lease::take(&pool.on(0, "leased"));
        let mut command = command_as(MALLORY, "cat");
        let mut reader = command.arg(pool.path("leased")).spawn().unwrap();
        let waits = || {
            let call = fs::read_to_string(format!("/proc/{}/syscall", reader.id()));
            call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_openat)))
        };
        eventually("the open to wait", PATIENCE, waits);
        let pid = Pid::from_raw(reader.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let began = Instant::now();
        eventually("the reader to end", PATIENCE, || {
            reader.try_wait().unwrap().is_some()
        });
        assert!(began.elapsed() < Duration::from_secs(30), "not by itself");
        lease.give_up();
    }
}
