//! Directories and files of a branch swapped for symlinks to the outside while the pool is asked to
//! act there. The askers follow no symlink themselves, so whatever happens outside is the server's
//! doing. `STRANDFS_RACE_SECONDS` makes it long (default 2 for each kind of pool).

use crate::need_root;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::delay_fs::DelayFs;
use crate::support::files::{put, read_all};
use crate::support::{Kind, Pool, say};
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, Uid, XattrFlags, chownat, linkat, mkdirat,
    open, openat, openat2, renameat, renameat_with, symlinkat, unlinkat,
};

/// Names that exist on both sides, so that a wrong turn finds something to harm.
const FILES: [&str; 4] = ["f0", "f1", "f2", "f3"];

/// Where they are on each branch.
const PLACES: [&str; 4] = ["a", "p/q/a", "a/sub", "p/q/a/sub"];

fn duration() -> Duration {
    let given = std::env::var("STRANDFS_RACE_SECONDS").ok();
    Duration::from_secs(given.and_then(|text| text.parse().ok()).unwrap_or(2))
}

/// A tree with the names of the pool's, and all there is to know about it.
struct Outside {
    dir: PathBuf,
    before: String,
}

impl Outside {
    fn new(pool: &Pool) -> Outside {
        let dir = pool.outside("outside");
        for place in [dir.clone(), dir.join("sub")] {
            for name in FILES {
                put(place.join(name), "precious");
                let mode = fs::Permissions::from_mode(0o640);
                fs::set_permissions(place.join(name), mode).unwrap();
            }
        }
        let before = describe(&dir);
        Outside { dir, before }
    }
}

/// Names, contents and attributes, in order; not access times, which looking changes.
fn describe(dir: &Path) -> String {
    let mut text = String::new();
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    for path in names {
        let meta = path.symlink_metadata().unwrap();
        text += &format!(
            "{} mode {:o} owner {} links {} modified {}.{} changed {}.{}\n",
            path.display(),
            meta.mode(),
            meta.uid(),
            meta.nlink(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        );
        if meta.is_dir() {
            text += &describe(&path);
        } else if meta.is_file() {
            let content = read_all(&fs::File::open(&path).unwrap()).unwrap();
            text += &String::from_utf8_lossy(&content);
        }
    }
    text
}

/// Swaps two names of a branch back and forth until told to stop.
fn swap(dir: &Path, one: &str, other: &str, stop: &AtomicBool, swaps: &AtomicU64) {
    let dir = open(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    while !stop.load(Ordering::Relaxed) {
        // The pool may have taken one of them away.
        if renameat_with(&dir, one, &dir, other, RenameFlags::EXCHANGE).is_ok() {
            swaps.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::yield_now();
    }
}

fn directory(pool: &OwnedFd, path: &str) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(pool, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()
}

/// Everything that can be done with names below a directory; returns how much of it succeeded.
fn ask(dir: &OwnedFd, round: u64) -> u64 {
    let name = FILES[round as usize % FILES.len()];
    let next = FILES[(round as usize + 1) % FILES.len()];
    let fresh = format!("new{}", round % 8);
    let mode = Mode::from_raw_mode(0o666);
    let nofollow = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = |name: &str, flags| openat(dir, name, flags | nofollow, mode);
    let mut done = 0;
    let mut count = |ok: bool| done += u64::from(ok);
    count(opened(name, OFlags::RDONLY).is_ok());
    if let Ok(file) = opened(name, OFlags::RDWR) {
        count(rustix::io::pwrite(&file, b"overwritten", 0).is_ok());
        count(rustix::fs::ftruncate(&file, 3).is_ok());
        count(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o777)).is_ok());
        count(rustix::fs::fsetxattr(&file, "user.x", b"x", XattrFlags::empty()).is_ok());
    }
    count(opened(name, OFlags::WRONLY | OFlags::TRUNC).is_ok());
    count(opened(&fresh, OFlags::WRONLY | OFlags::CREATE).is_ok());
    count(opened(".", OFlags::WRONLY | OFlags::TMPFILE).is_ok());
    let owner = Some(Uid::from_raw(1));
    count(chownat(dir, name, owner, None, AtFlags::SYMLINK_NOFOLLOW).is_ok());
    count(mkdirat(dir, "newdir", Mode::from_raw_mode(0o777)).is_ok());
    count(symlinkat("nowhere", dir, "newlink").is_ok());
    count(linkat(dir, name, dir, "newhard", AtFlags::empty()).is_ok());
    count(renameat(dir, name, dir, "renamed").is_ok());
    count(renameat(dir, "renamed", dir, next).is_ok());
    for name in ["newlink", "newhard", fresh.as_str()] {
        count(unlinkat(dir, name, AtFlags::empty()).is_ok());
    }
    count(unlinkat(dir, "newdir", AtFlags::REMOVEDIR).is_ok());
    if round.is_multiple_of(4) {
        count(unlinkat(dir, name, AtFlags::empty()).is_ok());
    }
    count(opened(name, OFlags::WRONLY | OFlags::CREATE).is_ok());
    if let Ok(listed) = opened(".", OFlags::RDONLY | OFlags::DIRECTORY) {
        count(rustix::fs::Dir::new(listed).is_ok_and(|dir| dir.count() > 0));
    }
    done
}

/// Symlinks to the outside beside what they are swapped with, on each branch.
fn lay_traps(pool: &Pool, branches: usize) -> Outside {
    let outside = Outside::new(pool);
    // Absolute, so that it leads outside from wherever it is followed.
    for branch in 0..branches {
        for place in PLACES {
            for name in FILES {
                put(pool.on(branch, place).join(name), "inside");
            }
        }
        symlink(&outside.dir, pool.on(branch, "trap")).unwrap();
        symlink(&outside.dir, pool.on(branch, "p/trap")).unwrap();
        symlink(outside.dir.join("f0"), pool.on(branch, "a/filetrap")).unwrap();
    }
    // p/q, when it is the symlink, has to have an `a` like the real one.
    symlink(".", outside.dir.join("a")).unwrap();
    Outside {
        before: describe(&outside.dir),
        ..outside
    }
}

/// Askers on what is mounted at `root`, swappers on its branches. How many swaps were made, and how
/// many operations succeeded.
fn ask_and_swap(root: &Path, branches: &[PathBuf]) -> (u64, u64) {
    let (stop, swaps, done) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let root = open(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    // Found before the first swap: a client that has cached a symlink for long asks for nothing.
    let held = PLACES.map(|path| (path, directory(&root, path).expect("not swapped yet")));
    std::thread::scope(|scope| {
        for branch in branches {
            for (dir, one, other) in [
                ("", "a", "trap"),
                ("p", "q", "trap"),
                ("a", "f0", "filetrap"),
            ] {
                let (dir, stop, swaps) = (branch.join(dir), &stop, &swaps);
                scope.spawn(move || swap(&dir, one, other, stop, swaps));
            }
        }
        for (path, held) in &held {
            let (root, stop, done) = (&root, &stop, &done);
            scope.spawn(move || {
                let deadline = Instant::now() + duration();
                for round in 0u64.. {
                    if Instant::now() > deadline {
                        break;
                    }
                    // Both a directory just found and one held since before.
                    let found = directory(root, path);
                    for dir in found.iter().chain([held]) {
                        done.fetch_add(ask(dir, round), Ordering::Relaxed);
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
    (swaps.into_inner(), done.into_inner())
}

/// A race on a pool; then nothing outside may have changed.
fn race(options: &str) {
    let mut pool = Pool::tmpfs(2).option(options).prepare();
    let outside = lay_traps(&pool, 2);
    pool.start();
    let (swaps, done) = ask_and_swap(pool.root(), &[pool.on(0, ""), pool.on(1, "")]);
    say(&format!(
        "{options}: {swaps} swaps, {done} operations succeeded"
    ));
    assert!(swaps > 0 && done > 0, "{options}: there was a race");
    let after = describe(&outside.dir);
    let result = strandfs_fuzz::TestResult {
        suite: "directories swapped for symlinks",
        configuration: options,
        cases: done,
        unit: "operations",
        documented: 0,
        failed: u64::from(after != outside.before),
    };
    result.keep().unwrap();
    assert_eq!(after, outside.before, "{options}");
    // And the pool has survived it.
    assert!(fs::metadata(pool.root()).is_ok());
}

#[test]
fn nothing_outside_is_touched_while_directories_become_symlinks() {
    need_root!();
    race("category.create=rand");
    race("category.create=rand,category.action=all,coherence=timeout,cache.entry=60,cache.attr=60");
    race("category.create=mfs,coherence=strict,passthrough.io=off");
}

/// Files grow and move to the other branch, whose directories they lie in are symlinks half of the
/// time, at the beginning of a move, in its middle and at its end.
#[test]
fn nothing_outside_is_touched_while_files_move_between_directories_that_become_symlinks() {
    need_root!();
    let mut pool = Pool::build()
        .branches([Kind::Tmpfs("16m"), Kind::Tmpfs("16m")])
        .option("category.create=ff,minfreespace=0,moveonenospc=ff,passthrough.io=off")
        .prepare();
    let outside = lay_traps(&pool, 2);
    put(pool.on(0, "ballast"), vec![1; 13 << 20]);
    pool.start();
    let root = open(pool.root(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let held = directory(&root, "p/q/a").expect("not swapped yet");
    let (stop, swaps, grown) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for branch in [pool.on(0, ""), pool.on(1, "")] {
            let (stop, swaps) = (&stop, &swaps);
            scope.spawn(move || swap(&branch.join("p"), "q", "trap", stop, swaps));
        }
        let deadline = Instant::now() + duration() * 2;
        for round in 0u64.. {
            if Instant::now() > deadline {
                break;
            }
            let found = directory(&root, "p/q/a");
            for (number, dir) in found.iter().chain([&held]).enumerate() {
                let name = format!("grows{}", (round + number as u64) % 4);
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let Ok(file) = openat(dir, &name, flags, Mode::from_raw_mode(0o666)) else {
                    continue;
                };
                let block = vec![2; 1 << 20];
                let whole = (0..4).all(|at| rustix::io::pwrite(&file, &block, at << 20).is_ok());
                grown.fetch_add(u64::from(whole), Ordering::Relaxed);
                unlinkat(dir, &name, AtFlags::empty()).ok();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let moved = pool.status().moved_files;
    let (swaps, grown) = (swaps.into_inner(), grown.into_inner());
    say(&format!("{swaps} swaps, {grown} files grew, {moved} moved"));
    assert!(swaps > 0 && moved > 0, "{swaps} {moved}");
    assert_eq!(describe(&outside.dir), outside.before);
}

/// The same race on a server that joins paths and follows what it meets there: it is lost, so the
/// test above can fail.
#[test]
fn a_server_that_goes_by_paths_loses_this_race() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let outside = lay_traps(&pool, 1);
    let _vulnerable = DelayFs::mount(&pool.on(0, ""), pool.root());
    let deadline = Instant::now() + Duration::from_secs(60);
    while describe(&outside.dir) == outside.before {
        assert!(Instant::now() < deadline, "the race was never lost");
        ask_and_swap(pool.root(), &[pool.on(0, "")]);
    }
}
