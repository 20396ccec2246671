//! A branch that fails once and is well again: it stays in use, what was made is there, and nothing is done
//! twice.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::fault_fs::FaultFs;
use crate::support::files::{errno, get, put};
use crate::support::{Kind, Pool, eventually, mounts};
use crate::{need_root, need_tool};

const SOON: Duration = Duration::from_secs(30);

/// A pool whose first branch, which gets all that is new, can fail.
struct Weak {
    disk: FaultFs,
    pool: Pool,
    behind: PathBuf,
}

impl Weak {
    fn new(options: &str) -> Weak {
        let mut pool = Pool::build()
            .branch(Kind::Dir, "")
            .branch(Kind::Tmpfs("16m"), "")
            .option("cache.entry=0,cache.attr=0,category.create=ff")
            .option(options)
            .prepare();
        let behind = pool.outside("behind");
        fs::create_dir(&behind).unwrap();
        mounts::make_branch(&behind, Kind::Tmpfs("16m"));
        let rights = fs::metadata(&behind).unwrap().permissions();
        fs::set_permissions(pool.on(1, ""), rights).unwrap();
        put(behind.join(".here"), "");
        put(pool.on(1, ".here"), "");
        let disk = FaultFs::mount(&behind, &pool.on(0, ""));
        pool.start();
        Weak { disk, pool, behind }
    }
}

impl Drop for Weak {
    fn drop(&mut self) {
        // Else the pool's directory could not be removed.
        mounts::detach(&self.behind);
    }
}

/// It was out of use at once, and with it all that is on it.
#[test]
fn a_branch_of_which_one_look_fails_stays_in_use_and_of_two_in_a_row_it_does_not() {
    need_root!();
    let weak = Weak::new("branch-marker=.here,branch-check-interval=100ms,on-missing=degrade");
    let is_out = || weak.pool.log().contains("the branch is out of use");
    for before in 4..8 {
        // One look takes three questions at most: there are good ones between, and each fails once.
        weak.disk.fail_looks(Errno::IO, before, 1);
        eventually("a look that fails", SOON, || {
            weak.disk.answers_to_lose() == 0
        });
    }
    assert!(!is_out(), "{}", weak.pool.log());
    weak.disk.fail_looks(Errno::IO, 0, 4);
    eventually("it is out of use", SOON, is_out);
    eventually("it is back", SOON, || {
        weak.pool.branch_status(0).health == "ok"
    });
}

/// Some call of a server fails, until the end.
struct Injected(Child);

impl Injected {
    /// All such calls, or those on one directory; `error` as strace(1) has it.
    fn new(pool: &Pool, call: &str, error: &str, on: Option<&Path>) -> Injected {
        let child = Command::new("strace")
            .args(["-f", "-qq", "-e", &format!("trace={call}"), "-e"])
            .arg(format!("inject={call}:error={error}"))
            .args(on.iter().flat_map(|on| ["-P".as_ref(), on.as_os_str()]))
            .args(["-o", "/dev/null", "-p", &pool.pid().to_string()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let tracer = format!("TracerPid:\t{}\n", child.id());
        let tasks = format!("/proc/{}/task", pool.pid());
        eventually("strace has all threads", SOON, || {
            fs::read_dir(&tasks).unwrap().flatten().all(|task| {
                let status = fs::read_to_string(task.path().join("status"));
                status.is_ok_and(|status| status.contains(&tracer))
            })
        });
        Injected(child)
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).ok();
        self.0.wait().ok();
    }
}

/// A create said EIO, and its file was there.
#[test]
fn what_is_made_is_made_and_known_though_its_file_handle_is_not_to_be_had_at_once() {
    need_root!();
    need_tool!("strace");
    for kind in [Kind::Tmpfs("16m"), Kind::Loop("ext4", "64M")] {
        let pool = Pool::build().branch(kind, "").branch(kind, "").mount();
        put(pool.path("before"), "before");
        let injected = Injected::new(&pool, "name_to_handle_at", "EIO:when=1+2", None);
        let mut file = File::create_new(pool.path("f")).unwrap();
        fs::create_dir(pool.path("d")).unwrap();
        fs::hard_link(pool.path("f"), pool.path("d/g")).unwrap();
        file.write_all(b"content").unwrap();
        let ino = file.metadata().unwrap().ino();
        drop(injected);
        let named = fs::metadata(pool.path("d/g")).unwrap();
        assert_eq!((named.ino(), named.nlink()), (ino, 2));
        fs::rename(pool.path("d/g"), pool.path("d/h")).unwrap();
        fs::remove_file(pool.path("f")).unwrap();
        assert_eq!(get(pool.path("d/h")), b"content");
        fs::remove_file(pool.path("d/h")).unwrap();
        file.write_all(b", more").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 13);
    }
}

/// It was passed over, and the request answered as done: one copy of the directory went on letting others in. A file
/// was said to be on a read-only filesystem.
#[test]
fn a_branch_that_does_not_tell_whether_it_can_be_changed_is_not_passed_over() {
    need_root!();
    need_tool!("strace");
    let pool = Pool::tmpfs(2).option("cache.statfs=0").prepare();
    for branch in 0..2 {
        fs::create_dir(pool.on(branch, "d")).unwrap();
        put(pool.on(branch, "f"), "f");
    }
    let mut pool = pool;
    pool.start();
    let branch = pool.on(1, "");
    let branch = branch.canonicalize().unwrap();
    let injected = Injected::new(&pool, "fstatfs", "EIO", Some(&branch));
    let closed = || fs::Permissions::from_mode(0o700);
    for name in ["d", "f"] {
        let changed = fs::set_permissions(pool.path(name), closed());
        assert_eq!(errno(changed), Errno::IO, "{name}");
        for branch in 0..2 {
            let mode = fs::metadata(pool.on(branch, name)).unwrap().mode() & 0o777;
            assert_ne!(mode, 0o700, "{name} on {branch}");
        }
    }
    assert_eq!(errno(fs::remove_file(pool.path("f"))), Errno::IO);
    assert_eq!(pool.holders("f"), [0, 1]);
    drop(injected);
    fs::set_permissions(pool.path("d"), closed()).unwrap();
    fs::remove_file(pool.path("f")).unwrap();
}

/// A second time the attribute was there already, or not there any more.
#[test]
fn an_attribute_that_was_made_or_removed_though_the_branch_says_no_is_not_so_a_second_time() {
    need_root!();
    let weak = Weak::new("");
    let file = weak.pool.path("f");
    put(&file, "x");
    let mut wrong = Vec::new();
    for lost in [Errno::NOTCONN, Errno::CONNABORTED] {
        weak.disk.fail_with(lost);
        weak.disk.arm_late(0, 1);
        let made = setxattr(&file, "user.a", b"1", XattrFlags::CREATE);
        assert_eq!(weak.disk.disarm(), 1);
        if (made, getxattr(&file, "user.a", &mut [0; 8])) != (Err(Errno::IO), Ok(1)) {
            wrong.push(format!("made, {lost}: {made:?}"));
        }
        weak.disk.arm_late(0, 1);
        let removed = removexattr(&file, "user.a");
        assert_eq!(weak.disk.disarm(), 1);
        let left = getxattr(&file, "user.a", &mut [0; 8]);
        if (removed, left) != (Err(Errno::IO), Err(Errno::NODATA)) {
            wrong.push(format!("removed, {lost}: {removed:?}"));
        }
        // One that has not begun is tried again.
        weak.disk.arm(0, 1);
        setxattr(&file, "user.a", b"2", XattrFlags::CREATE).unwrap();
        weak.disk.arm(0, 1);
        removexattr(&file, "user.a").unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        errno(std::io::Result::from(
            removexattr(&file, "user.a").map_err(Into::into)
        )),
        Errno::NODATA
    );
}

/// It was in the file twice: once where the branch had it, and once more where the file was moved to.
#[test]
fn what_was_appended_though_the_branch_says_that_it_is_full_is_in_the_file_once() {
    need_root!();
    let weak = Weak::new("moveonenospc=mfs,passthrough.io=off,cache.files=off");
    for lost in [Errno::NOSPC, Errno::DQUOT, Errno::INTR] {
        let file = weak.pool.path(format!("log{}", lost.raw_os_error()));
        put(&file, "one\n");
        let mut log = OpenOptions::new().append(true).open(&file).unwrap();
        weak.disk.fail_with(lost);
        for (line, is_made) in [("two\n", true), ("three\n", false), ("four\n", true)] {
            match is_made {
                true => weak.disk.arm_late(0, 1),
                false => weak.disk.arm(0, 1),
            }
            log.write_all(line.as_bytes()).unwrap();
            weak.disk.disarm();
        }
        assert_eq!(
            String::from_utf8(get(&file)).unwrap(),
            "one\ntwo\nthree\nfour\n",
            "{lost}"
        );
    }
}
