//! A branch that does what it is asked and then cannot be asked about it: the request is neither made a second
//! time nor taken for one that others were quicker with.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use crate::need_root;
use crate::support::fault_fs::FaultFs;
use crate::support::files::{errno, get, put};
use crate::support::{Kind, Pool, mounts, run};

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
fn with_a_forgetful_branch() -> (Pool, FaultFs, Behind) {
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
    (pool, disk, Behind(behind))
}

/// What is behind the branch, unmounted when the test ends, or the pool's directory could not be removed.
struct Behind(PathBuf);

impl Drop for Behind {
    fn drop(&mut self) {
        mounts::detach(&self.0);
    }
}

#[test]
fn what_was_made_and_cannot_be_looked_at_is_not_said_to_have_been_there() {
    need_root!();
    let (pool, disk, _behind) = with_a_forgetful_branch();
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
}

/// With what a branch refuses what it has done.
const LOST: [Errno; 6] = [
    Errno::IO,
    Errno::TIMEDOUT,
    Errno::NOTCONN,
    Errno::CONNABORTED,
    Errno::INTR,
    Errno::NOSPC,
];

/// It was made once more, which met the first one (EEXIST), or on the other branch, too.
#[test]
fn what_a_branch_has_made_though_it_says_no_is_made_once() {
    need_root!();
    let (pool, disk, _behind) = with_a_forgetful_branch();
    put(pool.path("file"), "x");
    let mut wrong = Vec::new();
    for (what, make, _) in MAKES {
        for lost in LOST {
            for told in [true, false] {
                let name = format!("{what}-{}-{told}", lost.raw_os_error());
                disk.fail_with(lost);
                disk.arm_late(0, 1);
                if !told {
                    disk.lose_answers(lost, 0, 1);
                }
                let made = make(&pool.path(&name)).map_err(|error| error.raw_os_error());
                assert_eq!(disk.disarm(), 1, "{name}");
                disk.lose_answers(lost, 0, 0);
                let wanted = match *what == "link" && told {
                    true => Ok(()),
                    false => Err(Some(libc::EIO)),
                };
                if made != wanted || pool.holders(&name) != [0] {
                    wrong.push(format!("{name}: {made:?}, on {:?}", pool.holders(&name)));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_that_a_branch_has_made_though_it_says_no_is_opened() {
    need_root!();
    let (pool, disk, _behind) = with_a_forgetful_branch();
    for lost in LOST {
        let name = format!("f{}", lost.raw_os_error());
        disk.fail_with(lost);
        disk.arm_late(0, 1);
        fs::write(pool.path(&name), "content").unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(disk.disarm(), 1, "{name}");
        assert_eq!(pool.holders(&name), [0], "{name}");
        assert_eq!(get(pool.path(&name)), b"content");
    }
}

/// Takes a name away.
type Take = fn(&Path) -> io::Result<()>;

/// It was looked for once more, and not there (ENOENT).
#[test]
fn what_a_branch_has_taken_away_though_it_says_no_is_not_said_to_be_missing() {
    need_root!();
    let takes: [(&str, Take, u64); 4] = [
        ("unlink", |name| fs::remove_file(name), 1),
        ("rmdir", |name| fs::remove_dir(name), 1),
        (
            "rename",
            |name| fs::rename(name, name.with_extension("new")),
            2,
        ),
        (
            "rename-new",
            |name| {
                let (to, flags) = (
                    name.with_extension("new"),
                    rustix::fs::RenameFlags::NOREPLACE,
                );
                Ok(rustix::fs::renameat_with(CWD, name, CWD, to, flags)?)
            },
            2,
        ),
    ];
    let (pool, disk, _behind) = with_a_forgetful_branch();
    let mut wrong = Vec::new();
    for (what, take, looks) in takes {
        for lost in LOST {
            for told in [true, false] {
                let name = format!("{what}-{}-{told}", lost.raw_os_error());
                match what {
                    "rmdir" => fs::create_dir(pool.path(&name)).unwrap(),
                    _ => put(pool.path(&name), "content"),
                }
                disk.fail_with(lost);
                disk.arm_late(0, 1);
                if !told {
                    disk.lose_answers(lost, 0, looks);
                }
                let taken = take(&pool.path(&name)).map_err(|error| error.raw_os_error());
                assert_eq!(disk.disarm(), 1, "{name}");
                disk.lose_answers(lost, 0, 0);
                let wanted = if told { Ok(()) } else { Err(Some(libc::EIO)) };
                if taken != wanted || !pool.holders(&name).is_empty() {
                    wrong.push(format!("{name}: {taken:?}, on {:?}", pool.holders(&name)));
                }
                let new = pool.path(&name).with_extension("new");
                if what.starts_with("rename") && get(new) != b"content" {
                    wrong.push(format!("{name}: it has no new name"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The kernel looks again, and finds it.
#[test]
fn a_file_that_was_made_and_cannot_be_looked_at_is_opened_at_the_next_look() {
    need_root!();
    let (pool, disk, _behind) = with_a_forgetful_branch();
    disk.lose_answers(Errno::STALE, 1, 1);
    fs::write(pool.path("f"), "content").unwrap();
    assert_eq!(disk.answers_to_lose(), 0);
    assert_eq!(pool.holders("f"), [0]);
    assert_eq!(get(pool.path("f")), b"content");
}
