//! Commands about a pool whose server or branch does not answer: they say so in time.

use crate::need_root;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::command::Run;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::put;
use crate::support::threads::Stopped;
use crate::support::{Kind, Pool, eventually, mounts, strandfs};
use rustix::mount::{UnmountFlags, unmount};

/// Far more than any of the commands should take, on any machine; without a limit they take for ever.
const IN_TIME: Duration = Duration::from_secs(25);

/// Runs a command, which ends in time.
fn in_time(words: &[&str]) -> Run {
    let begun = Instant::now();
    let ran = strandfs(words);
    assert!(begun.elapsed() < IN_TIME, "{:?}: {ran:?}", begun.elapsed());
    ran
}

/// What every command says of the pool, all of them at once: whoever looks at a server has its device open for a
/// moment, and was taken by the others for a server that goes on. None of them changes anything.
fn all_say(pool: &Pool, said: &str) {
    let (root, other) = (pool.root().to_str().unwrap(), pool.outside("other"));
    fs::create_dir_all(&other).unwrap();
    let file = pool.path("f");
    let commands: [&[&str]; 13] = [
        &["status", root],
        &["status", root, "--json"],
        &["doctor", root],
        &["explain", file.to_str().unwrap()],
        &["umount", root],
        &["umount", "--lazy", root],
        &["get", root, "cache.attr"],
        &["set", root, "cache.attr=2"],
        &["branch", "list", root],
        &["reload", root],
        &["notify-test", root],
        &["metrics", root],
        &[
            "mount",
            "-o",
            "minfreespace=0",
            other.to_str().unwrap(),
            root,
        ],
    ];
    std::thread::scope(|scope| {
        for words in commands {
            scope.spawn(move || {
                let ran = in_time(words);
                assert!(matches!(ran.code(), 1..=3), "{words:?}: {ran:?}");
                let text = format!("{}{}", ran.stdout, ran.stderr);
                assert!(text.contains(said), "{words:?}: {text}");
            });
        }
    });
}

fn a_stopped_server(transport: &str, further: &str) {
    let pool = Pool::tmpfs(1)
        .option(&format!("transport={transport}{further}"))
        .mount();
    put(pool.path("f"), "x");
    pool.status();
    let stopped = Stopped::new(pool.pid());
    all_say(&pool, "is stopped");
    // Nobody is left behind by that: the pool serves on, and is unmounted.
    drop(stopped);
    assert_eq!(fs::read(pool.path("f")).unwrap(), b"x");
    strandfs(["umount", pool.root().to_str().unwrap()]).ok();
    assert!(!mounts::is_mounted(pool.root()));
}

#[test]
fn commands_say_that_a_server_is_stopped() {
    need_root!();
    a_stopped_server("dev", "");
    a_stopped_server("dev", ",subtype=mergerfs");
}

#[test]
fn commands_say_that_a_server_is_stopped_over_io_uring() {
    need_root!();
    if mounts::uring_is_on() {
        a_stopped_server("uring", "");
    }
}

/// A pool that was unmounted while its server is stopped, and one that was mounted after it, if the
/// kernel has given that the same number.
fn one_after_the_other() -> Option<(Pool, Pool, Stopped)> {
    let number = |pool: &Pool| fs::metadata(pool.root()).unwrap().dev();
    let first = Pool::tmpfs(1).option("cache.attr=7s").mount();
    // Its branch has a number, too.
    let mut next = Pool::tmpfs(1).option("cache.attr=9s").prepare();
    let wanted = number(&first);
    let stopped = Stopped::new(first.pid());
    unmount(first.root(), UnmountFlags::DETACH).unwrap();
    next.start();
    (number(&next) == wanted).then_some((first, next, stopped))
}

/// The kernel gives the number of a mount that is gone to the next one, while the server of the first
/// may be there still: its answers were taken for those of the second.
#[test]
fn a_server_that_outlives_its_mount_does_not_answer_for_the_next_one() {
    need_root!();
    // Another test may be given the number, or see the first mount still in a namespace of its own.
    let (_first, next, stopped) = (0..20)
        .find_map(|_| one_after_the_other())
        .expect("a number that is given again");
    let mut stopped = Some(stopped);
    for _ in ["while it stands still", "once it goes on"] {
        let ran = in_time(&["status", next.root().to_str().unwrap(), "--json"]);
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert!(ran.stdout.contains("\"9s\""), "{ran:?}");
        drop(stopped.take());
    }
}

/// Of two that are stopped the first was named, whose mount is gone.
#[test]
fn the_server_that_is_said_to_be_stopped_is_that_of_the_mount() {
    need_root!();
    let (_first, next, stopped) = (0..20)
        .find_map(|_| one_after_the_other())
        .expect("a number that is given again");
    let both = [stopped, Stopped::new(next.pid())];
    let ran = in_time(&["status", next.root().to_str().unwrap()]);
    drop(both);
    let said = format!("kill -CONT {}", next.pid());
    let text = format!("{}{}", ran.stdout, ran.stderr);
    assert!(text.contains(&said), "{said}: {ran:?}");
}

/// A server is the mount's whose connection it has, and not the one that was started last: that may have
/// served the last mount with the number.
#[test]
fn a_server_that_was_started_last_and_has_no_mount_any_more_answers_for_none() {
    need_root!();
    let (_first, next, _server, stopped) = (0..20)
        .find_map(|_| one_waits_for_the_other())
        .expect("a number that is given again");
    let ran = in_time(&["status", next.root().to_str().unwrap(), "--json"]);
    drop(stopped);
    strandfs(["umount", next.root().to_str().unwrap()]).ok();
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert!(ran.stdout.contains("\"9s\""), "{ran:?}");
}

/// As [`one_after_the_other`], but the server of the second was started first and waits for a branch.
fn one_waits_for_the_other() -> Option<(Pool, Pool, Ended, Stopped)> {
    let number = |pool: &Pool| fs::metadata(pool.root()).unwrap().dev();
    let next = Pool::build()
        .branch(Kind::Dir, "")
        .option("cache.attr=9s,branch-marker=there,on-missing=wait")
        .prepare();
    let said = next.outside("said");
    let mut command = next.mount_command(&["-f"]);
    command.stderr(fs::File::create(&said).unwrap());
    let server = Ended(command.spawn().unwrap());
    eventually("it to wait", IN_TIME, || {
        fs::read_to_string(&said).is_ok_and(|said| said.contains("waiting for branch"))
    });
    let first = Pool::tmpfs(1).option("cache.attr=7s").mount();
    let wanted = number(&first);
    let stopped = Stopped::new(first.pid());
    unmount(first.root(), UnmountFlags::DETACH).unwrap();
    put(next.on(0, "there"), "");
    eventually("the mount", IN_TIME, || mounts::is_mounted(next.root()));
    (number(&next) == wanted).then_some((first, next, server, stopped))
}

/// A server that is killed when the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// That of another pool that calls itself mergerfs is none of their business.
#[test]
fn a_stopped_server_holds_up_no_command_about_another_pool() {
    need_root!();
    let other = Pool::tmpfs(1).option("subtype=mergerfs").mount();
    let pool = Pool::tmpfs(1).mount();
    let _stopped = Stopped::new(other.pid());
    let root = pool.root().to_str().unwrap();
    for words in [
        &["status", root][..],
        &["get", root, "cache.attr"],
        &["explain", root],
        &["umount", root],
    ] {
        let ran = in_time(words);
        assert_eq!(ran.code(), 0, "{words:?}: {ran:?}");
    }
}

/// A pool with a branch that does not answer, for which somebody waits.
fn with_a_stuck_branch(options: &str, check: impl FnOnce(&Pool, &str)) {
    let options = format!("branch-slow-after=500ms,category.create=ff,{options}");
    let (mut pool, slow) = DelayFs::beside_memory(&options);
    put(pool.outside("behind/there"), "x");
    put(pool.on(0, "here"), "x");
    pool.start();
    slow.set(Mood::Stuck);
    let mut reader = Command::new("cat")
        .arg(pool.path("there"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the branch to be asked", IN_TIME, || slow.waiting() > 0);
    let branch = pool
        .on(1, "")
        .to_str()
        .unwrap()
        .trim_end_matches('/')
        .to_owned();
    check(&pool, &branch);
    slow.set(Mood::Well);
    reader.wait().unwrap();
}

#[test]
fn commands_say_that_a_branch_does_not_answer() {
    need_root!();
    with_a_stuck_branch("branch-deadline=0", |pool, branch| {
        let root = pool.root().to_str().unwrap();
        eventually("the branch to count as slow", IN_TIME, || {
            let status = in_time(&["status", root, "--json"]);
            status.code() == 3 && status.stdout.contains("\"slow\"")
        });
        let doctor = in_time(&["doctor", root]);
        assert_eq!(doctor.code(), 1, "{doctor:?}");
        let slow = format!("{branch}: slow: a call has been waiting");
        assert!(doctor.stdout.contains(&slow), "{doctor:?}");
        // What the pool knows of it already is not found out and said a second time.
        let fails = |line: &&str| line.starts_with("FAIL") && line.contains(branch);
        let failures = doctor.stdout.lines().filter(fails);
        assert_eq!(failures.count(), 1, "{doctor:?}");
        strandfs(["get", root, "cache.attr"]).ok();
    });
}

#[test]
fn doctor_says_that_a_directory_does_not_answer() {
    need_root!();
    with_a_stuck_branch("branch-deadline=0", |_, branch| {
        let doctor = in_time(&["doctor", branch]);
        assert_eq!(doctor.code(), 1, "{doctor:?}");
        let silent = format!("{branch} does not answer within");
        assert!(doctor.stdout.contains(&silent), "{doctor:?}");
    });
}

#[test]
fn explain_says_what_it_waits_for() {
    need_root!();
    with_a_stuck_branch("branch-deadline=0", |pool, branch| {
        let file = pool.path("here");
        let begun = Instant::now();
        let mut explain = Command::new(crate::support::command::binary())
            .arg("explain")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut words = std::io::BufReader::new(explain.stderr.take().unwrap());
        std::io::BufRead::read_line(&mut words, &mut said).unwrap();
        assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
        assert!(said.contains(&format!("branch {branch} is slow")), "{said}");
        // It would be patient for longer.
        explain.kill().unwrap();
        explain.wait().unwrap();
    });
}

#[test]
fn a_pool_with_a_stuck_branch_can_be_unmounted() {
    need_root!();
    with_a_stuck_branch("branch-deadline=2s", |pool, _| {
        let root = pool.root().to_str().unwrap();
        // Once nobody uses it any more.
        eventually("the reader to be let go", IN_TIME, || {
            // 3: its server waits for the branch still.
            matches!(in_time(&["umount", root]).code(), 0 | 3)
        });
        assert!(!mounts::is_mounted(pool.root()));
    });
}
