//! The server's threads: a branch that blocks takes some of them, never those the other branches
//! need; `threads` is the most there are; and where `pin-threads` puts them.
//!
//! The branch that blocks is another pool whose server is stopped. Whatever touches it then waits,
//! the test's own calls as well: everything the test needs is opened before, and nothing is
//! spawned while the server is stopped.

use crate::need_root;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::files::{get, pattern, put};
use crate::support::system::stay_on;
use crate::support::threads::Stopped;
use crate::support::threads::{Thread, own_thread, threads};
use crate::support::{Pool, eventually, run};
use rustix::fs::{Mode, OFlags};

/// Long enough for any machine; never reached where nothing hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A pool of a tmpfs and of a pool whose server can be stopped.
struct Layered {
    // Closed first: an open file keeps its pool's server.
    fast: Arc<File>,
    slow: Arc<File>,
    upper: Pool,
    lower: Pool,
}

/// Everything goes through both servers, and the kernel keeps what path walks need.
const OPTIONS: &str = "passthrough.io=off,cache.files=off,cache.attr=3600,cache.entry=3600";

impl Layered {
    fn new(options: &str) -> Layered {
        let lower = Pool::tmpfs(1).option(OPTIONS).mount();
        put(lower.path("slow"), pattern(1, 1 << 16));
        put(lower.path("dir/inside"), "x");
        put(lower.path("dir/other"), "x");
        let mut upper = Pool::build()
            .branch(crate::support::Kind::Tmpfs("64m"), "")
            .branch(crate::support::Kind::Dir, "")
            .option(&format!("{OPTIONS},category.create=ff{options}"))
            .prepare();
        let beneath = upper.on(1, "");
        run("mount", ["--bind".as_ref(), lower.root(), &beneath]).ok();
        upper.start();
        put(upper.path("fast"), pattern(2, 1 << 16));
        assert_eq!(upper.holders("fast"), [0]);
        assert_eq!(upper.holders("slow"), [1]);
        let both = |name| {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true);
            Arc::new(options.open(upper.path(name)).unwrap())
        };
        let (fast, slow) = (both("fast"), both("slow"));
        Layered {
            fast,
            slow,
            upper,
            lower,
        }
    }

    fn stop(&self) -> Stopped {
        Stopped::new(self.lower.pid())
    }

    /// Reads a block of the slow file on a thread of its own.
    fn read_slow(&self, block: u64) -> Receiver<bool> {
        let slow = Arc::clone(&self.slow);
        apart(move || {
            let mut bytes = [0; 4096];
            slow.read_exact_at(&mut bytes, block * 4096).unwrap();
            let from = block as usize * 4096;
            bytes == pattern(1, 1 << 16)[from..from + 4096]
        })
    }

    /// Reads and writes the fast file; gives up if that takes for ever.
    fn use_fast(&self) {
        let fast = Arc::clone(&self.fast);
        let done = apart(move || {
            for round in 0..50_u64 {
                let mut bytes = [0; 4096];
                fast.read_exact_at(&mut bytes, round % 16 * 4096).unwrap();
                fast.write_all_at(&bytes, round % 16 * 4096).unwrap();
            }
        });
        done.recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("the other branch is blocked too:\n{}", self.threads()));
    }

    /// The upper server's threads in a call that asks a branch.
    fn blocked(&self) -> usize {
        let asking = [
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_getxattr,
            libc::SYS_fgetxattr,
            libc::SYS_fstatfs,
            libc::SYS_statx,
            libc::SYS_openat,
            libc::SYS_fsync,
        ];
        let tasks = serving(self.upper.pid());
        tasks
            .iter()
            .filter(|task| call(task).is_some_and(|call| asking.contains(&call)))
            .count()
    }

    fn wait_for_blocked(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.blocked() != count {
            let all = Instant::now() < deadline;
            assert!(
                all,
                "{} of {count} block:\n{}",
                self.blocked(),
                self.threads()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What each of the upper server's threads does, for the message of a failed test.
    fn threads(&self) -> String {
        let mut text = String::new();
        for thread in threads(self.upper.pid()) {
            for file in ["comm", "syscall", "wchan", "stack"] {
                text += &thread.read(file).unwrap_or_default();
                text += "\n";
            }
        }
        text
    }
}

/// The system call a thread is in, if it waits in one.
fn call(thread: &Thread) -> Option<libc::c_long> {
    let line = thread.read("syscall")?;
    line.split_whitespace().next()?.parse().ok()
}

/// The threads that carry out requests.
fn serving(pid: u32) -> Vec<Thread> {
    let mut threads = threads(pid);
    threads.retain(|thread| ["strandfs-io", "strandfs-device"].contains(&thread.name().as_str()));
    threads
}

/// Runs `work` on another thread; its result can be waited for with a limit.
fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    wait
}

#[test]
fn a_blocked_branch_leaves_threads_for_the_others() {
    need_root!();
    let layers = Layered::new("");
    let before = layers.upper.connection().reliefs;
    let stopped = layers.stop();
    let readers: Vec<_> = (0..6).map(|block| layers.read_slow(block)).collect();
    layers.wait_for_blocked(6);
    layers.use_fast();
    assert!(layers.blocked() >= 6, "the slow branch is blocked still");
    drop(stopped);
    for reader in readers {
        assert!(reader.recv_timeout(PATIENCE).unwrap(), "the right bytes");
    }
    let connection = &layers.upper.connection();
    let reliefs = connection.reliefs - before;
    assert!(reliefs >= 6, "{connection:?}");
    assert!(connection.most_threads_at_once >= 7, "{connection:?}");
    assert!(connection.requests["read"] >= 56, "{connection:?}");
}

/// Over io_uring a request belongs to the CPU its caller runs on: what blocks there must not keep
/// that CPU's other requests.
#[test]
fn a_blocked_branch_leaves_its_cpu_to_the_others() {
    need_root!();
    let mut transports = vec!["dev"];
    transports.extend(crate::support::mounts::uring_is_on().then_some("uring"));
    let own = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..1024).filter(|cpu| own.is_set(*cpu)).take(2).collect();
    for transport in transports {
        let layers = Layered::new(&format!(",transport={transport}"));
        for cpu in &cpus {
            let stopped = layers.stop();
            stay_on(*cpu);
            // What is started from here stays here.
            let readers: Vec<_> = (0..4).map(|block| layers.read_slow(block)).collect();
            layers.wait_for_blocked(4);
            layers.use_fast();
            assert!(layers.blocked() >= 4, "the slow branch is blocked still");
            drop(stopped);
            for reader in readers {
                assert!(reader.recv_timeout(PATIENCE).unwrap(), "the right bytes");
            }
        }
        rustix::thread::sched_setaffinity(None, &own).unwrap();
        let connection = &layers.upper.connection();
        assert_eq!(
            connection.transport.as_deref(),
            Some(transport),
            "{connection:?}"
        );
        // Asked for with nothing in the way, each time.
        layers.use_fast();
    }
}

#[test]
fn whatever_call_blocks_the_others_go_on() {
    need_root!();
    let layers = Layered::new("");
    let root = File::open(layers.upper.root()).unwrap();
    let dir = File::open(layers.upper.path("dir")).unwrap();
    let other = File::open(layers.upper.path("dir/other")).unwrap();
    let stopped = layers.stop();
    let slow = Arc::clone(&layers.slow);
    let asked: Vec<Receiver<io::Result<()>>> = vec![
        apart({
            let slow = Arc::clone(&slow);
            move || {
                let mut value = [0; 64];
                rustix::fs::fgetxattr(slow.as_fd(), "security.capability", &mut value)?;
                Ok(())
            }
        }),
        apart(move || {
            rustix::fs::openat(dir.as_fd(), "inside", OFlags::RDONLY, Mode::empty())?;
            Ok(())
        }),
        apart({
            let slow = Arc::clone(&slow);
            move || slow.write_all_at(&pattern(1, 4096), 0)
        }),
        // A file of its own: the kernel lets a sync wait for a write to the same one.
        apart(move || other.sync_all()),
        apart(move || slow.read_exact_at(&mut [0; 4096], 0)),
    ];
    layers.wait_for_blocked(asked.len());
    layers.use_fast();
    // Free space is what the branch said last.
    let told = apart(move || rustix::fs::fstatfs(root.as_fd()).is_ok());
    assert!(told.recv_timeout(PATIENCE).unwrap());
    drop(stopped);
    for (number, answer) in asked.iter().enumerate() {
        let answer = answer.recv_timeout(PATIENCE).unwrap();
        match number {
            0 => assert_eq!(
                answer.unwrap_err().raw_os_error(),
                Some(libc::ENODATA),
                "no such attribute"
            ),
            _ => answer.unwrap(),
        }
    }
}

#[test]
fn there_are_never_more_threads_than_the_option_says() {
    need_root!();
    let layers = Layered::new(",threads=3");
    let stopped = layers.stop();
    let readers: Vec<_> = (0..8).map(|block| layers.read_slow(block)).collect();
    layers.wait_for_blocked(3);
    // With all of them blocked, the others wait in the kernel.
    for _ in 0..10 {
        assert_eq!(serving(layers.upper.pid()).len(), 3);
        thread::sleep(Duration::from_millis(20));
    }
    drop(stopped);
    for reader in readers {
        assert!(reader.recv_timeout(PATIENCE).unwrap(), "the right bytes");
    }
    layers.use_fast();
    let connection = &layers.upper.connection();
    assert_eq!(connection.most_threads, 3, "{connection:?}");
    assert_eq!(connection.most_threads_at_once, 3, "{connection:?}");
}

#[test]
fn one_thread_is_enough_to_serve() {
    let pool = Pool::tmpfs(2).option("threads=1").mount();
    for round in 0..20 {
        let name = format!("d{}/f{round}", round % 3);
        put(pool.path(&name), pattern(round, 300_000));
        assert!(get(pool.path(&name)) == pattern(round, 300_000));
    }
    let connection = &pool.connection();
    assert_eq!(connection.most_threads_at_once, 1, "{connection:?}");
    assert_eq!(serving(pool.pid()).len(), 1);
}

#[test]
fn both_thread_counts_are_added_up() {
    for (options, most) in [
        ("threads=2,process-thread-count=3", 5),
        ("read-thread-count=7", 7),
        ("threads=0", 512),
    ] {
        let pool = Pool::tmpfs(1).option(options).mount();
        let connection = &pool.connection();
        assert_eq!(connection.most_threads, most, "{options}: {connection:?}");
    }
}

/// The CPUs a thread may run on, as the kernel lists them.
fn cpus(thread: &Thread) -> String {
    thread.status("Cpus_allowed_list").unwrap_or_default()
}

#[test]
fn pin_threads_puts_the_reader_and_the_others_on_their_cpus() {
    need_root!();
    let own = cpus(&own_thread());
    let first = own.split(['-', ',']).next().unwrap();
    let last = own.split(['-', ',']).next_back().unwrap();
    for (strategy, reading, working) in [
        ("R1L", first, own.as_str()),
        ("RP1L", first, first),
        ("R1LP1L", first, last),
        ("anywhere", own.as_str(), own.as_str()),
    ] {
        let layers = Layered::new(&format!(",transport=dev,pin-threads={strategy}"));
        let stopped = layers.stop();
        let readers: Vec<_> = (0..2).map(|block| layers.read_slow(block)).collect();
        layers.wait_for_blocked(2);
        layers.use_fast();
        eventually("the threads to be in their places", PATIENCE, || {
            serving(layers.upper.pid())
                .iter()
                .all(|task| match call(task) {
                    Some(libc::SYS_read) => cpus(task) == reading,
                    Some(libc::SYS_pread64) => cpus(task) == working,
                    // Parked, or on its way.
                    _ => true,
                })
        });
        drop(stopped);
        for reader in readers {
            assert!(reader.recv_timeout(PATIENCE).unwrap(), "the right bytes");
        }
    }
}

#[test]
fn pin_threads_can_spread_them() {
    need_root!();
    let layers = Layered::new(",transport=dev,pin-threads=RPSL");
    let own = cpus(&own_thread());
    let stopped = layers.stop();
    let readers: Vec<_> = (0..3).map(|block| layers.read_slow(block)).collect();
    layers.wait_for_blocked(3);
    let several = own.contains(['-', ',']);
    eventually("each thread to be on one CPU", PATIENCE, || {
        let tasks = serving(layers.upper.pid());
        let used: BTreeSet<String> = tasks.iter().map(cpus).collect();
        let single = used.iter().all(|cpu| cpu.parse::<usize>().is_ok());
        single && (used.len() > 1) == several
    });
    drop(stopped);
    for reader in readers {
        assert!(reader.recv_timeout(PATIENCE).unwrap(), "the right bytes");
    }
}

#[test]
fn parallel_direct_writes_run_at_once_or_one_after_the_other() {
    need_root!();
    for (option, at_once) in [("true", 2), ("false", 1)] {
        let layers = Layered::new(&format!(",parallel-direct-writes={option}"));
        let stopped = layers.stop();
        let writers: Vec<_> = (0..2_u64)
            .map(|block| {
                let slow = Arc::clone(&layers.slow);
                apart(move || slow.write_all_at(&pattern(3 + block, 4096), block * 4096))
            })
            .collect();
        layers.wait_for_blocked(at_once);
        // The second one stays in the kernel where they follow each other.
        for _ in 0..10 {
            assert_eq!(layers.blocked(), at_once, "parallel-direct-writes={option}");
            thread::sleep(Duration::from_millis(20));
        }
        drop(stopped);
        for writer in writers {
            writer.recv_timeout(PATIENCE).unwrap().unwrap();
        }
        let written = get(layers.upper.path("slow"));
        assert!(written[..4096] == pattern(3, 4096) && written[4096..8192] == pattern(4, 4096));
    }
}
