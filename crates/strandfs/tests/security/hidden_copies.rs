//! Files of one name on several branches: who owns the one that is shown does not own the others.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, setxattr};
use rustix::io::Errno;

use super::people::{ALICE, MALLORY, act_as};
use super::support::files::{errno, get, put};
use super::support::{Pool, run};
use crate::{need_root, need_tool};

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

/// A pool where `d/x` of root (0644 and "shown") is shown of the first branch, and the second has one of this
/// owner and mode ("hidden"), which is newer.
fn pool_with_newer(options: &str, (owner, mode): (u32, u32)) -> Pool {
    let pool = Pool::tmpfs(2).option(options).mount();
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    let old = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    for (branch, content) in [(0, "shown"), (1, "hidden")] {
        let file = pool.on(branch, "d/x");
        put(&file, content);
        chmod(&pool.on(branch, "d"), 0o755).unwrap();
        if branch == 0 {
            chmod(&file, 0o644).unwrap();
            fs::File::open(&file).unwrap().set_times(old).unwrap();
        } else {
            chown(&file, Some(owner), Some(owner)).unwrap();
            chmod(&file, mode).unwrap();
        }
    }
    pool
}

fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = [0; 100];
    getxattr(path, name, &mut value[..]).map(|len| value[..len].to_vec())
}

fn lists(path: &Path, name: &str) -> bool {
    let mut list = vec![0; 4096];
    let len = listxattr(path, &mut list[..]).unwrap();
    list[..len]
        .split(|byte| *byte == 0)
        .any(|found| found == name.as_bytes())
}

#[test]
fn no_attribute_is_told_of_a_copy_that_the_caller_may_not_read() {
    need_root!();
    for (mode, told) in [(0o600, false), (0o644, true)] {
        let pool = pool_with_newer("func.getxattr=newest,func.listxattr=newest", (0, mode));
        setxattr(pool.on(0, "d/x"), "user.public", b"p", XattrFlags::empty()).unwrap();
        setxattr(pool.on(1, "d/x"), "user.secret", b"s", XattrFlags::empty()).unwrap();
        let shown = pool.path("d/x");
        assert_eq!(attribute(&shown, "user.secret"), Ok(b"s".to_vec()));
        assert!(lists(&shown, "user.secret"));
        for user in [MALLORY, ALICE] {
            let (secret, listed) = act_as(user, || {
                (
                    attribute(&shown, "user.secret"),
                    lists(&shown, "user.secret"),
                )
            });
            assert_eq!((secret.is_ok(), listed), (told, told), "{mode:o}");
            let public = act_as(user, || attribute(&shown, "user.public"));
            assert_eq!(public.is_ok(), !told, "{mode:o}");
        }
    }
}

/// The kernel judges by owner, mode and access list, which have to be one copy's.
#[test]
fn no_access_list_of_another_copy_opens_the_one_that_is_shown() {
    need_root!();
    need_tool!("setfacl");
    for (options, listed) in [("func.getxattr=newest", 1), ("func.getattr=newest", 0)] {
        let pool = pool_with_newer(options, (0, 0o640));
        let shown = 1 - listed;
        fs::set_permissions(pool.on(shown, "d/x"), fs::Permissions::from_mode(0o640)).unwrap();
        let list = format!("u:{MALLORY}:rw");
        run(
            "setfacl",
            ["-m", &list, pool.on(listed, "d/x").to_str().unwrap()],
        )
        .ok();
        let path = pool.path("d/x");
        act_as(MALLORY, || {
            assert_eq!(errno(fs::read(&path)), Errno::ACCESS, "{options}");
            let append = fs::OpenOptions::new().append(true).open(&path);
            assert_eq!(errno(append), Errno::ACCESS, "{options}");
        });
    }
}

#[test]
fn who_may_not_read_a_copy_does_not_read_it_while_somebody_else_has_it_open() {
    need_root!();
    for passthrough in ["auto", "off"] {
        let options = format!("func.open=newest,passthrough.io={passthrough}");
        let pool = pool_with_newer(&options, (0, 0o600));
        let path = pool.path("d/x");
        let refused = || act_as(MALLORY, || errno(fs::read(&path)));
        assert_eq!(refused(), Errno::ACCESS);
        let opened = fs::File::open(&path).unwrap();
        assert_eq!(get(&path), b"hidden");
        assert_eq!(refused(), Errno::ACCESS, "{passthrough}");
        drop(opened);
        assert_eq!(refused(), Errno::ACCESS, "{passthrough}");
    }
}

/// An access list may keep out whom the mode would let in.
#[test]
fn an_access_list_keeps_callers_from_a_copy_that_is_not_shown() {
    need_root!();
    need_tool!("setfacl");
    let pool = pool_with_newer("func.open=newest", (0, 0o644));
    let list = format!("u:{MALLORY}:---");
    run(
        "setfacl",
        ["-m", &list, pool.on(1, "d/x").to_str().unwrap()],
    )
    .ok();
    let path = pool.path("d/x");
    assert_eq!(act_as(MALLORY, || errno(fs::read(&path))), Errno::ACCESS);
    assert_eq!(act_as(ALICE, || get(&path)), b"hidden");
}

/// Whoever runs the file gets the rights of the bits that are shown.
#[test]
fn nothing_of_somebody_else_is_had_under_set_id_bits_that_are_shown() {
    need_root!();
    for (owner, mode, had) in [
        (MALLORY, 0o755, "shown"),
        (MALLORY, 0o4755, "shown"),
        (0, 0o755, "shown"),
        (0, 0o4755, "hidden"),
    ] {
        let pool = pool_with_newer("func.open=newest", (owner, mode));
        fs::set_permissions(pool.on(0, "d/x"), fs::Permissions::from_mode(0o4755)).unwrap();
        let read = act_as(ALICE, || get(pool.path("d/x")));
        assert_eq!(read, had.as_bytes(), "{owner} {mode:o}");
    }
}

/// The kernel decides by the owner that is shown whether a link in a directory like `/tmp` is followed.
#[test]
fn a_link_of_somebody_else_is_not_read_for_the_one_that_is_shown() {
    need_root!();
    for (owner, told) in [(MALLORY, "/shown"), (0, "/hidden")] {
        let pool = Pool::tmpfs(2).option("func.readlink=newest").mount();
        for (branch, text) in [(0, "/shown"), (1, "/hidden")] {
            std::os::unix::fs::symlink(text, pool.on(branch, "link")).unwrap();
        }
        let newest = pool.on(1, "link");
        let time = rustix::fs::Timespec {
            tv_sec: 4_000_000_000,
            tv_nsec: 0,
        };
        let times = rustix::fs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        let nofollow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, &newest, &times, nofollow).unwrap();
        std::os::unix::fs::lchown(&newest, Some(owner), Some(owner)).unwrap();
        let read = act_as(ALICE, || fs::read_link(pool.path("link")).unwrap());
        assert_eq!(read, Path::new(told), "{owner}");
    }
}
