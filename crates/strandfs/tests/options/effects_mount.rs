//! Options about the mount itself, by what the kernel then shows.

use crate::{need_root, need_tool};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::files::{errno, get, put};
use crate::support::{Kind, Pool, mounts, run, strandfs};
use rustix::io::Errno;

#[test]
fn the_mountpoint_can_be_an_option() {
    let pool = Pool::tmpfs(2).prepare();
    let options = format!("minfreespace=0,mountpoint={}", pool.root().display());
    let mut args = vec!["mount".to_owned(), "-o".to_owned(), options];
    args.extend(pool.branch_args());
    strandfs(args).ok();
    assert!(mounts::is_mounted(pool.root()));
    put(pool.on(1, "f"), "of the last branch");
    assert_eq!(get(pool.path("f")), b"of the last branch");
    assert_eq!(
        pool.status().options["mountpoint"],
        pool.root().to_str().unwrap()
    );
    strandfs(["umount", pool.root().to_str().unwrap()]).ok();
}

#[test]
fn a_mount_without_a_mountpoint_is_refused() {
    let run = strandfs(["mount", "-o", "branches=/tmp"]);
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(run.stderr.contains("mountpoint=DIR"), "{run:?}");
}

/// The flags of the pool's mount and of its filesystem, as the kernel lists them.
fn flags(pool: &Pool) -> Vec<String> {
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let root = pool.root().to_str().unwrap();
    let line = text
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(root))
        .expect("the pool among the mounts");
    let fields: Vec<&str> = line.split(' ').collect();
    let both = [fields[5], fields[fields.len() - 1]];
    both.iter()
        .flat_map(|list| list.split(','))
        .map(str::to_owned)
        .collect()
}

#[test]
fn mount_flags_reach_the_kernel() {
    need_root!();
    // Option, flag in the kernel's list, whether the option sets it or takes it away.
    let effects = [
        ("ro", "ro", true),
        ("suid", "nosuid", false),
        ("dev", "nodev", false),
        ("noexec", "noexec", true),
        ("sync", "sync", true),
        ("dirsync", "dirsync", true),
        ("noatime", "noatime", true),
        ("nodiratime", "nodiratime", true),
        ("relatime", "relatime", true),
        ("strictatime", "relatime", false),
        ("lazytime", "lazytime", true),
    ];
    let plain = flags(&Pool::tmpfs(1).mount());
    for (option, flag, sets) in effects {
        let found = flags(&Pool::tmpfs(1).option(option).mount());
        let has = |flags: &[String]| flags.iter().any(|found| found == flag);
        assert_eq!(has(&found), sets, "{option}: {found:?}");
        // The kernel's own rule for access times is relatime.
        let default = !sets || option == "relatime";
        assert_eq!(has(&plain), default, "without {option}: {plain:?}");
    }
}

#[test]
fn a_read_only_pool_refuses_changes() {
    need_root!();
    let mut pool = Pool::tmpfs(1).option("ro").prepare();
    put(pool.on(0, "f"), "x");
    pool.start();
    assert_eq!(errno(fs::write(pool.path("f"), "y")), Errno::ROFS);
    assert_eq!(errno(fs::create_dir(pool.path("d"))), Errno::ROFS);
    assert_eq!(get(pool.path("f")), b"x");
}

#[test]
fn others_come_in_only_where_they_may() {
    need_root!();
    need_tool!("setpriv");
    for (options, may) in [("allow-other=false", false), ("allow-other=true", true)] {
        let pool = Pool::tmpfs(1).option(options).mount();
        put(pool.path("f"), "x");
        let root = pool.root().to_str().unwrap();
        let other = ["--reuid=12345", "--regid=12345", "--clear-groups"];
        let run = run("setpriv", other.iter().chain(&["ls", root]));
        assert_eq!(run.status.success(), may, "{options}: {run:?}");
        assert_eq!(run.stdout.contains('f'), may, "{options}: {run:?}");
    }
}

#[test]
fn labels_reach_the_kernel() {
    need_root!();
    let label = "system_u:object_r:tmp_t:s0";
    for option in ["context", "fscontext", "defcontext", "rootcontext"] {
        let mut pool = Pool::tmpfs(1).prepare();
        if Path::new("/sys/fs/selinux/enforce").exists() {
            pool.add_option(&format!("{option}={label}"));
            pool.start();
            let given = format!("{option}={label}");
            assert!(flags(&pool).contains(&given), "{given}");
            continue;
        }
        // A kernel without SELinux refuses the label, so it was told.
        let options = format!("minfreespace=0,{option}={label}");
        let branch = pool.branch_args().remove(0);
        let root = pool.root().to_str().unwrap();
        let run = strandfs(["mount", "-o", &options, &branch, root]);
        assert_ne!(run.code(), 0, "{run:?}");
        assert!(run.stderr.contains("the option it refused"), "{run:?}");
        assert!(!mounts::is_mounted(pool.root()));
    }
}

#[test]
fn passthrough_reaches_as_deep_as_it_is_told() {
    need_root!();
    let pool = |depth: u32| {
        let pool = Pool::build()
            .branch(Kind::Dir, "")
            .option(&format!("passthrough.max-stack-depth={depth}"))
            .prepare();
        mounts::make_branch(&make_dir(pool.outside("below")), Kind::Tmpfs("16m"));
        let part = |name: &str| make_dir(pool.outside("below").join(name));
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            part("lower").display(),
            part("upper").display(),
            part("work").display()
        );
        let branch = pool.on(0, "");
        let overlay = ["-t", "overlay", "-o", &layers, "overlay", text(&branch)];
        let below = Below([pool.on(0, ""), pool.outside("below")]);
        let mounted = run("mount", overlay).status.success();
        // What is in the tuple first goes first.
        mounted.then_some((below, pool))
    };
    for (depth, on) in [(1, false), (2, true)] {
        let Some((below, mut pool)) = pool(depth) else {
            crate::support::say("skipped: needs overlayfs");
            return;
        };
        pool.start();
        let status = pool.status();
        if status.passthrough.is_on() {
            put(pool.path("f"), "x");
            let branch = &pool.branch_status(0).passthrough;
            assert_eq!(branch.on, Some(on), "depth {depth}: {branch:?}");
        } else {
            // One branch that cannot do it may be said of the whole pool.
            assert!(!on, "depth {depth}: {status}");
        }
        drop(below);
    }
}

/// Mounts that the pool does not know of, undone before it looks for what is left.
struct Below([PathBuf; 2]);

impl Drop for Below {
    fn drop(&mut self) {
        self.0.iter().for_each(|path| mounts::detach(path));
    }
}

fn make_dir(path: PathBuf) -> PathBuf {
    fs::create_dir_all(&path).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The branches' mounts decide, which is said where it is not what was asked for.
#[test]
fn access_times_that_the_branches_keep_otherwise_are_said() {
    need_root!();
    let mut pool = Pool::tmpfs(2).option("noatime").prepare();
    let remount = |branch: usize, how: &str| {
        let path = pool.on(branch, "");
        run("mount", ["-o", how, path.to_str().unwrap()]).ok();
    };
    remount(0, "remount,bind,noatime");
    remount(1, "remount,bind,relatime");
    pool.start();
    let log = pool.log();
    let expected = format!(
        "noatime has no effect: access times are kept as the mounts of the branches say, and not so \
         on {}; mount these noatime",
        pool.on(1, "").to_str().unwrap().trim_end_matches('/')
    );
    assert_eq!(log.matches("has no effect").count(), 1, "{log}");
    assert!(log.contains(&expected), "{log}");
    // It is true: a read sets the time where the branch's mount does.
    for branch in 0..2 {
        let name = format!("f{branch}");
        put(pool.on(branch, &name), "x");
        let file = fs::File::open(pool.on(branch, &name)).unwrap();
        let old = std::time::SystemTime::UNIX_EPOCH;
        file.set_times(fs::FileTimes::new().set_accessed(old))
            .unwrap();
        assert_eq!(get(pool.path(&name)), b"x");
        let accessed = fs::metadata(pool.on(branch, &name)).unwrap().accessed();
        assert_eq!(accessed.unwrap() > old, branch == 1, "{name}");
    }
}
