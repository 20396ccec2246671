//! A lease on a file of one user holds up nobody else.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::locks::{alice_works, is_well, open_pool, threads_of, transports};
use super::people::{MALLORY, act_as, command_as};
use crate::need_root;
use crate::need_tool;
use crate::support::files::{errno, open_with};
use crate::support::threads::Stopped;
use crate::support::{Pool, eventually};

const PATIENCE: Duration = Duration::from_secs(60);
/// Far less than a lease may stand (45 s).
const SOON: Duration = Duration::from_secs(25);
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
            let small = thread::Builder::new().stack_size(128 << 10);
            let waiter = small.spawn(move || {
                began.send(()).unwrap();
                act(&path);
            });
            waiter.unwrap()
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

/// As many as stopped everybody.
const CROWD: usize = 700;

/// 700 opens of one's own file stopped everybody for as long as a lease may stand.
#[test]
fn opens_that_wait_for_a_lease_hold_up_nobody() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!("threads=8,transport={transport}"));
        own_file(&pool);
        let lease = Lease::take(&pool.on(0, "leased"));
        let threads = crowd(&pool, CROWD, |path| {
            assert_eq!(fs::read(path).unwrap(), b"data");
        });
        let began = Instant::now();
        alice_works(&pool, "beside opens of a leased file");
        assert!(began.elapsed() < SOON, "another user's work is slow");
        // Not only when the kernel has taken the lease away.
        let wait = threads.iter().all(|thread| !thread.is_finished());
        assert!(wait, "the work of another user ends before their wait does");
        is_well(&pool);
        let began = Instant::now();
        lease.give_up();
        finish(threads);
        assert!(
            began.elapsed() < SOON,
            "they wait for longer than the lease"
        );
    }
}

/// Threads of one process that open a file, and wait.
const OPENERS: &str = "
import os, sys, threading
threading.stack_size(128 << 10)
for _ in range(int(sys.argv[2])):
    threading.Thread(target=os.open, args=(sys.argv[1], os.O_RDONLY)).start()
print('started', flush=True)
";

/// Their process is gone when each of them has been answered.
#[test]
fn a_crowd_that_waits_for_a_lease_ends_when_it_is_killed() {
    need_root!();
    need_tool!("python3");
    for transport in transports() {
        let pool = open_pool(&format!("threads=8,transport={transport}"));
        own_file(&pool);
        let lease = Lease::take(&pool.on(0, "leased"));
        let mut command = command_as(MALLORY, "python3");
        let command = command.args(["-c", OPENERS]).arg(pool.path("leased"));
        let command = command.arg(CROWD.to_string()).stdout(Stdio::piped());
        let mut openers = command.spawn().unwrap();
        let mut said = String::new();
        let output = openers.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said).unwrap();
        assert_eq!(said, "started\n");
        eventually("all to wait", PATIENCE, || {
            threads_of(openers.id(), libc::SYS_openat) >= CROWD
        });
        kill_and_wait(&mut openers, || ());
        // Nothing of them is left that another would wait for.
        alice_works(&pool, "after a crowd that was killed");
        lease.give_up();
        assert_eq!(fs::read(pool.path("leased")).unwrap(), b"data");
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

/// A process in the middle of a system call of this number.
fn is_in(child: &Child, call: libc::c_long) -> bool {
    let line = fs::read_to_string(format!("/proc/{}/syscall", child.id()));
    line.is_ok_and(|line| line.starts_with(&format!("{call} ")))
}

/// Kills what waits, and sees it end long before the lease does.
fn kill_and_wait(waiting: &mut Child, between: impl FnOnce()) {
    let pid = Pid::from_raw(waiting.id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    between();
    let began = Instant::now();
    eventually("a killed process to end", PATIENCE, || {
        waiting.try_wait().unwrap().is_some()
    });
    assert!(began.elapsed() < SOON, "not by itself");
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
        eventually("the open to wait", PATIENCE, || {
            is_in(&reader, libc::SYS_openat)
        });
        kill_and_wait(&mut reader, || ());
        lease.give_up();
    }
}

/// Over io_uring the kernel does not tell the server of a signal that comes before the server has taken
/// the request: whoever was killed then waited for as long as the lease stood.
#[test]
fn an_open_killed_before_the_server_has_taken_it_ends_with_its_process() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!("threads=8,transport={transport}"));
        own_file(&pool);
        let lease = Lease::take(&pool.on(0, "leased"));
        // Its name is known, so that the first request is the open.
        act_as(MALLORY, || fs::metadata(pool.path("leased")).unwrap());
        let stopped = Stopped::new(pool.pid());
        let mut command = command_as(MALLORY, "cat");
        let mut reader = command.arg(pool.path("leased")).spawn().unwrap();
        let state = || fs::read_to_string(format!("/proc/{}/stat", reader.id())).unwrap();
        eventually("the open to be asked for", PATIENCE, || {
            is_in(&reader, libc::SYS_openat) && state().contains(") S ")
        });
        kill_and_wait(&mut reader, || {
            // The reader sees the signal first.
            thread::sleep(Duration::from_millis(200));
            drop(stopped);
        });
        lease.give_up();
    }
}

/// The same for who waits for a lock, which nothing ends by itself.
#[test]
fn a_lock_killed_before_the_server_has_taken_it_ends_with_its_process() {
    need_root!();
    need_tool!("flock");
    for transport in transports() {
        let pool = open_pool(&format!("threads=8,transport={transport}"));
        own_file(&pool);
        let held = open_with(pool.path("leased"), 0).unwrap();
        rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
        // Stopped by itself between the open and the lock.
        let mut command = command_as(MALLORY, "sh");
        let script = "exec 9<\"$0\"; kill -STOP $$; exec flock 9";
        command.args(["-c", script]).arg(pool.path("leased"));
        let mut waiting = command.spawn().unwrap();
        let pid = Pid::from_raw(waiting.id().cast_signed()).unwrap();
        let state = || fs::read_to_string(format!("/proc/{}/stat", waiting.id())).unwrap();
        eventually("a process that stops", PATIENCE, || {
            state().contains(") T ")
        });
        let stopped = Stopped::new(pool.pid());
        kill_process(pid, Signal::CONT).unwrap();
        eventually("the lock to be asked for", PATIENCE, || {
            is_in(&waiting, libc::SYS_flock) && state().contains(") S ")
        });
        kill_and_wait(&mut waiting, || {
            thread::sleep(Duration::from_millis(200));
            drop(stopped);
        });
        drop(held);
    }
}
