//! The command: exit codes, messages, and processes that come and go when they should.

use crate::need_root;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::files::{get, put};
use crate::support::{Pool, Run, mounts, run, strandfs};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// A pool that is not mounted, for its directories.
fn dirs(branches: usize) -> Pool {
    Pool::tmpfs(branches).prepare()
}

/// The arguments of a mount that is expected to be refused.
fn refused<const N: usize>(args: [&str; N], mountpoint: &Path) -> Run {
    refused_with(2, args, mountpoint)
}

fn refused_with<const N: usize>(code: i32, args: [&str; N], mountpoint: &Path) -> Run {
    let run = strandfs([&["mount"][..], &args].concat());
    assert_eq!(run.code(), code, "{run:?}");
    assert_eq!(run.stdout, "", "{run:?}");
    assert_eq!(
        run.stderr.trim_end().lines().count(),
        1,
        "one sentence: {run:?}"
    );
    assert!(run.stderr.len() > 20, "a sentence: {run:?}");
    assert!(!mounts::is_mounted(mountpoint), "{run:?}");
    run
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Every process running the binary with this mountpoint among its arguments.
fn servers(mountpoint: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        // The name first: reading the arguments of an unrelated process may block.
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if !name.starts_with("strandfs") {
            continue;
        }
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let args: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if args.contains(&text(mountpoint).as_bytes()) && args.contains(&&b"mount"[..]) {
            found.push(pid);
        }
    }
    found
}

fn gone_within(limit: Duration, mountpoint: &Path) {
    crate::support::eventually("every server process gone", limit, || {
        servers(mountpoint).is_empty()
    });
}

/// Ends what a failed test of daemons leaves.
struct Daemon<'a>(&'a Pool);

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        mounts::detach(self.0.root());
        let deadline = Instant::now() + Duration::from_secs(2);
        while !servers(self.0.root()).is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        for pid in servers(self.0.root()) {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).ok();
        }
    }
}

fn daemon(pool: &Pool) -> Daemon<'_> {
    let guard = Daemon(pool);
    strandfs(pool.mount_args(&[])).ok();
    // The promise: when the command returns, the pool serves.
    assert!(mounts::is_mounted(pool.root()));
    put(pool.path("f"), "served");
    guard
}

#[test]
fn help_and_version_are_printed() {
    let version = strandfs(["--version"]).ok();
    assert!(version.stdout.starts_with("strandfs "), "{version:?}");
    let help = strandfs(["--help"]).ok();
    for word in ["mount", "umount", "status"] {
        assert!(help.stdout.contains(word), "{word} in {}", help.stdout);
    }
    assert!(strandfs(["mount", "--help"]).ok().stdout.contains("-o"));
    for words in [&[][..], &["mount"], &["branch", "add"]] {
        let (by_command, by_option) = ([&["help"], words].concat(), [words, &["--help"]].concat());
        assert_eq!(
            strandfs(by_command).ok().stdout,
            strandfs(by_option).ok().stdout
        );
    }
    for args in [
        &[][..],
        &["nonsense"],
        &["help", "nonsense"],
        &["mount"],
        &["mount", "-x"],
        &["umount"],
        &["status", "--nonsense"],
    ] {
        let run = strandfs(args);
        assert_eq!((run.code(), run.stdout.as_str()), (2, ""), "{run:?}");
    }
}

#[test]
fn a_missing_branch_is_refused() {
    let pool = dirs(1);
    let missing = pool.outside("missing");
    let run = refused_with(1, [text(&missing), text(pool.root())], pool.root());
    assert!(run.stderr.contains(text(&missing)), "{run:?}");
    // One good branch does not make up for a missing one.
    refused_with(
        1,
        [text(&pool.on(0, "")), text(&missing), text(pool.root())],
        pool.root(),
    );
    let file = pool.outside("file");
    put(&file, "");
    refused([text(&file), text(pool.root())], pool.root());
}

#[test]
fn a_pool_must_not_contain_itself() {
    let pool = dirs(1);
    let root = pool.root();
    let inside = pool.path("inside");
    fs::create_dir(&inside).unwrap();
    refused([text(root), text(root)], root);
    refused([text(&inside), text(root)], root);
    let below = pool.on(0, "mnt");
    fs::create_dir(&below).unwrap();
    refused([text(&pool.on(0, "")), text(&below)], &below);
    // Neither does a symlink hide it.
    let link = pool.outside("link");
    symlink(root, &link).unwrap();
    refused([text(&link), text(root)], root);
    refused([text(&root.join("../b0/../pool")), text(root)], root);
}

#[test]
fn the_same_directory_twice_is_refused() {
    let pool = dirs(2);
    let (first, root) = (pool.on(0, ""), pool.root());
    refused([text(&first), text(&first), text(root)], root);
    refused(
        [text(&first), text(&first.join("../b0/")), text(root)],
        root,
    );
    let joined = format!(
        "{0}:{1}:{0}",
        pool.on(0, "").display(),
        pool.on(1, "").display()
    );
    refused([&joined, text(root)], root);
    let link = pool.outside("link");
    symlink(&first, &link).unwrap();
    refused([text(&first), text(&link), text(root)], root);
}

#[test]
fn what_is_seldom_meant_is_said() {
    let pool = dirs(1);
    put(pool.root().join("hidden"), "x");
    fs::create_dir(pool.on(0, "inner")).unwrap();
    let (branch, inner) = (pool.on(0, ""), pool.on(0, "inner"));
    let branches = [text(&branch), text(&inner)];
    let misspelt = format!("{}=RX", text(&branch).trim_end_matches('/'));
    let refusal = refused([&misspelt, text(pool.root())], pool.root());
    assert!(refusal.stderr.contains("PATH=NC"), "{refusal:?}");
    let _guard = Daemon(&pool);
    let options = ["mount", "-o", "minfreespace=0"];
    let args = options.iter().chain(&branches).copied();
    let mounted = strandfs(args.chain([text(pool.root())])).ok();
    for words in ["is not empty", "lies inside branch"] {
        let said = mounted.stderr.matches(words).count();
        assert_eq!(said, 1, "{words} in {mounted:?}");
    }
}

#[test]
fn the_mountpoint_must_be_a_directory() {
    let pool = dirs(1);
    let file = pool.outside("file");
    put(&file, "");
    refused([text(&pool.on(0, "")), text(&file)], &file);
    let missing = pool.outside("missing");
    refused([text(&pool.on(0, "")), text(&missing)], &missing);
    assert!(!missing.exists());
}

#[test]
fn options_that_make_no_sense_are_refused_with_help() {
    let pool = dirs(1);
    let branch = pool.on(0, "");
    let refuse = |options: &str| {
        refused(
            ["-o", options, text(&branch), text(pool.root())],
            pool.root(),
        )
    };
    let typo = refuse("categroy.create=mfs");
    assert!(
        typo.stderr.contains("category.create"),
        "a suggestion: {typo:?}"
    );
    refuse("nonsense_opt=1");
    refuse("nonsense=1");
    let unit = refuse("cache.attr=1x");
    assert!(unit.stderr.contains("500ms, 30s, 5m"), "{unit:?}");
    let empty = refuse("minfreespace=");
    assert!(empty.stderr.contains("4G/5%"), "{empty:?}");
    let value = refuse("category.create=most-free");
    assert!(value.stderr.contains("category.create"), "{value:?}");
    refuse("cache.files=sometimes");
    refuse("minfreespace=lots");
    refuse("minfreespace=10Kfoo");
    refuse("cache.attr=-1");
    refuse("category.create");
    let mode = format!("{}=RX", branch.display());
    refused([&mode, text(pool.root())], pool.root());
    let size = format!("{}=RW,lots", branch.display());
    refused([&size, text(pool.root())], pool.root());
}

#[test]
fn mergerfs_spellings_are_understood() {
    let mut pool = Pool::tmpfs(2)
        .option("security_capability=true,posix_acl=true,category.create=mfs")
        .prepare();
    pool.start();
    put(pool.path("f"), "x");
    pool.stop();
    // Branches joined by colons, sizes with units.
    let joined = format!(
        "{}=RW,1M:{}=NC",
        pool.on(0, "").display(),
        pool.on(1, "").display()
    );
    let guard = Daemon(&pool);
    strandfs(["mount", "-o", "minfreespace=1M", &joined, text(pool.root())]).ok();
    put(pool.path("g"), "x");
    assert_eq!(pool.holders("g"), [0]);
    drop(guard);
}

#[test]
fn a_daemon_returns_when_it_serves_and_ends_with_its_mount() {
    let pool = dirs(2);
    let guard = daemon(&pool);
    assert_eq!(servers(pool.root()).len(), 1, "one process serves");
    strandfs(["umount", text(pool.root())]).ok();
    gone_within(Duration::from_secs(1), pool.root());
    assert!(!mounts::any_below(pool.root()));
    drop(guard);
    // Again and again, without anything piling up.
    for _ in 0..5 {
        let guard = daemon(&pool);
        assert_eq!(get(pool.path("f")), b"served");
        mounts::unmount_cleanly(pool.root()).ok();
        gone_within(Duration::from_secs(1), pool.root());
        drop(guard);
    }
}

#[test]
fn a_daemon_ends_after_a_lazy_unmount_once_unused() {
    need_root!();
    let pool = dirs(1);
    let guard = daemon(&pool);
    run("umount", ["-l", text(pool.root())]).ok();
    gone_within(Duration::from_secs(1), pool.root());
    drop(guard);

    let guard = daemon(&pool);
    let open = fs::File::open(pool.path("f")).unwrap();
    run("umount", ["-l", text(pool.root())]).ok();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(servers(pool.root()).len(), 1, "still in use");
    assert_eq!(crate::support::files::read_all(&open).unwrap(), b"served");
    drop(open);
    gone_within(Duration::from_secs(1), pool.root());
    drop(guard);
}

#[test]
fn signals_unmount_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let pool = dirs(1);
        let guard = daemon(&pool);
        let pid = Pid::from_raw(servers(pool.root())[0]).unwrap();
        kill_process(pid, signal).unwrap();
        gone_within(Duration::from_secs(1), pool.root());
        assert!(!mounts::any_below(pool.root()), "{signal:?} left the mount");
        assert!(fs::read_dir(pool.root()).unwrap().next().is_none());
        drop(guard);

        let mut pool = Pool::tmpfs(1).mount();
        put(pool.path("f"), "x");
        kill_process(Pid::from_raw(pool.pid().cast_signed()).unwrap(), signal).unwrap();
        let status = pool
            .wait_for_exit(Duration::from_secs(1))
            .expect("gone in time");
        assert!(status.success(), "{signal:?} in the foreground: {status:?}");
        assert!(!mounts::is_mounted(pool.root()));
    }
}

#[test]
fn a_failing_daemon_says_so_to_its_parent() {
    let pool = dirs(1);
    let guard = daemon(&pool);
    let pid = servers(pool.root())[0];
    // A second pool on the same mountpoint is refused, and the first is untouched.
    let branch = pool.on(0, "");
    let second = strandfs(["mount", text(&branch), text(pool.root())]);
    assert_eq!(second.code(), 6, "{second:?}");
    assert_ne!(second.stderr, "");
    assert!(test_kill_process(Pid::from_raw(pid).unwrap()).is_ok());
    assert_eq!(get(pool.path("f")), b"served");
    drop(guard);
}

#[test]
fn a_dead_mountpoint_is_recovered() {
    need_root!();
    let mut pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "kept");
    kill_process(
        Pid::from_raw(pool.pid().cast_signed()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    pool.wait_for_exit(Duration::from_secs(2)).expect("killed");
    // Over io_uring the kernel says ECONNABORTED first, until it has cleared up.
    crate::support::eventually("the mount to be dead", Duration::from_secs(10), || {
        let dead = fs::metadata(pool.root()).unwrap_err();
        dead.raw_os_error() == Some(libc::ENOTCONN)
    });
    let guard = Daemon(&pool);
    strandfs(pool.mount_args(&[])).ok();
    assert_eq!(get(pool.path("f")), b"kept");
    strandfs(["umount", text(pool.root())]).ok();
    assert!(
        !mounts::any_below(pool.root()),
        "the dead mount is not left beneath"
    );
    drop(guard);
}

#[test]
fn unmounting_what_is_not_a_pool_is_refused() {
    let pool = dirs(1);
    assert_eq!(strandfs(["umount", text(pool.root())]).code(), 5);
    // Not even when something else is mounted there.
    if crate::support::is_root() {
        let run = strandfs(["umount", text(&pool.on(0, ""))]);
        assert_eq!(run.code(), 5, "{run:?}");
        assert!(
            mounts::any_below(&pool.on(0, "")),
            "the branch is still mounted"
        );
    }
    assert_eq!(
        strandfs(["umount", text(&pool.outside("missing"))]).code(),
        5
    );
}

#[test]
fn a_busy_pool_is_not_torn_away() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let open = fs::File::open(pool.path("f")).unwrap();
    let busy = strandfs(["umount", text(pool.root())]);
    assert_eq!(busy.code(), 7, "{busy:?}");
    assert!(
        busy.stderr.contains("busy") || busy.stderr.contains("in use"),
        "{busy:?}"
    );
    assert_eq!(crate::support::files::read_all(&open).unwrap(), b"x");
}

#[test]
fn status_lists_pools_for_people_and_for_programs() {
    let pool = Pool::tmpfs(2).option("category.create=mfs").mount();
    let status = pool.status();
    assert_eq!(status.mountpoint.as_deref(), Some(text(pool.root())));
    assert_eq!(status.pid, pool.pid());
    let branches = &status.branches;
    assert_eq!(branches.len(), 2);
    for (number, branch) in branches.iter().enumerate() {
        assert_eq!(
            branch.path,
            text(&pool.on(number, "")).trim_end_matches('/')
        );
        assert_eq!(branch.mode, "RW");
    }
    assert_eq!(status.options["category.create"], "mfs");
    let human = pool.status_among_all();
    assert!(human.contains("passthrough"), "{human}");
    let other = strandfs(["status", text(&pool.on(0, ""))]);
    assert_eq!(other.code(), 5, "{other:?}");
    assert_eq!(other.stdout, "");
}
