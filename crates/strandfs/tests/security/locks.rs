//! Whoever waits for a lock occupies nothing that others need.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use super::people::{ALICE, MALLORY, act_as, command_as};
use crate::support::files::open_with;
use crate::support::mounts::uring_is_on;
use crate::support::threads::threads;
use crate::support::{Pool, eventually, say};
use crate::{need_root, need_tool};

/// Long enough for any machine; never reached where nothing hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The transports there are here.
pub fn transports() -> Vec<&'static str> {
    match std::env::var("STRANDFS_TEST_TRANSPORT").as_deref() {
        Ok("dev") => vec!["dev"],
        _ if uring_is_on() => vec!["dev", "uring"],
        _ => vec!["dev"],
    }
}

/// A pool where everybody may make files.
pub fn open_pool(options: &str) -> Pool {
    let pool = Pool::tmpfs(1).option(options).mount();
    fs::set_permissions(pool.root(), PermissionsExt::from_mode(0o1777)).unwrap();
    pool
}

/// What an ordinary user does all day, on a thread of its own: a hang fails the test.
pub fn alice_works(pool: &Pool, what: &str) {
    let root = pool.root().to_owned();
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        act_as(ALICE, || {
            for round in 0..20 {
                let path = root.join(format!("alice-{round}"));
                fs::write(&path, "hers").unwrap();
                assert_eq!(fs::read(&path).unwrap(), b"hers");
                let file = File::open(&path).unwrap();
                rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
                fs::rename(&path, root.join("alice-moved")).unwrap();
                fs::remove_file(root.join("alice-moved")).unwrap();
            }
            assert!(fs::read_dir(&root).unwrap().count() > 0);
        });
        done.send(()).unwrap();
    });
    let worked = wait.recv_timeout(PATIENCE);
    assert!(
        worked.is_ok(),
        "another user's work is held up, or fails: {what}"
    );
}

/// Threads of this process that are in this system call.
pub fn threads_in(call: libc::c_long) -> usize {
    threads_of(std::process::id(), call)
}

/// The same of another process.
pub fn threads_of(process: u32, call: libc::c_long) -> usize {
    let threads = threads(process).into_iter();
    let calls = threads.filter_map(|thread| thread.read("syscall"));
    let call = format!("{call} ");
    calls.filter(|line| line.starts_with(&call)).count()
}

/// The branch of a pool is what it was.
pub fn is_well(pool: &Pool) {
    let state = &pool.branch_status(0).condition.state;
    assert_eq!(state, "ok", "a branch is taken for sick");
}

/// Waits for a lock, has it for a moment, and tells so.
fn wait_for_lock(path: &Path) -> JoinHandle<()> {
    let file = open_with(path, 0).unwrap();
    thread::spawn(move || rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap())
}

fn join_all(waiting: Vec<JoinHandle<()>>) {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        waiting
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        done.send(()).unwrap();
    });
    wait.recv_timeout(PATIENCE)
        .expect("every waiter gets the lock");
}

/// The server had eight threads, and four waiters were enough; it had hundreds, and 260 made a
/// healthy branch fail.
#[test]
fn three_hundred_waiters_for_a_lock_hold_up_nobody() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!(
            "threads=8,transport={transport},branch-slow-after=200ms"
        ));
        let path = pool.path("lock");
        let before = threads_in(libc::SYS_flock);
        let (held, waiting) = act_as(MALLORY, || {
            let held = open_with(&path, 0).unwrap();
            rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
            let waiting: Vec<_> = (0..300).map(|_| wait_for_lock(&path)).collect();
            (held, waiting)
        });
        eventually("all to wait", PATIENCE, || {
            threads_in(libc::SYS_flock) >= before + 300
        });
        alice_works(&pool, "beside waiters for a lock");
        // Long enough for the branch to be taken for slow, and for failed.
        thread::sleep(Duration::from_millis(2500));
        is_well(&pool);
        alice_works(&pool, "beside waiters that wait for long");
        drop(held);
        join_all(waiting);
        alice_works(&pool, "after them");
    }
}

/// A process that waits for a lock and is killed is gone at once.
#[test]
fn a_waiter_that_is_killed_ends() {
    need_root!();
    need_tool!("flock");
    for transport in transports() {
        let pool = open_pool(&format!("threads=8,transport={transport}"));
        let held = open_with(pool.path("lock"), 0).unwrap();
        fs::set_permissions(pool.path("lock"), PermissionsExt::from_mode(0o666)).unwrap();
        rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
        let mut waiting: Vec<Child> = (0..20)
            .map(|_| {
                let mut command = command_as(MALLORY, "flock");
                command.arg(pool.path("lock")).arg("true");
                command.spawn().unwrap()
            })
            .collect();
        let waits = |child: &Child| {
            let call = fs::read_to_string(format!("/proc/{}/syscall", child.id()));
            call.is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_flock)))
        };
        eventually("all to wait", PATIENCE, || waiting.iter().all(waits));
        for child in &waiting {
            kill_process(pid_of(child), Signal::TERM).unwrap();
        }
        for child in &mut waiting {
            eventually("a killed waiter to end", PATIENCE, || {
                child.try_wait().unwrap().is_some()
            });
        }
        drop(held);
        let again = open_with(pool.path("lock"), 0).unwrap();
        let free = || rustix::fs::flock(&again, FlockOperation::NonBlockingLockExclusive).is_ok();
        eventually("the lock to be free", PATIENCE, free);
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed()).unwrap()
}

/// A stopped process goes on holding its lock: who wants that lock waits, and nobody else.
#[test]
fn a_stopped_process_with_a_lock_holds_up_who_wants_the_lock_alone() {
    need_root!();
    need_tool!("flock");
    let pool = open_pool("threads=8,branch-slow-after=200ms");
    let mut holder = command_as(MALLORY, "flock");
    holder
        .arg(pool.path("lock"))
        .args(["sh", "-c", "echo held; read end"]);
    let mut holder = holder
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let output = holder.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said).unwrap();
    assert_eq!(said, "held\n");
    kill_process(pid_of(&holder), Signal::STOP).unwrap();
    let before = threads_in(libc::SYS_flock);
    let waiting: Vec<_> = act_as(MALLORY, || {
        (0..50).map(|_| wait_for_lock(&pool.path("lock"))).collect()
    });
    eventually("all to wait", PATIENCE, || {
        threads_in(libc::SYS_flock) >= before + 50
    });
    alice_works(&pool, "beside a stopped holder of a lock");
    thread::sleep(Duration::from_millis(1500));
    is_well(&pool);
    kill_process(pid_of(&holder), Signal::CONT).unwrap();
    drop(holder.stdin.take());
    holder.wait().unwrap();
    join_all(waiting);
}

/// Somebody locked the file on the branch itself; the pool tries again, without a thread for each.
#[test]
fn waiters_for_a_lock_taken_on_the_branch_itself_get_it_when_it_is_free() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!(
            "threads=8,transport={transport},branch-slow-after=200ms"
        ));
        let path = pool.path("lock");
        drop(open_with(&path, 0).unwrap());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let beneath = open_with(pool.on(0, "lock"), 0).unwrap();
        rustix::fs::flock(&beneath, FlockOperation::LockExclusive).unwrap();
        let before = threads_in(libc::SYS_flock);
        let waiting: Vec<_> = act_as(MALLORY, || (0..50).map(|_| wait_for_lock(&path)).collect());
        eventually("all to wait", PATIENCE, || {
            threads_in(libc::SYS_flock) >= before + 50
        });
        alice_works(&pool, "beside waiters for a lock of the branch");
        thread::sleep(Duration::from_millis(1500));
        is_well(&pool);
        drop(beneath);
        join_all(waiting);
    }
}

/// Record locks of one open file description, so that a crowd needs no descriptors: as many threads
/// as `STRANDFS_TEST_WAITERS` says wait for it, or as may over io_uring.
#[test]
fn a_crowd_that_waits_for_one_lock_does_not_slow_another_user() {
    need_root!();
    let crowd: usize = std::env::var("STRANDFS_TEST_WAITERS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1500);
    for transport in transports() {
        let crowd = match transport {
            "uring" => crowd.min(4000),
            _ => crowd,
        };
        let pool = open_pool(&format!("transport={transport}"));
        fs::create_dir(pool.path("hers")).unwrap();
        std::os::unix::fs::chown(pool.path("hers"), Some(ALICE), Some(ALICE)).unwrap();
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        let rounds = 3;
        for _ in 0..rounds {
            alone.extend(times_of(&pool));
            let held = open_with(pool.path("lock"), 0).unwrap();
            fs::set_permissions(pool.path("lock"), PermissionsExt::from_mode(0o666)).unwrap();
            range_lock(&held, libc::F_OFD_SETLK).unwrap();
            let before = threads_in(libc::SYS_fcntl);
            let waiting: Vec<_> = act_as(MALLORY, || {
                let file = Arc::new(open_with(pool.path("lock"), 0).unwrap());
                let wait = |_| {
                    let file = Arc::clone(&file);
                    let wait = move || range_lock(&file, libc::F_OFD_SETLKW).unwrap();
                    let thread = thread::Builder::new().stack_size(32 << 10);
                    thread.spawn(wait).expect("a thread for each waiter")
                };
                (0..crowd).map(wait).collect()
            });
            eventually("all to wait", 5 * PATIENCE, || {
                threads_in(libc::SYS_fcntl) >= before + crowd
            });
            beside.extend(times_of(&pool));
            is_well(&pool);
            drop(held);
            join_all(waiting);
        }
        let (alone, beside) = (percentiles(&mut alone), percentiles(&mut beside));
        say(&format!(
            "{transport}: another user's stat and create beside {crowd} waiters: \
             median {:?}, 99 % {:?}; alone {:?} and {:?}",
            beside.0, beside.1, alone.0, alone.1
        ));
        // Far more than twice: the machine of a test is busy with others.
        assert!(beside.1 < alone.1 * 20 + Duration::from_millis(200));
    }
}

/// How long each of some hundred calls of another user takes.
fn times_of(pool: &Pool) -> Vec<Duration> {
    act_as(ALICE, || {
        let mut times = Vec::new();
        for round in 0..500 {
            let path = pool.path("hers").join(format!("f{round}"));
            let began = Instant::now();
            drop(File::create(&path).unwrap());
            fs::metadata(&path).unwrap();
            times.push(began.elapsed());
        }
        for round in 0..500 {
            fs::remove_file(pool.path("hers").join(format!("f{round}"))).unwrap();
        }
        times
    })
}

/// The median, and what 99 of a hundred do not exceed.
fn percentiles(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn range_lock(file: &File, command: i32) -> std::io::Result<()> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: fcntl reads one flock structure for these commands.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
