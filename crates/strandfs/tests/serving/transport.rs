//! The `transport` option: what it chooses, what it says, and that it serves the same pool.

use crate::{need_kernel, need_root};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::files::{get, open_with, pattern, put};
use crate::support::mounts::{URING_SWITCH, own_namespace, uring_is_on};
use crate::support::parts::{Part, at_rest};
use crate::support::system::{ring_threads, stay_on};
use crate::support::{Pool, eventually, run, strandfs};
use rustix::io::Errno;
use rustix::mount::mount_bind;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

#[test]
fn status_says_which_transport_and_why() {
    need_root!();
    for (transport, reason) in [("dev", Some("as asked for")), ("uring", None)] {
        if transport == "uring" && !uring_is_on() {
            return;
        }
        let pool = Pool::tmpfs(1)
            .option(&format!("transport={transport}"))
            .mount();
        let connection = &pool.connection();
        assert_eq!(
            connection.transport.as_deref(),
            Some(transport),
            "{connection:?}"
        );
        assert_eq!(connection.transport_reason.as_deref(), reason);
        assert_eq!(
            connection.ring.is_some(),
            transport == "uring",
            "{connection:?}"
        );
        let text = strandfs(["status", pool.root().to_str().unwrap()])
            .ok()
            .stdout;
        assert!(text.contains(&format!("transport {transport} (")), "{text}");
        put(pool.path("d/f"), pattern(1, 3_000_000));
        assert!(get(pool.path("d/f")) == pattern(1, 3_000_000));
    }
}

/// A process that the server made and that waits for an answer of the mount kept the rings of a
/// killed server in its memory: the kernel did not end what was on its way to them, and both waited
/// for ever.
#[test]
fn what_a_server_makes_of_itself_has_no_part_in_its_rings() {
    need_root!();
    if !uring_is_on() {
        return;
    }
    let pool = Pool::tmpfs(1).option("transport=uring").mount();
    put(pool.path("f"), "x");
    let mappings = String::from_utf8(get(format!("/proc/{}/smaps", pool.pid()))).unwrap();
    let (mut rings, mut is_ring) = (0, false);
    for line in mappings.lines() {
        if line.ends_with("anon_inode:[io_uring]") {
            (rings, is_ring) = (rings + 1, true);
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && std::mem::take(&mut is_ring)
        {
            // proc(5): do not copy area on fork.
            assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
        }
    }
    assert!(rings > 0);
}

/// Everything that answers, or fails, within the time; a hang fails the test.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    wait.recv_timeout(Duration::from_secs(60)).expect("no hang")
}

/// The test itself uses the mount from other processes and threads than the server's.
#[test]
fn a_server_killed_under_load_leaves_nobody_waiting() {
    need_root!();
    if !uring_is_on() {
        return;
    }
    for round in 0..3 {
        let mut pool = Pool::tmpfs(2)
            .option("transport=uring,passthrough.io=off,cache.files=off")
            .mount();
        put(pool.path("kept"), pattern(round, 300_000));
        let stop = Arc::new(AtomicBool::new(false));
        let users: Vec<_> = (0..4)
            .map(|number| {
                let (stop, dir) = (stop.clone(), pool.root().to_path_buf());
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let file = dir.join(format!("f{number}"));
                        // Errors are what the end of the server brings.
                        fs::write(&file, pattern(number, 200_000)).ok();
                        fs::read(&file).ok();
                        fs::read_dir(&dir).map(Iterator::count).ok();
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(150));
        let pid = rustix::process::Pid::from_raw(pool.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let root = pool.root().to_path_buf();
        eventually("the mount to be dead", Duration::from_secs(30), || {
            // What the kernel remembers of the pool, listings too, it goes on telling.
            let root = root.clone();
            in_time(move || rustix::fs::statfs(root)).err() == Some(Errno::NOTCONN)
        });
        stop.store(true, Ordering::Relaxed);
        in_time(move || users.into_iter().for_each(|user| user.join().unwrap()));
        pool.bury();
        pool.start();
        assert_eq!(pool.connection().transport.as_deref(), Some("uring"));
        assert!(get(pool.path("kept")) == pattern(round, 300_000));
    }
}

/// Makes the kernel's switch read as off for this thread and what it starts.
fn switched_off(dir: &Path) {
    own_namespace();
    let stand_in = dir.join("switch");
    fs::write(&stand_in, "N\n").unwrap();
    mount_bind(&stand_in, URING_SWITCH).unwrap();
}

#[test]
fn a_ring_that_is_switched_off_is_not_used_and_said_to_be() {
    need_root!();
    if !Path::new(URING_SWITCH).exists() {
        crate::support::say("skipped: this kernel has no FUSE over io_uring");
        return;
    }
    let mut pool = Pool::tmpfs(1).option("transport=auto").prepare();
    let dir = tempfile::tempdir().unwrap();
    switched_off(dir.path());
    pool.start();
    let connection = &pool.connection();
    assert_eq!(connection.transport.as_deref(), Some("dev"));
    let reason = connection.transport_reason.as_deref().unwrap();
    assert!(
        reason.contains(&format!("echo Y > {URING_SWITCH}")),
        "{reason}"
    );
    pool.stop();

    let branches = pool.branch_args();
    let mountpoint = pool.root().to_str().unwrap();
    let refused = strandfs(["mount", "-o", "transport=uring", &branches[0], mountpoint]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    let said = refused.stderr;
    assert!(said.contains("transport=uring: "), "{said}");
    assert!(said.contains(&format!("echo Y > {URING_SWITCH}")), "{said}");
    assert!(!crate::support::mounts::is_mounted(pool.root()));
    run("umount", [URING_SWITCH]).ok();
}

#[test]
fn a_ring_needs_a_thread_for_each_cpu() {
    need_root!();
    if !uring_is_on() {
        return;
    }
    let pool = Pool::tmpfs(1).option("transport=auto,threads=2").mount();
    let connection = &pool.connection();
    assert_eq!(connection.transport.as_deref(), Some("dev"));
    let reason = connection.transport_reason.as_deref().unwrap();
    assert!(reason.starts_with("2 threads are allowed"), "{reason}");
}

/// The threads of a server's rings that may run on more than one CPU, or on one only.
fn serving(server: u32, on_one: bool) -> BTreeSet<String> {
    serving_on(server, |cpus| cpus.contains([',', '-']) != on_one)
}

/// The threads of a server's rings that may run on CPUs (as /proc lists them) like these.
fn serving_on(server: u32, are_like: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut threads = ring_threads(server);
    threads.retain(|_, cpus| are_like(cpus));
    threads.into_keys().collect()
}

/// Reads blocks of a file, each of them a request, on the CPU the caller is on.
fn read_blocks(file: &File, count: u64) {
    let whole = pattern(1, 1 << 16);
    for number in 0..count {
        let from = number as usize % 16 * 4096;
        let mut block = [0; 4096];
        file.read_exact_at(&mut block, from as u64).unwrap();
        assert!(
            block == whole[from..from + 4096],
            "the bytes of block {number}"
        );
    }
}

/// Ends the readers however the test ends: a pool in use is not unmounted.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The thread of a queue shares its CPU with callers only while they wait for it, and gets help.
#[test]
fn a_backlog_is_served_by_two_threads_on_any_cpu_unless_threads_are_pinned() {
    need_root!();
    let own = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| own.is_set(*cpu)).unwrap();
    if !uring_is_on() || own.count() < 2 {
        return;
    }
    for (options, is_pinned) in [("", false), (",pin-threads=RP1L", true)] {
        let pool = Pool::tmpfs(1)
            .option(&format!(
                "transport=uring,passthrough.io=off,cache.files=off{options}"
            ))
            .mount();
        put(pool.path("f"), pattern(1, 1 << 16));
        let file = Arc::new(File::open(pool.path("f")).unwrap());
        stay_on(cpu);
        read_blocks(&file, 1);
        let patience = Duration::from_secs(30);
        eventually("the thread to be in its place", patience, || {
            !serving(pool.pid(), true).is_empty()
        });
        let settled = serving(pool.pid(), true);
        let threads = || serving_on(pool.pid(), |_| true).len();
        let before = threads();
        let stop = Stop(Arc::default());
        // They stay on the CPU of the thread that starts them.
        let readers: Vec<_> = (0..128)
            .map(|_| {
                let (file, stop) = (file.clone(), stop.0.clone());
                thread::spawn(move || {
                    let mut rounds = 0;
                    while !stop.load(Ordering::Relaxed) || rounds < 10 {
                        read_blocks(&file, 16);
                        rounds += 1;
                    }
                })
            })
            .collect();
        let gone = || &settled & &serving(pool.pid(), false);
        let home = || serving_on(pool.pid(), |cpus| cpus == cpu.to_string());
        if !is_pinned {
            eventually("a thread to leave its CPU", patience, || !gone().is_empty());
            eventually("a second thread", patience, || threads() > before);
            eventually("both to have left", patience, || home().is_empty());
        }
        drop(stop);
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
        if is_pinned {
            assert_eq!(gone(), BTreeSet::new(), "pinned threads stay");
        } else {
            // One request at a time: whoever is asked comes home. The other one may sleep anywhere.
            eventually("a thread to come home", patience, || {
                read_blocks(&file, 256);
                !home().is_empty()
            });
        }
        sched_setaffinity(None, &own).unwrap();
    }
}

/// No buffer of a request in flight is anybody else's, also while a queue gets its second thread.
#[test]
fn each_of_many_direct_requests_at_once_moves_its_own_bytes() {
    need_kernel!(direct_io_on_tmpfs);
    need_root!();
    const CALLERS: u64 = 32;
    let own = sched_getaffinity(None).unwrap();
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| own.is_set(*cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(cpu);
    for transport in ["dev", "uring"] {
        if transport == "uring" && !uring_is_on() {
            return;
        }
        let pool = Pool::tmpfs(1)
            .option(&format!(
                "transport={transport},passthrough.io=off,cache.files=off"
            ))
            .mount();
        put(pool.path("f"), vec![0; CALLERS as usize * Part::BYTES]);
        // All over one queue, then over those of all CPUs.
        let mut parts: Vec<_> = (0..CALLERS).map(Part::new).collect();
        for cpus in [&one, &own] {
            sched_setaffinity(None, cpus).unwrap();
            let file = open_with(pool.path("f"), libc::O_DIRECT).unwrap();
            thread::scope(|scope| {
                for part in &mut parts {
                    // A length that fits beside the headers, and one that is moved within its
                    // buffer.
                    scope.spawn(|| part.use_it(&file, 400, [8, 64]));
                }
            });
        }
        at_rest(&pool.on(0, "f"), &parts);
    }
}
