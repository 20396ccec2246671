//! A branch that does what it is asked and then cannot be asked about it: the request is neither made a second
//! time nor taken for one that others were quicker with.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use crate::need_root;
use crate::support::fault_fs::FaultFs;
use crate::support::files::{errno, get, put};
use crate::support::{Kind, Pool, run};

/// Makes something under a name.
type Make = fn(&Path) -> io::Result<()>;

/// Looks that succeed and looks that fail then, with ESTALE and with ENOTCONN.
type Lost = [(u64, u64); 2];

/// How it is made, and which looks after that fail.
///
/// A look at a name is a request to a branch's server, and two where ESTALE has the kernel ask again;
/// one at an open file is one, and comes after one of the kernel's own.
const MAKES: &[(&str, Make, Lost)] = &[
    ("mkdir", |name| fs::create_dir(name), [(0, 2), (0, 1)]),
    ("symlink", |name| symlink("text", name), [(0, 2), (0, 1)]),
    (
        "mknod",
        |name| {
            let mode = Mode::from_raw_mode(0o644);
            Ok(rustix::fs::mknodat(CWD, name, FileType::Fifo, mode, 0)?)
        },
        [(0, 2), (0, 1)],
    ),
    (
        "link",
        |name| fs::hard_link(name.with_file_name("file"), name),
        [(0, 2), (0, 1)],
    ),
    (
        "create",
        |name| File::create_new(name).map(drop),
        [(1, 1), (1, 1)],
    ),
];

/// A pool whose first branch, which gets all that is new, can lose its answers.
fn with_a_forgetful_branch() -> (Pool, FaultFs) {
    let mut pool = Pool::build()
        .branch(Kind::Dir, "")
        .branch(Kind::Tmpfs("16m"), "")
        .option("cache.entry=0,cache.attr=0,category.create=ff")
        .prepare();
    let behind = pool.outside("behind");
    fs::create_dir(&behind).unwrap();
    run("mount", ["-t", "tmpfs", "behind", behind.to_str().unwrap()]).ok();
    // Like the other's, or nothing would be made there.
    fs::set_permissions(&behind, fs::metadata(pool.on(1, "")).unwrap().permissions()).unwrap();
    let disk = FaultFs::mount(&behind, &pool.on(0, ""));
    pool.start();
    (pool, disk)
}

#[test]
fn what_was_made_and_cannot_be_looked_at_is_not_said_to_have_been_there() {
    need_root!();
    let (pool, disk) = with_a_forgetful_branch();
    put(pool.path("file"), "x");
    for (what, make, looks) in MAKES {
        for (lost, looks) in [Errno::STALE, Errno::NOTCONN].into_iter().zip(looks) {
            let name = format!("{what}-{}", lost.raw_os_error());
            disk.lose_answers(lost, looks.0, looks.1);
            let made = make(&pool.path(&name));
            assert_eq!(disk.answers_to_lose(), 0, "{name}");
            assert_eq!(errno(made), Errno::IO, "{name}");
            assert!(pool.path(&name).symlink_metadata().is_ok(), "{name}");
            assert_eq!(pool.holders(&name), [0], "{name}");
            // Now it is there.
            assert_eq!(errno(make(&pool.path(&name))), Errno::EXIST, "{name}");
        }
    }
    drop(disk);
    crate::support::mounts::detach(&pool.outside("behind"));
}

/// The kernel looks again, and finds it.
#[test]
fn a_file_that_was_made_and_cannot_be_looked_at_is_opened_at_the_next_look() {
    need_root!();
    let (pool, disk) = with_a_forgetful_branch();
    disk.lose_answers(Errno::STALE, 1, 1);
    fs::write(pool.path("f"), "content").unwrap();
    assert_eq!(disk.answers_to_lose(), 0);
    assert_eq!(pool.holders("f"), [0]);
    assert_eq!(get(pool.path("f")), b"content");
    drop(disk);
    crate::support::mounts::detach(&pool.outside("behind"));
}
