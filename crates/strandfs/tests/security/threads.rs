//! Requests of one user that block for long occupy a share of the server's threads, and no more.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Pid, Signal, kill_process};

use super::evil_fs::let_others_in;
use super::locks::{alice_works, is_well, open_pool, threads_in, transports};
use super::people::{MALLORY, act_as, command_as};
use crate::need_root;
use crate::need_tool;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::{Pool, eventually};

const PATIENCE: Duration = Duration::from_secs(60);
/// Half of them stood still long enough for a branch to be taken for slow, and for failed.
const LONG: Duration = Duration::from_millis(2500);

/// A pool with a filesystem of Mallory's own below its branch, at `m`.
struct Crossed {
    mount: DelayFs,
    pool: Pool,
}

impl Crossed {
    fn new(options: &str) -> Crossed {
        let mut pool = Pool::tmpfs(1).option(options).prepare();
        fs::set_permissions(pool.on(0, ""), PermissionsExt::from_mode(0o1777)).unwrap();
        let behind = pool.outside("behind");
        fs::create_dir_all(&behind).unwrap();
        for number in 0..FILES {
            fs::write(behind.join(format!("f{number}")), "data").unwrap();
        }
        let place = pool.on(0, "m");
        fs::create_dir(&place).unwrap();
        chown(&place, Some(MALLORY), Some(MALLORY)).unwrap();
        let_others_in();
        let mount = act_as(MALLORY, || DelayFs::mount(&behind, &place));
        pool.start();
        Crossed { mount, pool }
    }

    /// As many requests as hold up everybody where nothing is shared out.
    fn crowd(&self) -> Vec<JoinHandle<()>> {
        let open = |path: PathBuf| {
            move || {
                // The kernel may look up a name again meanwhile.
                let read = fs::read(path);
                assert!(
                    read.is_ok_and(|data| data == b"data"),
                    "what waited goes on"
                );
            }
        };
        let paths = (0..FILES).map(|number| self.pool.path(format!("m/f{number}")));
        act_as(MALLORY, || {
            paths.map(|path| thread::spawn(open(path))).collect()
        })
    }
}

const FILES: usize = 200;

fn finish(threads: Vec<JoinHandle<()>>) {
    eventually("all to go on", PATIENCE, || {
        threads.iter().all(JoinHandle::is_finished)
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The branch was called slow, and failed in the end: EIO for everybody. Over io_uring, hundreds
/// of requests took every thread there was.
#[test]
fn a_filesystem_of_a_users_own_that_hangs_below_a_branch_holds_up_nobody() {
    need_root!();
    need_tool!("fusermount3");
    for transport in transports() {
        let crossed = Crossed::new(&format!(
            "threads=8,transport={transport},cross-mounts=all,branch-slow-after=200ms"
        ));
        // What is behind it has been seen, and waits as well as its root.
        act_as(MALLORY, || {
            fs::read_dir(crossed.pool.path("m")).unwrap().count()
        });
        crossed.mount.set(Mood::Stuck);
        let threads = crossed.crowd();
        eventually("requests to wait", PATIENCE, || crossed.mount.waiting() > 0);
        thread::sleep(Duration::from_millis(500));
        alice_works(&crossed.pool, "beside a filesystem that hangs");
        thread::sleep(LONG);
        is_well(&crossed.pool);
        alice_works(&crossed.pool, "beside a filesystem that hangs for long");
        assert!(threads.iter().all(|thread| !thread.is_finished()));
        crossed.mount.set(Mood::Well);
        finish(threads);
        alice_works(&crossed.pool, "after that");
    }
}

/// A fifo is opened by the kernel of whoever opens it: the server has no part in the wait.
#[test]
fn opens_of_a_fifo_that_nobody_writes_to_hold_up_nobody() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!(
            "threads=8,transport={transport},branch-slow-after=200ms"
        ));
        let fifo = pool.path("fifo");
        let mode = Mode::from_raw_mode(0o600);
        act_as(MALLORY, || {
            rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        });
        let before = threads_in(libc::SYS_openat);
        let threads: Vec<_> = act_as(MALLORY, || {
            let open = |_| {
                let fifo = fifo.clone();
                thread::spawn(move || drop(fs::File::open(fifo).unwrap()))
            };
            (0..300).map(open).collect()
        });
        eventually("all to wait", PATIENCE, || {
            threads_in(libc::SYS_openat) >= before + 300
        });
        alice_works(&pool, "beside opens of a fifo");
        thread::sleep(LONG);
        is_well(&pool);
        alice_works(&pool, "beside opens of a fifo that wait for long");
        let writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
        finish(threads);
        drop(writer);
    }
}

/// Programs that list, read and write without end, of which some are stopped in the middle of a
/// request whenever that is.
fn restless(pool: &Pool, number: usize) -> Child {
    let dir = pool.path(format!("restless-{number}"));
    act_as(MALLORY, || match fs::create_dir(&dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("{error}"),
        _ => {}
    });
    let script = "while :; do echo x > f; cat f > g; flock g true; mv g h; ls -l / . > /dev/null; rm h; done";
    let mut command = command_as(MALLORY, "sh");
    command.args(["-c", script]).current_dir(dir);
    command.stderr(Stdio::null()).process_group(0);
    command.spawn().unwrap()
}

/// Ended with all that it has started, however the test ends.
struct Restless(Vec<Child>);

impl Restless {
    fn signal(&self, signal: Signal) {
        for child in &self.0 {
            let group = Pid::from_raw(child.id().cast_signed()).unwrap();
            rustix::process::kill_process_group(group, signal).ok();
            kill_process(group, signal).ok();
        }
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        for child in &mut self.0 {
            child.wait().ok();
        }
    }
}

#[test]
fn processes_stopped_in_the_middle_of_requests_hold_up_nobody() {
    need_root!();
    need_tool!("flock");
    for transport in transports() {
        let pool = open_pool(&format!(
            "threads=8,transport={transport},branch-slow-after=200ms"
        ));
        let all = Restless((0..12).map(|number| restless(&pool, number)).collect());
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(200));
            all.signal(Signal::STOP);
            alice_works(&pool, "beside stopped processes");
            all.signal(Signal::CONT);
        }
        all.signal(Signal::STOP);
        thread::sleep(LONG);
        is_well(&pool);
        alice_works(&pool, "beside processes that are stopped for long");
    }
}
