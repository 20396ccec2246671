//! Access lists where a branch has none.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::io::Errno;

use super::support::fault_fs::FaultFs;
use super::support::files::{get, put};
use super::support::{Kind, Pool, run, strandfs};
use crate::people::{ALICE, MALLORY, act_as};
use crate::{need_root, need_tool};

/// Two branches, the second of which has no access lists. Files go to either.
fn pool_without_lists_on_the_second() -> (Pool, FaultFs) {
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("32m"), "")
        .branch(Kind::Dir, "")
        .option("category.create=rand,cache.entry=0,cache.attr=0")
        .prepare();
    let behind = pool.outside("behind");
    fs::create_dir(&behind).unwrap();
    run("mount", ["-t", "tmpfs", "behind", behind.to_str().unwrap()]).ok();
    fs::set_permissions(&behind, fs::Permissions::from_mode(0o755)).unwrap();
    let disk = FaultFs::mount_without_access_lists(&behind, &pool.on(1, ""));
    pool.start();
    (pool, disk)
}

fn setfacl(arguments: &[&str], path: &Path) -> bool {
    let path = path.to_str().unwrap();
    let all = arguments.iter().copied().chain([path]);
    run("setfacl", all.collect::<Vec<_>>()).code() == 0
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_branch_without_lists_lets_in_whom_its_modes_do() {
    need_root!();
    let mut pool = Pool::build().branch(Kind::Dir, "").prepare();
    let behind = pool.outside("behind");
    fs::create_dir(&behind).unwrap();
    let _disk = FaultFs::mount_without_access_lists(&behind, &pool.on(0, ""));
    pool.start();
    put(pool.path("d/f"), "x");
    for (name, mode) in [("d", 0o755), ("d/f", 0o664)] {
        fs::set_permissions(pool.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    act_as(MALLORY, || {
        assert_eq!(get(pool.path("d/f")), b"x");
        let refused = fs::write(pool.path("d/f"), "y").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    });
}

#[test]
fn a_list_that_says_what_a_mode_can_reaches_the_mode_of_every_copy() {
    need_root!();
    need_tool!("setfacl", "cp");
    let (pool, _disk) = pool_without_lists_on_the_second();
    for branch in [0, 1] {
        fs::create_dir(pool.on(branch, "private")).unwrap();
        put(pool.on(branch, format!("private/{branch}")), "secret");
    }
    let private = pool.path("private");
    assert!(setfacl(&["-m", "u::rwx,g::---,o::---"], &private));
    for branch in [0, 1] {
        assert_eq!(mode(&pool.on(branch, "private")), 0o700, "{branch}");
    }
    // Also when the branch that has lists is gone.
    let first = pool.on(0, "");
    let gone = strandfs([
        "branch",
        "remove",
        pool.root().to_str().unwrap(),
        first.to_str().unwrap().trim_end_matches('/'),
    ]);
    assert_eq!(gone.code(), 0, "{gone:?}");
    let read = act_as(MALLORY, || fs::read(private.join("1")));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EACCES));
    assert_eq!(get(private.join("1")), b"secret");
}

#[test]
fn a_list_that_no_mode_can_say_is_refused_where_a_copy_can_have_none() {
    need_root!();
    need_tool!("setfacl", "getfacl");
    let (pool, _disk) = pool_without_lists_on_the_second();
    for branch in [0, 1] {
        let dir = pool.on(branch, "d");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let dir = pool.path("d");
    let named = format!("u:{ALICE}:rwx,g::---,o::---");
    for change in [&["-m", named.as_str()][..], &["-d", "-m", "o::---"]] {
        assert!(!setfacl(change, &dir), "{change:?}");
        for branch in [0, 1] {
            assert_eq!(mode(&pool.on(branch, "d")), 0o755, "{change:?} {branch}");
        }
        let list = run("getfacl", ["-pcE", pool.on(0, "d").to_str().unwrap()]);
        assert!(!list.stdout.contains(&ALICE.to_string()), "{list:?}");
        assert!(!list.stdout.contains("default"), "{list:?}");
    }
    // Where all copies can, it is set.
    fs::create_dir(pool.on(0, "e")).unwrap();
    assert!(setfacl(&["-m", &named], &pool.path("e")));
    assert!(act_as(ALICE, || fs::read_dir(pool.path("e")).is_ok()));
    assert!(act_as(MALLORY, || fs::read_dir(pool.path("e")).is_err()));
}

#[test]
fn a_directory_with_lists_does_not_come_to_a_branch_that_has_none() {
    need_root!();
    need_tool!("setfacl");
    let (pool, _disk) = pool_without_lists_on_the_second();
    let named = format!("u:{ALICE}:rwx");
    for (name, change) in [
        ("named", &["-m", named.as_str()][..]),
        ("default", &["-d", "-m", "o::---"]),
        ("minimal", &["-m", "g::---,o::---"]),
    ] {
        fs::create_dir(pool.on(0, name)).unwrap();
        assert!(setfacl(change, &pool.path(name)), "{name}");
        for number in 0..40 {
            put(pool.path(format!("{name}/{number}")), "x");
        }
        let expected: &[usize] = if name == "minimal" { &[0, 1] } else { &[0] };
        assert_eq!(pool.holders(name), expected, "{name}");
    }
    assert_eq!(mode(&pool.on(1, "minimal")), 0o700);
    let made = act_as(ALICE, || fs::write(pool.path("named/by-alice"), "x"));
    made.unwrap();
}

#[test]
fn a_copied_tree_is_as_closed_on_each_branch_as_its_original() {
    need_root!();
    need_tool!("cp");
    let (pool, _disk) = pool_without_lists_on_the_second();
    let original = pool.outside("original");
    fs::create_dir_all(original.join("inner")).unwrap();
    for (dir, mode) in [("", 0o750), ("inner", 0o700)] {
        let dir = original.join(dir);
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        chown(&dir, Some(ALICE), Some(ALICE)).unwrap();
    }
    for number in 0..20 {
        put(original.join(format!("inner/{number}")), "x");
    }
    let target = pool.path("copy");
    run(
        "cp",
        ["-a", original.to_str().unwrap(), target.to_str().unwrap()],
    )
    .ok();
    for (dir, wanted) in [("copy", 0o750), ("copy/inner", 0o700)] {
        for branch in pool.holders(dir) {
            assert_eq!(mode(&pool.on(branch, dir)), wanted, "{dir} {branch}");
        }
    }
    let listed = act_as(MALLORY, || fs::read_dir(&target).map(drop));
    assert_eq!(
        listed.map_err(|error| error.raw_os_error()),
        Err(Some(Errno::ACCESS.raw_os_error()))
    );
}

/// `xattr=noattr` hid the access lists from the kernel, which then let in whom they shut out.
#[test]
fn access_lists_hold_where_attributes_are_off() {
    need_root!();
    need_tool!("setfacl", "getfacl", "getfattr");
    for options in ["xattr=noattr", "xattr=nosys"] {
        let pool = Pool::build().branch(Kind::Dir, "").option(options).mount();
        let path = pool.path("f");
        put(&path, "secret");
        chown(&path, Some(0), Some(ALICE)).unwrap();
        let list = "u::rw,u:7777:rw,g::-,o::-";
        assert!(setfacl(&["-m", list], &pool.on(0, "f")), "{options}");
        // Another attribute is asked for first.
        let other = run("getfattr", ["-n", "user.x", path.to_str().unwrap()]);
        assert_ne!(other.code(), 0, "{options}");
        let read = act_as(ALICE, || fs::read(&path));
        assert_eq!(
            read.unwrap_err().raw_os_error(),
            Some(libc::EACCES),
            "{options}"
        );
        assert!(setfacl(&["-m", "g::r"], &path), "{options}");
        assert_eq!(act_as(ALICE, || fs::read(&path)).unwrap(), b"secret");
        let shown = run("getfacl", ["-pcE", path.to_str().unwrap()]).ok();
        assert!(shown.stdout.contains("7777"), "{options}: {shown:?}");
    }
}
