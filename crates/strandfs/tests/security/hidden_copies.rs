//! Files of one name on several branches: who owns the one that is shown does not own the others.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::people::{ALICE, MALLORY, act_as};
use super::support::Pool;
use super::support::files::{errno, get, put};
use crate::need_root;

/// Mallory's file is shown; behind it lies one of somebody else's.
fn pool_with_two(mode_of_dirs: u32, hidden: (u32, u32, u32)) -> Pool {
    let pool = Pool::tmpfs(2).mount();
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    for branch in 0..2 {
        let dir = pool.on(branch, "d");
        fs::create_dir(&dir).unwrap();
        chmod(&dir, mode_of_dirs).unwrap();
        put(dir.join("x"), format!("of branch {branch}"));
    }
    chown(pool.on(0, "d/x"), Some(MALLORY), Some(MALLORY)).unwrap();
    chmod(&pool.on(0, "d/x"), 0o664).unwrap();
    let (uid, gid, mode) = hidden;
    chown(pool.on(1, "d/x"), Some(uid), Some(gid)).unwrap();
    chmod(&pool.on(1, "d/x"), mode).unwrap();
    pool
}

/// What a change would show of.
fn seen(path: &Path) -> (u32, u32, u32, u64, i64, i64, u64) {
    let of = fs::metadata(path).unwrap();
    let changed = of.ctime() * 1_000_000_000 + of.ctime_nsec();
    (
        of.mode(),
        of.uid(),
        of.gid(),
        of.len(),
        of.mtime(),
        changed,
        of.nlink(),
    )
}

#[test]
fn who_changes_an_own_file_changes_none_of_somebody_else_behind_it() {
    need_root!();
    for owner in [0, ALICE] {
        let pool = pool_with_two(0o777, (owner, owner, 0o600));
        let before = seen(&pool.on(1, "d/x"));
        let shown = pool.path("d/x");
        act_as(MALLORY, || {
            fs::set_permissions(&shown, fs::Permissions::from_mode(0o666)).unwrap();
            rustix::fs::setxattr(&shown, "user.k", b"v", XattrFlags::empty()).unwrap();
            rustix::fs::removexattr(&shown, "user.k").unwrap();
            let long_ago = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
            fs::File::open(&shown).unwrap().set_times(long_ago).unwrap();
            fs::OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(&shown)
                .unwrap();
            truncate(&shown, 2);
            fs::hard_link(&shown, pool.path("d/y")).unwrap();
        });
        assert_eq!(seen(&pool.on(1, "d/x")), before);
        assert_eq!(get(pool.on(1, "d/x")), b"of branch 1");
        assert_eq!(pool.holders("d/y"), [0]);
        assert_eq!(
            fs::metadata(pool.on(0, "d/x")).unwrap().mode() & 0o777,
            0o666
        );
        // Root's changes are made on all that have the name.
        fs::remove_file(pool.path("d/y")).unwrap();
        fs::set_permissions(&shown, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(
            fs::metadata(pool.on(1, "d/x")).unwrap().mode() & 0o777,
            0o640
        );
    }
}

fn truncate(path: &Path, len: i64) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a C string and a number.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), len) }, 0);
}

#[test]
fn who_may_write_what_is_shown_cuts_nothing_that_is_closed_to_them() {
    need_root!();
    // Alice is in the group of both; the hidden one is its owner's alone.
    for (hidden, cut) in [(0o600, false), (0o664, true)] {
        let pool = pool_with_two(0o777, (MALLORY, ALICE, hidden));
        chown(pool.on(0, "d/x"), None, Some(ALICE)).unwrap();
        let shown = pool.path("d/x");
        act_as(ALICE, || truncate(&shown, 2));
        assert_eq!(get(pool.on(0, "d/x")), b"of");
        assert_eq!(get(pool.on(1, "d/x")) == b"of", cut, "{hidden:o}");
    }
}

#[test]
fn own_copies_are_changed_all_of_them() {
    need_root!();
    let pool = pool_with_two(0o777, (MALLORY, MALLORY, 0o600));
    let shown = pool.path("d/x");
    act_as(MALLORY, || {
        fs::set_permissions(&shown, fs::Permissions::from_mode(0o644)).unwrap();
        truncate(&shown, 2);
    });
    for branch in 0..2 {
        let copy = pool.on(branch, "d/x");
        assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o777, 0o644);
        assert_eq!(get(&copy), b"of");
    }
}

/// The sticky bit keeps a file from all but its owner, shown or not.
#[test]
fn in_a_sticky_directory_nobody_takes_away_what_lies_behind_an_own_file() {
    need_root!();
    let pool = pool_with_two(0o1777, (ALICE, ALICE, 0o600));
    let (shown, other) = (pool.path("d/x"), pool.path("d/other"));
    put(&other, "mine");
    chown(&other, Some(MALLORY), Some(MALLORY)).unwrap();
    act_as(MALLORY, || {
        assert_eq!(errno(fs::remove_file(&shown)), Errno::PERM);
        assert_eq!(errno(fs::rename(&shown, pool.path("d/y"))), Errno::PERM);
        assert_eq!(errno(fs::rename(&other, &shown)), Errno::PERM);
    });
    assert_eq!(get(pool.on(1, "d/x")), b"of branch 1");
    assert_eq!(pool.holders("d/x"), [0, 1]);
    // The owner of the directory may, as everywhere.
    for branch in 0..2 {
        chown(pool.on(branch, "d"), Some(MALLORY), None).unwrap();
    }
    act_as(MALLORY, || fs::remove_file(&shown).unwrap());
    assert!(pool.holders("d/x").is_empty());
}
