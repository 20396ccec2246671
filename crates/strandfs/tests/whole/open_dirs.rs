//! Directories that are open while they are removed or replaced.

use std::fs::{self, File};

use rustix::fs::{Mode, OFlags, fchmod, fstat, fsync, openat, statat};
use rustix::io::Errno;

use crate::need_root;
use crate::support::files::{errno, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool};

fn each(test: impl Fn(&Pool)) {
    let kinds = [Kind::Tmpfs("64m"), Kind::Loop("ext4", "64m")];
    for kind in kinds {
        if matches!(kind, Kind::Loop(name, _) if !loop_works(name)) {
            continue;
        }
        for branches in [1, 2] {
            for options in ["coherence=watch", "coherence=timeout"] {
                let kinds = std::iter::repeat_n(kind, branches);
                let pool = Pool::build().branches(kinds).option(options).mount();
                eprintln!("--- {branches} {options}");
                test(&pool);
            }
        }
    }
}

/// What works on a directory without a name on a bare filesystem.
fn goes_on(dir: &File) {
    assert_eq!(fstat(dir).unwrap().st_nlink, 0);
    fchmod(dir, Mode::from_raw_mode(0o711)).unwrap();
    assert_eq!(fstat(dir).unwrap().st_mode & 0o777, 0o711);
    fsync(dir).unwrap();
    assert_eq!(rustix::fs::flistxattr(dir, &mut [0_u8; 0][..]).unwrap(), 0);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let again = openat(dir, ".", flags, Mode::empty()).unwrap();
    assert_eq!(fstat(&again).unwrap().st_nlink, 0);
    assert_eq!(
        statat(dir, ".", rustix::fs::AtFlags::empty())
            .unwrap()
            .st_nlink,
        0
    );
    let read = rustix::fs::Dir::read_from(dir).unwrap().count();
    assert_eq!(read, 0, "nothing is in it");
    let made = openat(dir, "x", OFlags::CREATE | OFlags::RDWR, Mode::RWXU);
    assert_eq!(errno(made), Errno::NOENT);
}

fn made(pool: &Pool, name: &str, used: bool) -> File {
    let path = pool.path(name);
    fs::create_dir(&path).unwrap();
    if used {
        put(path.join("f"), "x");
        fs::remove_file(path.join("f")).unwrap();
    }
    File::open(path).unwrap()
}

#[test]
fn a_directory_that_was_removed_while_open_answers_as_on_the_bare_filesystem() {
    need_root!();
    each(|pool| {
        for used in [false, true] {
            let dir = made(pool, "d", used);
            fs::remove_dir(pool.path("d")).unwrap();
            goes_on(&dir);
            // One of the same name is another.
            fs::create_dir(pool.path("d")).unwrap();
            goes_on(&dir);
            put(pool.path("d/f"), "x");
            goes_on(&dir);
            fs::remove_dir_all(pool.path("d")).unwrap();
            goes_on(&dir);
        }
    });
}

#[test]
fn a_directory_that_was_replaced_while_open_answers_as_on_the_bare_filesystem() {
    need_root!();
    each(|pool| {
        for used in [false, true] {
            fs::create_dir(pool.path("new")).unwrap();
            put(pool.path("new/f"), "x");
            let dir = made(pool, "d", used);
            fs::rename(pool.path("new"), pool.path("d")).unwrap();
            goes_on(&dir);
            assert!(pool.path("d/f").exists());
            fs::remove_dir_all(pool.path("d")).unwrap();
            goes_on(&dir);
        }
    });
}

#[test]
fn nothing_is_held_of_removed_directories_that_nobody_has_open() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    let open = || {
        fs::read_dir(format!("/proc/{}/fd", pool.pid()))
            .unwrap()
            .count()
    };
    let before = open();
    for number in 0..200 {
        let path = pool.path(format!("d{number}"));
        fs::create_dir(&path).unwrap();
        fs::remove_dir(&path).unwrap();
    }
    crate::support::eventually(
        "they are closed",
        std::time::Duration::from_secs(30),
        || open() < before + 20,
    );
}

/// The descriptors of other directories may have taken all the room there is for them.
#[test]
fn an_open_directory_outlives_its_name_where_many_others_are_known() {
    need_root!();
    let mut pool = Pool::tmpfs(1).nofile(128).prepare();
    pool.start();
    for number in 0..200 {
        put(pool.path(format!("d{number}/sub/f")), "x");
    }
    let dir = made(&pool, "gone", false);
    fs::remove_dir(pool.path("gone")).unwrap();
    goes_on(&dir);
}
