//! POSIX locks taken through files whose closes the kernel does not report (`flush-on-close`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use support::Pool;
use support::files::{errno, open_with, process_lock, record_lock};

/// Makes a file and opens it for writing only: its closes are not reported.
fn make(pool: &Pool, name: &str) -> File {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).open(pool.path(name));
    made.unwrap()
}

#[test]
fn a_lock_ends_with_an_unreported_close_while_others_have_the_file_open() {
    let pool = Pool::tmpfs(1).mount();
    let made = make(&pool, "f");
    let another = open_with(pool.path("f"), 0).unwrap();
    let beneath = open_with(pool.on(0, "f"), 0).unwrap();
    process_lock(&made, libc::F_WRLCK).unwrap();
    assert_eq!(errno(record_lock(&beneath, libc::F_WRLCK)), Errno::AGAIN);
    drop(made);
    support::eventually("the lock to end", Duration::from_secs(10), || {
        record_lock(&beneath, libc::F_WRLCK).is_ok()
    });
    drop(another);
}

/// Locks a file it makes, lets a child inherit it, says so and ends; the child goes on until its
/// input ends.
const LOCK_AND_LEAVE: &str = "
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
fcntl.lockf(fd, fcntl.LOCK_EX)
if os.fork():
    print('locked', flush=True)
    sys.stdin.readline()
    os._exit(0)
os.setsid()
os.read(3, 1)
";

#[test]
fn a_lock_of_a_process_that_ended_binds_nobody() {
    need_tool!("python3");
    let pool = Pool::tmpfs(1).mount();
    // The child keeps the file open, and this pipe tells it when the test is over.
    let (over, _until_here) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut locker = Command::new("sh")
        .args(["-c", "exec python3 -c \"$1\" \"$2\" 3<&2 2>/dev/null", "sh"])
        .arg(LOCK_AND_LEAVE)
        .arg(pool.path("f"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(over)
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(locker.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "locked\n");

    let through = open_with(pool.path("f"), 0).unwrap();
    assert_eq!(errno(process_lock(&through, libc::F_WRLCK)), Errno::AGAIN);
    drop(locker.stdin.take());
    assert!(locker.wait().unwrap().success());
    process_lock(&through, libc::F_WRLCK).unwrap();
}
