//! A watched disk that stops taking changes: a frozen filesystem (FIFREEZE), where writers wait and
//! readers go on.

use crate::{need_root, need_tool};
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::support::files::{get, put};
use crate::support::{Kind, Pool, eventually, mounts, run, strandfs};

/// Long enough for any machine; never reached where nothing hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Thawed whatever becomes of the test: nobody could unmount it.
struct Frozen(PathBuf);

impl Frozen {
    fn new(disk: PathBuf) -> Frozen {
        run("fsfreeze", ["-f".as_ref(), disk.as_os_str()]).ok();
        Frozen(disk)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run("fsfreeze", ["-u".as_ref(), self.0.as_os_str()]);
    }
}

/// What a call on another thread comes to.
fn apart<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(call()).ok());
    wait
}

fn in_time<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let answer = apart(call).recv_timeout(PATIENCE);
    answer.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// A pool of a branch in memory and one on a disk that can be frozen.
fn beside_a_disk(further: &str) -> Pool {
    Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Loop("xfs", "320m"), "")
        .option(&format!("coherence=watch,category.create=ff{further}"))
        .prepare()
}

#[test]
fn a_watched_disk_that_takes_no_changes_holds_up_nothing_else() {
    need_root!();
    need_tool!("fsfreeze");
    if !mounts::loop_works("xfs") {
        return;
    }
    let mut pool = beside_a_disk(",branch-slow-after=500ms,branch-deadline=0");
    put(pool.on(0, "here/old"), "old");
    put(pool.on(1, "there/old"), "old");
    pool.start();
    let status = pool.status();
    for branch in 0..2 {
        assert!(status.branches[branch].watched.is_on(), "{status}");
    }
    assert_eq!(get(pool.path("there/old")), b"old");
    let frozen = Frozen::new(pool.on(1, ""));
    // A writer waits.
    let there = pool.path("there/old");
    let writer = apart(move || fs::write(there, "new"));
    eventually("the disk to count as slow", PATIENCE, || {
        pool.branch_status(1).health == "slow"
    });
    let (new, old) = (pool.path("here/new"), pool.path("here/old"));
    in_time("making a file elsewhere", move || put(new, "new"));
    assert_eq!(in_time("reading elsewhere", move || get(old)), b"old");
    // What changes behind the pool shows: the watcher waits for nobody.
    fs::remove_file(pool.on(0, "here/old")).unwrap();
    eventually("what was removed is gone", PATIENCE, || {
        !pool.path("here/old").exists()
    });
    let root = pool.root().to_path_buf();
    in_time("listing the pool", move || {
        fs::read_dir(root).unwrap().count()
    });
    assert!(writer.try_recv().is_err(), "the disk is not frozen");
    drop(frozen);
    let wrote = writer.recv_timeout(PATIENCE).expect("the writer goes on");
    wrote.unwrap();
    assert_eq!(get(pool.path("there/old")), b"new");
    assert_eq!(pool.holders("here/new"), [0]);
    eventually("the disk to be well", PATIENCE, || {
        pool.branch_status(1).health == "ok"
    });
}

/// Unmounting changes nothing on the branches.
#[test]
fn a_pool_over_a_frozen_disk_is_unmounted() {
    need_root!();
    need_tool!("fsfreeze");
    if !mounts::loop_works("xfs") {
        return;
    }
    let mut pool = beside_a_disk("");
    put(pool.on(1, "there"), "x");
    pool.start();
    let frozen = Frozen::new(pool.on(1, ""));
    assert_eq!(get(pool.path("there")), b"x");
    put(pool.path("new"), "new");
    let root = pool.root().to_str().unwrap().to_owned();
    in_time("unmounting", move || strandfs(["umount", &root]).ok());
    let ended = pool.wait_for_exit(PATIENCE).expect("the server ends");
    assert!(ended.success(), "{ended:?}");
    drop(frozen);
    pool.bury();
}
