//! Directories that are made on a further branch when the server dies.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use super::support::files::names;
use super::support::{Kind, Pool, eventually, run};
use crate::people::{ALICE, act_as};
use crate::{need_root, need_tool};

const DIE_AT: &str = "STRANDFS_DIE_AT_MOVE_STEP";

fn described(path: &Path) -> (u32, u32, u32) {
    let stat = fs::symlink_metadata(path).unwrap();
    (stat.mode() & 0o7777, stat.uid(), stat.gid())
}

/// Who may use a directory is what it was, whenever the server died while it made another copy of it.
#[test]
fn a_directory_that_was_being_made_like_another_when_the_server_died_is_made_to_the_end() {
    need_root!();
    for mode in [0o750, 0o2770, 0o1777, 0o700] {
        let mut pool = Pool::build()
            .branch(Kind::Tmpfs("8m"), "=NC")
            .branch(Kind::Tmpfs("8m"), "")
            .prepare();
        let first = pool.on(0, "d");
        fs::create_dir(&first).unwrap();
        chown(&first, Some(ALICE), Some(ALICE)).unwrap();
        fs::set_permissions(&first, PermissionsExt::from_mode(mode)).unwrap();
        let expected = described(&first);
        let mut died = 0;
        for step in 1.. {
            pool.set_env(DIE_AT, &step.to_string());
            pool.start();
            let made = fs::write(pool.path("d/f"), "bytes");
            if made.is_ok() {
                break;
            }
            died += 1;
            pool.bury();
            let left = pool.on(1, "d").exists();
            pool.set_env(DIE_AT, "0");
            pool.start();
            assert_eq!(names(pool.path("")), ["d"]);
            assert_eq!(described(&pool.path("d")), expected, "step {step}");
            act_as(ALICE, || names(pool.path("d")));
            if left {
                assert_eq!(described(&pool.on(1, "d")), expected, "step {step}");
                fs::remove_dir(pool.on(1, "d")).unwrap();
                eventually("it to be gone", Duration::from_secs(20), || {
                    described(&pool.path("d")) == expected
                });
            }
            pool.stop();
        }
        assert!(died > 1, "{died} steps");
    }
}

/// Shown, and on a branch: mode, owner, group, and the access list.
fn with_list(path: &Path) -> ((u32, u32, u32), String) {
    let list = run("getfacl", [Path::new("-cpE"), path]);
    (described(path), list.stdout)
}

/// Wherever the server died, its access list included.
#[test]
fn a_directory_with_an_access_list_that_was_being_made_when_the_server_died_is_made_to_the_end() {
    need_root!();
    need_tool!("setfacl", "getfacl");
    let mut failed = Vec::new();
    for (mode, list) in [
        (0o750, "u:1234:rwx"),
        (0o2770, "u:1234:r-x,g:77:---"),
        (0o1777, "u:1234:---,d:u:1234:rwx"),
        (0o755, "d:u:1234:rwx"),
    ] {
        let mut pool = Pool::build()
            .branch(Kind::Tmpfs("8m"), "=NC")
            .branch(Kind::Tmpfs("8m"), "")
            .prepare();
        let first = pool.on(0, "d");
        fs::create_dir(&first).unwrap();
        chown(&first, Some(ALICE), Some(ALICE)).unwrap();
        fs::set_permissions(&first, PermissionsExt::from_mode(mode)).unwrap();
        run("setfacl", ["-m", list, first.to_str().unwrap()]).ok();
        let expected = with_list(&first);
        let mut died = 0;
        for step in 1.. {
            pool.set_env(DIE_AT, &step.to_string());
            pool.start();
            if fs::write(pool.path("d/f"), "bytes").is_ok() {
                break;
            }
            died += 1;
            pool.bury();
            pool.set_env(DIE_AT, "0");
            pool.start();
            let shown = with_list(&pool.path("d"));
            if shown != expected {
                failed.push(format!("{mode:o} {list} step {step}: {shown:?}"));
            }
            if pool.on(1, "d").exists() {
                let made = with_list(&pool.on(1, "d"));
                if made != expected {
                    failed.push(format!("{mode:o} {list} step {step}, branch: {made:?}"));
                }
                fs::remove_dir(pool.on(1, "d")).unwrap();
            }
            pool.stop();
        }
        assert!(died > 2, "{died} steps");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// An empty directory that nobody may use, as people make mountpoints, is theirs.
#[test]
fn a_mountpoint_that_nobody_may_use_is_not_taken_for_half_made() {
    need_root!();
    need_tool!("setfacl");
    let mut pool = Pool::tmpfs(2).prepare();
    for (branch, mode) in [(0, 0o755), (1, 0)] {
        for name in ["plain", "listed"] {
            let dir = pool.on(branch, name);
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
        }
    }
    let listed = pool.on(0, "listed");
    run("setfacl", ["-m", "u:1234:rwx", listed.to_str().unwrap()]).ok();
    let old = std::time::SystemTime::UNIX_EPOCH;
    fs::File::open(&listed).unwrap().set_modified(old).unwrap();
    pool.start();
    for name in ["plain", "listed"] {
        assert_eq!(described(&pool.path(name)).0 & 0o777, 0, "{name}");
        assert_eq!(described(&pool.on(1, name)).0, 0, "{name}");
    }
}

/// What was shut on a branch by hand, and has something in it, is not taken for half made.
#[test]
fn a_copy_with_something_in_it_is_not_taken_for_half_made() {
    need_root!();
    let mut pool = Pool::tmpfs(2).prepare();
    for (branch, mode) in [(0, 0o755), (1, 0o1700)] {
        let dir = pool.on(branch, "d");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
    }
    fs::write(pool.on(1, "d/f"), "").unwrap();
    pool.start();
    let shown = described(&pool.path("d")).0;
    assert_eq!(shown & 0o777, 0o700);
    assert_eq!(described(&pool.on(1, "d")).0, 0o1700);
}
