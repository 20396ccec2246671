//! How many requests the kernel sends for what programs do. Each number here is a promise; why
//! each request is needed stands in docs/measurements/requests.md.

use crate::need_root;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::files::put;
use crate::support::{Pool, run};

/// Files each operation works on; one more goes first and is not counted.
const FILES: u64 = 50;

/// Requests that asking the server for its counters may cause.
const SLACK: u64 = 6;

fn name(number: u64) -> String {
    format!("f{number:03}")
}

/// A pool whose directory `d` has files of which the kernel knows nothing.
fn pool_with_files() -> Pool {
    let mut pool = Pool::tmpfs(1).prepare();
    for number in 0..=FILES {
        put(pool.on(0, format!("d/{}", name(number))), "content");
    }
    pool.start();
    pool
}

fn lstat(path: PathBuf) {
    rustix::fs::lstat(path).unwrap();
}

/// Others on this machine may empty the kernel's caches in the middle of a count: what must hold
/// has to hold in one of a few rounds, each on a pool of its own.
fn in_some_round(round: impl Fn() -> Result<(), String>) {
    let mut why = String::new();
    for _ in 0..5 {
        match round() {
            Ok(()) => return,
            Err(too_many) => why = too_many,
        }
    }
    panic!("{why}");
}

/// Says what `step` on each file costs in requests that the caller waits for, per file, if that is
/// more than allowed.
fn costs(
    pool: &Pool,
    what: &str,
    allowed: &[(&str, u64)],
    mut step: impl FnMut(PathBuf),
) -> Result<(), String> {
    step(pool.path(format!("d/{}", name(0))));
    let before = counted(pool);
    for number in 1..=FILES {
        step(pool.path(format!("d/{}", name(number))));
    }
    let after = counted(pool);
    let made =
        |operation: &str| after.get(operation).unwrap_or(&0) - before.get(operation).unwrap_or(&0);
    for (operation, each) in allowed {
        let (made, limit) = (made(operation), each * FILES + SLACK);
        if made > limit {
            return Err(format!("{what}: {made} {operation} for {FILES} files"));
        }
    }
    let total: u64 = after.keys().map(|operation| made(operation)).sum();
    let limit = allowed.iter().map(|(_, each)| each * FILES).sum::<u64>() + SLACK;
    match total <= limit {
        true => Ok(()),
        false => Err(format!(
            "{what}: {total} requests for {FILES} files: {before:?} {after:?}"
        )),
    }
}

/// Requests that somebody waits for, by operation. FORGET and RELEASE come when they come.
fn counted(pool: &Pool) -> BTreeMap<String, u64> {
    let counted = pool.connection().requests;
    let unawaited = ["forget", "batchforget", "release", "releasedir"];
    counted
        .into_iter()
        .filter(|(operation, _)| !unawaited.contains(&operation.as_str()))
        .collect()
}

fn all(pool: &Pool) -> u64 {
    counted(pool).values().sum()
}

#[test]
fn a_new_file_costs_a_lookup_and_a_create() {
    in_some_round(|| {
        let pool = Pool::tmpfs(1).mount();
        fs::create_dir(pool.path("d")).unwrap();
        // After a change the kernel asks for the directory's own attributes again: it forgot them.
        let create = [("lookup", 1), ("create", 1), ("getattr", 1), ("flush", 0)];
        costs(&pool, "create + close", &create, |path| {
            let mut options = File::options();
            options.write(true).create_new(true).open(path).unwrap();
        })?;
        costs(&pool, "unlink", &[("unlink", 1), ("getattr", 1)], |path| {
            fs::remove_file(path).unwrap();
        })?;
        let mkdir = [("lookup", 1), ("mkdir", 1), ("getattr", 1)];
        costs(&pool, "mkdir", &mkdir, |path| fs::create_dir(path).unwrap())?;
        costs(&pool, "rmdir", &[("rmdir", 1), ("getattr", 1)], |path| {
            fs::remove_dir(path).unwrap();
        })?;
        let symlinked = [("lookup", 1), ("symlink", 1), ("getattr", 1)];
        costs(&pool, "symlink", &symlinked, |path| {
            symlink("target", path).unwrap();
        })
    })
}

#[test]
fn forgets_gather_while_files_are_removed_over_io_uring() {
    if !crate::support::mounts::uring_is_on() {
        crate::support::say("skipped: this kernel has no FUSE over io_uring");
        return;
    }
    in_some_round(|| {
        const REMOVED: u64 = 1000;
        let pool = Pool::tmpfs(1).option("transport=uring").mount();
        let paths: Vec<PathBuf> = (0..REMOVED).map(|number| pool.path(name(number))).collect();
        for path in &paths {
            put(path, "");
        }
        for path in &paths {
            fs::remove_file(path).unwrap();
        }
        let mut messages = 0;
        crate::support::eventually(
            "removed files are forgotten",
            Duration::from_secs(60),
            || {
                let status = pool.status();
                let requests = &status.connection.as_ref().unwrap().requests;
                let count = |kind: &str| requests.get(kind).copied().unwrap_or(0);
                messages = count("forget") + count("batchforget");
                status.held.nodes < REMOVED / 10
            },
        );
        match messages < REMOVED / 2 {
            true => Ok(()),
            false => Err(format!("{messages} messages for {REMOVED} removed files")),
        }
    });
}

#[test]
fn a_known_file_costs_nothing_to_look_at_and_one_request_to_open() {
    in_some_round(|| {
        let pool = pool_with_files();
        costs(&pool, "stat, cold", &[("lookup", 1)], lstat)?;
        costs(&pool, "stat, warm", &[], lstat)?;
        let opened = [("open", 1), ("flush", 0)];
        costs(&pool, "open + close", &opened, |path| {
            File::open(path).unwrap();
        })?;
        let renamed = [("lookup", 1), ("rename", 1), ("getattr", 1)];
        costs(&pool, "rename", &renamed, |path| {
            fs::rename(&path, path.with_extension("new")).unwrap();
        })?;
        costs(&pool, "a missing name", &[("lookup", 1)], |path| {
            assert!(!path.exists());
        })?;
        costs(&pool, "a missing name, again", &[], |path| {
            assert!(rustix::fs::lstat(path).is_err());
        })
    })
}

/// `ls -l` asks each file for its ACL, and for an SELinux label unless told there are none.
#[test]
fn a_long_listing_costs_a_request_per_file_at_first_and_none_again() {
    in_some_round(|| {
        let pool = pool_with_files();
        for (what, limit) in [("cold", FILES + 20), ("warm", 20)] {
            let before = all(&pool);
            run("ls", ["-l", pool.path("d").to_str().unwrap()]).ok();
            let made = all(&pool) - before;
            if made > limit {
                return Err(format!("ls -l, {what}: {made} requests for {FILES} files"));
            }
        }
        Ok(())
    });
}

/// Names, types and attributes of a whole tree, directory by directory.
fn walk(top: PathBuf) -> u64 {
    let mut seen = 0;
    for entry in fs::read_dir(top).unwrap() {
        let entry = entry.unwrap();
        rustix::fs::lstat(entry.path()).unwrap();
        seen += 1;
        if entry.file_type().unwrap().is_dir() {
            seen += walk(entry.path());
        }
    }
    seen
}

#[test]
fn a_known_tree_is_walked_without_a_request() {
    need_root!();
    in_some_round(|| {
        let mut pool = Pool::tmpfs(2).prepare();
        for number in 0..FILES {
            let on = |branch, dir| pool.on(branch, format!("top/{dir}{number}/f"));
            put(on(0, "first"), "");
            put(on(1, "second"), "");
        }
        pool.start();
        // Listing a directory makes the kernel forget its access time, which the second walk asks
        // for.
        for _ in 0..2 {
            assert_eq!(walk(pool.path("top")), 4 * FILES);
        }
        let before = counted(&pool);
        for _ in 0..3 {
            assert_eq!(walk(pool.path("top")), 4 * FILES);
        }
        let after = counted(&pool);
        let made = after.values().sum::<u64>() - before.values().sum::<u64>();
        match made <= SLACK {
            true => Ok(()),
            false => Err(format!("{made} requests: {before:?} {after:?}")),
        }
    });
}

#[test]
fn selinux_labels_that_are_there_are_shown_and_others_unsupported() {
    need_root!();
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    if known.contains("selinuxfs") {
        return;
    }
    let pool = pool_with_files();
    let (path, other) = (pool.path("d/f001"), pool.path("d/f002"));
    let label = "security.selinux";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, label, b"a:b:c\0", flags).unwrap();
    let mut value = [0_u8; 16];
    let len = rustix::fs::getxattr(&path, label, &mut value).unwrap();
    assert_eq!(&value[..len], b"a:b:c\0");
    assert_eq!(
        rustix::fs::getxattr(&other, label, &mut value).unwrap_err(),
        rustix::io::Errno::OPNOTSUPP
    );
}
