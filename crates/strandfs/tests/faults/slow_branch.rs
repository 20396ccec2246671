//! A branch that does not answer delays only who needs it, and not for ever.

use crate::need_root;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::{errno, get, names, put};
use crate::support::mounts::uring_is_on;
use crate::support::system::{ring_threads, stay_on};
use crate::support::{Kind, Pool, eventually, say, strandfs};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity};

const SOON: Duration = Duration::from_secs(30);
/// `branch-slow-after` in these tests.
const SLOW: Duration = Duration::from_millis(500);
/// What answers without the branch may take: it is asked until it counts as slow, several times
/// in a row, on a busy machine.
const PROMPT: Duration = Duration::from_secs(3);

/// A pool whose first branch may hang. The fields are dropped in order.
struct Hanging {
    branch: DelayFs,
    /// Directories that the branch would have to be asked for again.
    _known: [File; 2],
    pool: Pool,
}

impl Hanging {
    fn new(options: &str) -> Hanging {
        let mut pool = Pool::build()
            .branch(Kind::Dir, "")
            .branch(Kind::Tmpfs("64m"), "")
            .option("branch-slow-after=500ms,branch-check-interval=1s,category.create=epff")
            .option(options)
            .prepare();
        put(pool.outside("behind/there/f"), "there");
        put(pool.outside("behind/both/f"), "first");
        let branch = DelayFs::as_branch(&pool, 0);
        put(pool.on(1, "here/f"), "here");
        put(pool.on(1, "both/f"), "second");
        put(pool.on(1, "both/g"), "g");
        pool.start();
        Hanging {
            branch,
            _known: pool.known(["here", "both"]),
            pool,
        }
    }

    fn health(&self) -> String {
        self.pool.branch_status(0).health
    }

    fn expect(&self, health: &str) {
        eventually(health, SOON, || self.health() == health);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.pool.path(name)
    }

    /// A program that reads a file, for which it has to wait.
    fn reader(&self, name: &str) -> Child {
        Command::new("cat")
            .arg(self.path(name))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// The 99th percentile of operations on the other branch.
    fn p99(&self, rounds: usize) -> Duration {
        let mut times: Vec<Duration> = (0..rounds)
            .map(|round| {
                let new = self.path(&format!("here/new{round}"));
                let start = Instant::now();
                assert_eq!(get(self.path("here/f")), b"here");
                fs::write(&new, "x").unwrap();
                fs::metadata(&new).unwrap();
                fs::remove_file(&new).unwrap();
                start.elapsed()
            })
            .collect();
        times.sort();
        times[rounds * 99 / 100]
    }
}

#[track_caller]
fn promptly<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let outcome = call();
    let time = start.elapsed();
    assert!(time < PROMPT, "{what} took {time:?}");
    outcome
}

#[test]
fn a_stuck_branch_delays_only_those_who_need_it() {
    need_root!();
    let rounds = 300;
    let hanging = Hanging::new("branch-deadline=0,on-missing=degrade");
    let before = hanging.p99(rounds);
    assert_eq!(get(hanging.path("there/f")), b"there");
    hanging.branch.set(Mood::Stuck);
    // Longer than the kernel keeps attributes.
    std::thread::sleep(Duration::from_millis(1200));
    let mut reader = hanging.reader("there/f");
    let mountpoint = hanging.pool.root().to_path_buf();
    promptly("statfs", || rustix::fs::statvfs(&mountpoint).unwrap());
    promptly("stat of the root", || fs::metadata(&mountpoint).unwrap());
    promptly("status", || hanging.pool.status());
    promptly("ls", || names(&mountpoint));
    hanging.expect("slow");
    let with_stuck = hanging.p99(rounds);
    say(&format!(
        "p99 on the other branch: {before:?}, with one stuck {with_stuck:?}"
    ));
    let limit = (before * 2).max(Duration::from_millis(30));
    assert!(with_stuck < limit, "{with_stuck:?} instead of {before:?}");
    let free = promptly("statfs", || rustix::fs::statvfs(&mountpoint).unwrap());
    assert!(free.f_blocks > 1 << 19, "the stuck branch still counts");
    assert_eq!(promptly("ls", || names(&mountpoint)), ["both", "here"]);
    // New files go elsewhere, though their directory is on both.
    assert!(reader.try_wait().unwrap().is_none());
    assert!(hanging.branch.waiting() > 0);
    hanging.branch.set(Mood::Well);
    let output = reader.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"there");
    hanging.expect("ok");
    assert_eq!(names(&mountpoint), ["both", "here", "there"]);
    assert_eq!(get(hanging.path("both/f")), b"first");
}

/// What was last seen of a slow branch's copy counts, and of one just made that is what it was made to.
#[test]
fn a_directory_just_made_on_a_branch_that_turns_slow_lets_in_whom_it_did() {
    need_root!();
    const SOMEBODY: u32 = 6102;
    let mut hanging = Hanging::new("branch-deadline=0,on-missing=degrade,category.create=ff");
    let pool = &mut hanging.pool;
    fs::create_dir(pool.on(1, "closed")).unwrap();
    chown(pool.on(1, "closed"), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    fs::set_permissions(pool.on(1, "closed"), PermissionsExt::from_mode(0o750)).unwrap();
    let shown = |pool: &Pool| {
        let stat = fs::metadata(pool.path("closed")).unwrap();
        (stat.mode() & 0o7777, stat.uid(), stat.gid())
    };
    eventually("the directory", SOON, || pool.path("closed").exists());
    // Nothing is asked of the copy after it was made.
    put(pool.path("closed/f"), "on the first");
    assert!(pool.on(0, "closed/f").exists());
    hanging.branch.set(Mood::Stuck);
    std::thread::sleep(Duration::from_millis(1200));
    let mut reader = hanging.reader("there/f");
    hanging.expect("slow");
    let expected = (0o750, SOMEBODY, SOMEBODY);
    assert_eq!(promptly("stat", || shown(&hanging.pool)), expected);
    hanging.branch.set(Mood::Well);
    reader.wait().unwrap();
    hanging.expect("ok");
    assert_eq!(shown(&hanging.pool), expected);
}

#[test]
fn who_needs_a_stuck_branch_fails_at_the_deadline() {
    need_root!();
    let hanging = Hanging::new("branch-deadline=2s,on-missing=fail");
    let open = File::open(hanging.path("there/f")).unwrap();
    hanging.branch.set(Mood::Stuck);
    let start = Instant::now();
    let waiting: Vec<Child> = ["there/f", "both/f", "both/none"]
        .map(|name| hanging.reader(name))
        .into();
    hanging.expect("slow");
    hanging.expect("failed");
    assert!(start.elapsed() >= Duration::from_secs(2));
    for reader in waiting {
        let output = reader.wait_with_output().unwrap();
        // One that came late finds the branch gone and another copy.
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.is_empty() || text == "second", "{text}");
    }
    assert!(start.elapsed() < SOON);
    let path = |name| hanging.path(name);
    assert_eq!(errno(fs::metadata(path("there/f"))), Errno::IO);
    assert_eq!(errno(fs::metadata(path("both/none"))), Errno::IO);
    assert_eq!(get(path("both/g")), b"g");
    assert_eq!(get(path("here/f")), b"here");
    drop(open);
    // It comes back by itself.
    hanging.branch.set(Mood::Well);
    hanging.expect("ok");
    assert_eq!(get(path("there/f")), b"there");
    assert_eq!(get(path("both/f")), b"first");
    assert_eq!(errno(fs::metadata(path("both/none"))), Errno::NOENT);
    assert!(
        hanging.pool.log().contains("answered with EIO"),
        "{}",
        hanging.pool.log()
    );
}

#[test]
fn what_a_slow_branch_may_have_is_not_taken_for_absent() {
    need_root!();
    // Nothing in these directories was looked at before.
    let hanging = Hanging::new("branch-deadline=0,on-missing=fail");
    hanging.branch.set(Mood::Stuck);
    let one = hanging.reader("there/f");
    hanging.expect("slow");
    let two = hanging.reader("both/f");
    let three = hanging.reader("both/g");
    std::thread::sleep(SLOW * 2);
    hanging.branch.set(Mood::Well);
    let read = |child: Child| child.wait_with_output().unwrap().stdout;
    assert_eq!(read(one), b"there");
    assert_eq!(read(two), b"first");
    assert_eq!(read(three), b"g");
    hanging.expect("ok");
}

#[test]
fn a_file_that_one_branch_cannot_open_is_read_from_the_next() {
    need_root!();
    for passthrough in ["auto", "off"] {
        let hanging = Hanging::new(&format!("passthrough.io={passthrough}"));
        assert_eq!(get(hanging.path("both/f")), b"first");
        hanging.branch.set(Mood::Failing(Errno::IO));
        assert_eq!(get(hanging.path("both/f")), b"second");
        // The first copy would hide what is written to the second.
        let write = fs::OpenOptions::new()
            .write(true)
            .open(hanging.path("both/f"));
        assert_eq!(errno(write), Errno::IO);
        assert_eq!(errno(fs::read(hanging.path("there/f"))), Errno::IO);
        let status = hanging.pool.status();
        let condition = &status.branches[0].condition;
        assert!(condition.io_errors >= 3, "{condition:?}");
        assert_eq!(condition.state, "ok", "errors alone fence nothing");
        let root = hanging.pool.root().to_str().unwrap();
        let told = strandfs(["metrics", root]).ok().stdout;
        let of_first = |line: &&str| line.starts_with("strandfs_branch_io_errors_total{");
        let line = told.lines().find(of_first).unwrap();
        let count: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        assert!(count >= 3.0, "{line}");
        hanging.branch.set(Mood::Well);
        assert_eq!(get(hanging.path("both/f")), b"first");
        assert_eq!(get(hanging.pool.on(1, "both/f")), b"second");
        let text = strandfs(["status", hanging.pool.root().to_str().unwrap()])
            .ok()
            .stdout;
        assert!(text.contains("failed calls"), "{text}");
    }
}

/// What such a branch holds is neither shown as absent, nor hidden later by what was made in its
/// place.
#[test]
fn a_directory_is_not_shown_without_a_branch_that_failed_to_say_whether_it_has_it() {
    need_root!();
    for failure in [Errno::IO, Errno::ACCESS] {
        let hanging = Hanging::new("coherence=auto");
        let path = |name: &str| hanging.path(name);
        for (branch, name) in [(0, "both/deep/a"), (1, "both/deep/b"), (1, "both/deep/f")] {
            put(hanging.pool.on(branch, name), name);
        }
        put(hanging.pool.on(0, "both/deep/f"), "shown");
        // Nothing of these directories is known yet.
        hanging.branch.set(Mood::Unsearchable(failure));
        assert_eq!(get(path("both/deep/b")), b"both/deep/b");
        assert_eq!(get(path("both/g")), b"g");
        for lost in ["there", "both/only", "both/deep/a"] {
            assert_eq!(errno(fs::metadata(path(lost))), failure, "{lost}");
        }
        for listed in ["both", "both/deep"] {
            let listing =
                fs::read_dir(path(listed)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            assert_eq!(errno(listing), failure, "{listed}");
        }
        for made in ["both/new", "both/deep/new", "both/deep/a"] {
            assert_eq!(errno(File::create_new(path(made))), failure, "{made}");
            assert_eq!(errno(fs::create_dir(path(made))), failure, "{made}");
        }
        for removed in ["both/g", "both/deep/b", "both/deep/f"] {
            assert_eq!(errno(fs::remove_file(path(removed))), failure, "{removed}");
        }
        assert_eq!(errno(fs::rename(path("both/g"), path("both/h"))), failure);
        // The copy that is read would be hidden by the other, and what was written to it.
        assert_eq!(get(path("both/deep/f")), b"both/deep/f");
        if failure == Errno::IO {
            let write = File::options().write(true).open(path("both/deep/f"));
            assert_eq!(errno(write), failure);
            assert_eq!(errno(File::create(path("both/deep/f"))), failure);
            let shut = fs::Permissions::from_mode(0o600);
            assert_eq!(
                errno(fs::set_permissions(path("both/deep/f"), shut)),
                failure
            );
        }
        hanging.branch.set(Mood::Well);
        assert_eq!(names(path("both")), ["deep", "f", "g"]);
        assert_eq!(names(path("both/deep")), ["a", "b", "f"]);
        assert_eq!(get(path("both/deep/f")), b"shown");
        put(path("both/deep/f"), "changed");
        assert_eq!(get(hanging.pool.on(0, "both/deep/f")), b"changed");
        put(path("both/deep/new"), "");
    }
}

#[test]
fn a_branch_that_takes_half_of_the_threads_is_given_up() {
    need_root!();
    half_of_the_threads("transport=auto");
}

/// Every thread waited for the branch, its reader as well, and nobody was left to read what came
/// after those requests had been answered.
#[test]
fn a_branch_that_takes_all_threads_of_the_device_leaves_none_without_an_answer() {
    need_root!();
    half_of_the_threads("transport=dev");
}

fn half_of_the_threads(transport: &str) {
    let options = format!("branch-deadline=0,threads=8,on-missing=fail,{transport}");
    let hanging = Hanging::new(&options);
    // Known to the kernel: otherwise it asks for the directory once, and all the readers wait
    // for that one answer, which takes one thread.
    let _there = hanging.pool.known(["there"]);
    hanging.branch.set(Mood::Stuck);
    let readers: Vec<Child> = (0..12)
        .map(|number| hanging.reader(&format!("there/none{number}")))
        .collect();
    hanging.expect("failed");
    for reader in readers {
        assert!(reader.wait_with_output().unwrap().stdout.is_empty());
    }
    assert_eq!(get(hanging.path("here/f")), b"here");
    hanging.branch.set(Mood::Well);
    hanging.expect("ok");
    assert_eq!(get(hanging.path("there/f")), b"there");
}

#[test]
fn reading_an_open_file_fails_at_the_deadline() {
    need_root!();
    let hanging = Hanging::new("branch-deadline=1s,on-missing=fail,passthrough.io=off");
    let open = File::open(hanging.path("there/f")).unwrap();
    hanging.branch.set(Mood::Stuck);
    let read = std::os::unix::fs::FileExt::read_at(&open, &mut [0; 10], 0);
    assert_eq!(errno(read), Errno::IO);
    hanging.branch.set(Mood::Well);
    hanging.expect("ok");
    let mut content = [0; 5];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut content, 0).unwrap();
    assert_eq!(&content, b"there");
}

/// The buffer of a thread that was answered for goes with the answer; the one it gets instead was
/// missing in what `status` shows.
#[test]
fn every_thread_of_a_ring_has_a_buffer_that_is_counted() {
    need_root!();
    if !uring_is_on() {
        return;
    }
    let hanging = Hanging::new(
        "branch-deadline=1s,on-missing=fail,passthrough.io=off,cache.files=off,transport=uring",
    );
    let own = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| own.is_set(*cpu))
        .collect();
    // The first buffer of a queue is there before its thread: every one of these gets that.
    for cpu in &cpus {
        stay_on(*cpu);
        assert!(!hanging.path(&format!("here/none{cpu}")).exists());
    }
    let threads = || ring_threads(hanging.pool.pid()).len();
    // Bytes in all, and how many buffers that should be.
    let buffers = || {
        let ring = hanging.pool.connection().ring.unwrap();
        let queues = ring.queues as usize;
        let without_thread = queues - cpus.len();
        let bytes = ring.buffer_bytes as usize;
        (bytes, without_thread + threads())
    };
    let started = threads();
    let (bytes, count) = buffers();
    let open = File::open(hanging.path("there/f")).unwrap();
    hanging.branch.set(Mood::Stuck);
    let read = std::os::unix::fs::FileExt::read_at(&open, &mut [0; 10], 0);
    assert_eq!(errno(read), Errno::IO);
    hanging.branch.set(Mood::Well);
    hanging.expect("ok");
    assert!(threads() > started);
    eventually("a buffer for each", SOON, || {
        let (bytes_now, count_now) = buffers();
        bytes_now * count == bytes * count_now
    });
}
