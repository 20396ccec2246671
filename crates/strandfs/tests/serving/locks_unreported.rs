//! Whose locks end when, also where the kernel does not report closes (`flush-on-close`).

use crate::need_tool;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::Pool;
use crate::support::files::{errno, open_with, process_lock, record_lock};
use rustix::io::Errno;

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
    crate::support::eventually("the lock to end", Duration::from_secs(10), || {
        record_lock(&beneath, libc::F_WRLCK).is_ok()
    });
    drop(another);
}

/// A lock of the open file description ends with it, whoever else has the file open.
#[test]
fn a_lock_of_a_description_ends_with_its_last_close() {
    let pool = Pool::tmpfs(1).mount();
    for name in ["reported", "unreported"] {
        drop(make(&pool, name));
        let first = match name {
            "reported" => open_with(pool.path(name), 0).unwrap(),
            _ => File::open(pool.path(name)).unwrap(),
        };
        let kind = match name {
            "reported" => libc::F_WRLCK,
            _ => libc::F_RDLCK,
        };
        let second = open_with(pool.path(name), 0).unwrap();
        record_lock(&first, kind).unwrap();
        assert_eq!(errno(record_lock(&second, libc::F_WRLCK)), Errno::AGAIN);
        drop(first);
        crate::support::eventually("the lock to end", Duration::from_secs(10), || {
            record_lock(&second, libc::F_WRLCK).is_ok()
        });
    }
}

/// The close of a file is told late, or not at all; what the process locks after it, by another
/// description, is not what it closed.
#[test]
fn a_late_close_ends_no_lock_that_was_taken_after_it() {
    let pool = Pool::tmpfs(1).mount();
    drop(make(&pool, "f"));
    let beneath = open_with(pool.on(0, "f"), 0).unwrap();
    for round in 0..300 {
        let first = File::open(pool.path("f")).unwrap();
        let second = open_with(pool.path("f"), 0).unwrap();
        process_lock(&first, libc::F_RDLCK).unwrap();
        drop(first);
        process_lock(&second, libc::F_WRLCK).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let other = errno(record_lock(&beneath, libc::F_WRLCK));
        assert_eq!(other, Errno::AGAIN, "round {round}");
    }
}

/// Locks a file it makes, lets a child inherit it, says so and ends; the child goes on until its
/// input ends.
const LOCK_AND_LEAVE: &str = "
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
if sys.argv[2] == 'process':
    fcntl.lockf(fd, fcntl.LOCK_EX)
else:
    F_OFD_SETLK = 37
    fcntl.fcntl(fd, F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
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
    after_the_locker_has_left("process", |second| {
        process_lock(second, libc::F_WRLCK).unwrap();
    });
}

/// A daemon locks its file so, forks, and lets the first process end.
#[test]
fn a_lock_of_a_description_lives_on_in_whoever_inherited_it() {
    need_tool!("python3");
    after_the_locker_has_left("description", |second| {
        assert_eq!(errno(process_lock(second, libc::F_WRLCK)), Errno::AGAIN);
        assert_eq!(errno(record_lock(second, libc::F_WRLCK)), Errno::AGAIN);
    });
}

fn after_the_locker_has_left(owner: &str, check: impl FnOnce(&File)) {
    let pool = Pool::tmpfs(1).mount();
    // The child keeps the file open, and this pipe tells it when the test is over.
    let (over, _until_here) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut locker = Command::new("sh")
        .args([
            "-c",
            "exec python3 -c \"$1\" \"$2\" \"$3\" 3<&2 2>/dev/null",
            "sh",
        ])
        .arg(LOCK_AND_LEAVE)
        .arg(pool.path("f"))
        .arg(owner)
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
    check(&through);
}
