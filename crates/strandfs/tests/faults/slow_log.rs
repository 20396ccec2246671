//! `slow.log` says which request was slow, on which branch, for whom, and where its time went.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::need_root;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::put;
use crate::support::mounts::uring_is_on;
use crate::support::{Kind, Pool, awaited, eventually, run, strandfs};

const SOON: Duration = Duration::from_secs(30);
const DELAY: Duration = Duration::from_millis(300);

/// A pool whose first branch can be slow. The fields are dropped in order.
struct Delayed {
    branch: DelayFs,
    pool: Pool,
}

impl Delayed {
    fn new(options: &str) -> Delayed {
        let mut pool = Pool::build()
            .branches([Kind::Dir, Kind::Tmpfs("64m")])
            .option("cache.attr=0,cache.entry=0,cache.negative-entry=0,coherence=timeout")
            .option("branch-slow-after=20s,category.create=ff")
            .option(options)
            .prepare();
        put(pool.outside("behind/far/f"), "far");
        put(pool.outside("behind/far/bad\nname\x1b[31m"), "far");
        put(pool.on(1, "near/f"), "near");
        let branch = DelayFs::as_branch(&pool, 0);
        pool.start();
        fs::metadata(pool.path("far/f")).unwrap();
        fs::metadata(pool.path("near/f")).unwrap();
        Delayed { branch, pool }
    }

    fn slow_lines(&self) -> Vec<String> {
        let log = self.pool.log();
        let lines = log.lines().filter(|line| line.contains("slow request"));
        lines.map(str::to_owned).collect()
    }

    /// The line of an operation, which there must be soon.
    #[track_caller]
    fn line(&self, operation: &str, path: &str) -> String {
        let operation = format!("operation={operation} ");
        let find = || {
            let mut lines = self.slow_lines().into_iter();
            lines.find(|line| line.contains(&operation) && line.contains(path))
        };
        awaited(&format!("{operation} {path}"), SOON, find)
    }
}

fn options_of(transport: &str) -> Option<String> {
    if transport == "uring" && !uring_is_on() {
        return None;
    }
    Some(format!("transport={transport},slow.log=100ms"))
}

#[test]
fn a_request_that_a_branch_delays_is_logged_with_the_branch_and_who_asked() {
    need_root!();
    for transport in ["dev", "uring"] {
        let Some(options) = options_of(transport) else {
            continue;
        };
        let delayed = Delayed::new(&options);
        let mountpoint = delayed.pool.root().to_path_buf();
        assert_eq!(delayed.slow_lines(), [""; 0], "nothing was slow yet");
        delayed.branch.set(Mood::Slow(DELAY));
        // It is there until the line is: its name is asked for after its request.
        let mut reader = Command::new("sh")
            .args(["-c", "read -r text <\"$0\"; read -r end"])
            .arg(mountpoint.join("far/f"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = reader.id();
        let line = delayed.line("open", "path=/far/f");
        delayed.branch.set(Mood::Well);
        drop(reader.stdin.take());
        reader.wait().unwrap();
        let b0 = delayed.pool.on(0, "").display().to_string();
        let branch = format!("branch={}", b0.trim_end_matches('/'));
        let pid = format!("pid={pid} ");
        for part in [&branch, "stage=branch", &pid, "command=sh"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let number = |name: &str| -> u64 {
            let (_, rest) = line.split_once(name).unwrap();
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            rest[..digits].parse().unwrap()
        };
        assert!(
            number("took_ms=") >= 300 && number("took_ms=") < 10_000,
            "{line}"
        );
        assert!(number("branch_ms=") >= 300, "{line}");
        assert!(number("branch_ms=") <= number("took_ms="), "{line}");
        let count = delayed.slow_lines().len();
        for _ in 0..50 {
            fs::read(mountpoint.join("near/f")).unwrap();
            fs::read(mountpoint.join("far/f")).unwrap();
        }
        std::thread::sleep(Duration::from_millis(500));
        let lines = delayed.slow_lines();
        assert!(
            lines.iter().skip(count).all(|line| !line.contains("near")),
            "{lines:#?}"
        );
    }
}

#[test]
fn names_and_commands_cannot_forge_lines_of_the_log() {
    need_root!();
    let delayed = Delayed::new("slow.log=100ms");
    let tool = delayed.pool.outside("evil\nINFO x");
    fs::copy("/bin/cat", &tool).unwrap();
    delayed.branch.set(Mood::Slow(DELAY));
    run(
        tool.to_str().unwrap(),
        [delayed.pool.path("far/bad\nname\x1b[31m")],
    )
    .ok();
    delayed.branch.set(Mood::Well);
    let line = delayed.line("lookup", "path=");
    assert!(line.contains("stage=branch"), "{line}");
    let log = delayed.pool.log();
    assert!(!log.contains('\x1b'), "{log}");
    assert!(
        !log.lines()
            .any(|line| line.starts_with("INFO x") || line.starts_with("name")),
        "{log}"
    );
}

#[test]
fn it_is_off_unless_asked_for_and_can_be_changed_while_mounted() {
    need_root!();
    let delayed = Delayed::new("");
    let read = || {
        delayed.branch.set(Mood::Slow(DELAY));
        fs::read(delayed.pool.path("far/f")).unwrap();
        delayed.branch.set(Mood::Well);
    };
    let set = |option: &str| {
        strandfs(["set", delayed.pool.root().to_str().unwrap(), option]).ok();
    };
    read();
    set("slow.log=10s");
    read();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(delayed.slow_lines(), [""; 0]);
    set("slow.log=100ms");
    read();
    delayed.line("open", "path=/far/f");
    set("slow.log=0");
    // The lines of the read before are written by now.
    std::thread::sleep(Duration::from_millis(500));
    let before = delayed.slow_lines().len();
    read();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(delayed.slow_lines().len(), before);
}

#[test]
fn a_dying_disk_does_not_flood_the_log_and_what_is_left_out_is_counted() {
    need_root!();
    let delayed = Delayed::new("slow.log=5ms");
    let began = Instant::now();
    delayed.branch.set(Mood::Slow(Duration::from_millis(6)));
    for _ in 0..100 {
        fs::metadata(delayed.pool.path("far/f")).unwrap();
    }
    delayed.branch.set(Mood::Well);
    delayed.line("lookup", "path=/far");
    let of_lookup = || {
        let lines = delayed.slow_lines();
        lines
            .iter()
            .filter(|line| line.contains("operation=lookup"))
            .count()
    };
    let windows = began.elapsed().as_secs() / 10 + 2;
    let count = u64::try_from(of_lookup()).unwrap();
    assert!(count <= windows * 10, "{count} in {windows} windows");
    let log = || delayed.pool.log();
    // Ten seconds after the first.
    eventually("the rest is counted", SOON, || log().contains(" more in "));
}
