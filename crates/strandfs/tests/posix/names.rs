//! Rename, hard links and file handles: files are found by what they are, not by what they were
//! called.

use crate::need_root;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::files::{
    drop_caches, errno, get, name_to_handle, names, open_by_handle, open_with, put, read_all,
};
use crate::support::{Pool, eventually};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use rustix::io::Errno;

#[test]
fn rename_replaces_and_refuses_as_posix_says() {
    for count in [1, 3] {
        let pool = Pool::tmpfs(count).option("category.create=mfs").mount();
        let rename = |from: &str, to: &str| fs::rename(pool.path(from), pool.path(to));
        put(pool.path("f"), "f");
        put(pool.path("g"), "g");
        rename("f", "g").unwrap();
        assert_eq!(get(pool.path("g")), b"f");
        assert_eq!(names(pool.root()), ["g"]);
        assert_eq!(errno(rename("f", "h")), Errno::NOENT);

        put(pool.path("full/x"), "x");
        fs::create_dir_all(pool.path("d/sub")).unwrap();
        fs::create_dir(pool.path("empty")).unwrap();
        assert_eq!(errno(rename("d", "full")), Errno::NOTEMPTY);
        assert_eq!(errno(rename("d", "d/sub/inside")), Errno::INVAL);
        assert_eq!(errno(rename("g", "d")), Errno::ISDIR);
        assert_eq!(errno(rename("d", "g")), Errno::NOTDIR);
        assert_eq!(errno(rename("full", "no/where")), Errno::NOENT);
        rename("d", "empty").unwrap();
        assert_eq!(names(pool.path("empty")), ["sub"]);
        rename("g", "empty/sub/g").unwrap();
        assert_eq!(get(pool.path("empty/sub/g")), b"f");
        assert_eq!(names(pool.root()), ["empty", "full"]);
        // A file has one home after all this.
        assert_eq!(pool.holders("empty/sub/g").len(), 1);
    }
}

#[test]
fn a_directory_on_several_branches_is_renamed_as_one() {
    let mut pool = Pool::tmpfs(3).prepare();
    for branch in 0..3 {
        put(pool.on(branch, format!("d/f{branch}")), "x");
    }
    pool.start();
    fs::create_dir(pool.path("other")).unwrap();
    fs::rename(pool.path("d"), pool.path("other/e")).unwrap();
    assert_eq!(names(pool.path("other/e")), ["f0", "f1", "f2"]);
    assert_eq!(pool.holders("d"), [0_usize; 0]);
    assert_eq!(pool.holders("other/e"), [0, 1, 2]);
}

#[test]
fn a_replaced_copy_on_another_branch_does_not_come_back() {
    let mut pool = Pool::tmpfs(2).option("category.create=ff").prepare();
    put(pool.on(0, "new"), "new");
    put(pool.on(1, "old"), "old");
    pool.start();
    fs::rename(pool.path("new"), pool.path("old")).unwrap();
    assert_eq!(get(pool.path("old")), b"new");
    assert_eq!(pool.holders("old"), [0]);
    assert_eq!(names(pool.root()), ["old"]);
    pool.remount();
    assert_eq!(get(pool.path("old")), b"new");
}

#[test]
fn renameat2_flags_do_what_they_say() {
    let pool = Pool::tmpfs(2).option("category.create=ff").mount();
    let rename = |from: &str, to: &str, flags| {
        renameat_with(CWD, pool.path(from), CWD, pool.path(to), flags)
    };
    put(pool.path("f"), "f");
    put(pool.path("d/x"), "x");
    assert_eq!(
        errno(rename("f", "d", RenameFlags::NOREPLACE)),
        Errno::EXIST
    );
    rename("f", "g", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(names(pool.root()), ["d", "g"]);

    rename("g", "d", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(get(pool.path("d")), b"f");
    assert_eq!(get(pool.path("g/x")), b"x");
    assert_eq!(get(pool.on(0, "d")), b"f");
    assert_eq!(
        errno(rename("g", "missing", RenameFlags::EXCHANGE)),
        Errno::NOENT
    );
    let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    assert_eq!(errno(rename("g", "d", both)), Errno::INVAL);
}

#[test]
fn a_rename_can_leave_a_whiteout() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "f");
    renameat_with(
        CWD,
        pool.path("f"),
        CWD,
        pool.path("g"),
        RenameFlags::WHITEOUT,
    )
    .unwrap();
    assert_eq!(get(pool.path("g")), b"f");
    let left = fs::symlink_metadata(pool.path("f")).unwrap();
    assert!(left.file_type().is_char_device());
    assert_eq!(left.rdev(), 0);
}

#[test]
fn open_files_follow_their_renames() {
    let pool = Pool::tmpfs(2).option("category.create=ff").mount();
    put(pool.path("a/f"), "first");
    let file = open_with(pool.path("a/f"), 0).unwrap();
    fs::rename(pool.path("a/f"), pool.path("g")).unwrap();
    fs::rename(pool.path("a"), pool.path("b")).unwrap();
    file.write_all_at(b"FIRST", 0).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o601))
        .unwrap();
    assert_eq!(get(pool.path("g")), b"FIRST");
    assert_eq!(fs::metadata(pool.path("g")).unwrap().mode() & 0o777, 0o601);

    // Another file takes over the name; the open one is still itself.
    put(pool.path("h"), "other");
    fs::rename(pool.path("h"), pool.path("g")).unwrap();
    assert_eq!(read_all(&file).unwrap(), b"FIRST");
    let meta = file.metadata().unwrap();
    assert_eq!((meta.nlink(), meta.len()), (0, 5));
    file.write_all_at(b"gone!", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(get(pool.path("g")), b"other");
}

#[test]
fn aliases_of_one_file_never_disagree() {
    let pool = Pool::tmpfs(2)
        .option("category.create=ff,cache.attr=3600,cache.entry=3600")
        .mount();
    put(pool.path("a/f"), "data");
    fs::create_dir(pool.path("b")).unwrap();
    fs::hard_link(pool.path("a/f"), pool.path("b/g")).unwrap();
    fs::hard_link(pool.path("b/g"), pool.path("h")).unwrap();
    let all = ["a/f", "b/g", "h"];
    let same = |what: &str, of: &dyn Fn(&fs::Metadata) -> u64, expected: u64| {
        for name in all {
            let meta = fs::metadata(pool.path(name)).unwrap();
            assert_eq!(of(&meta), expected, "{what} as seen through {name}");
        }
    };
    same("link count", &|meta| meta.nlink(), 3);
    let ino = fs::metadata(pool.path("h")).unwrap().ino();
    same("inode number", &|meta| meta.ino(), ino);
    fs::set_permissions(pool.path("b/g"), fs::Permissions::from_mode(0o604)).unwrap();
    same("mode", &|meta| u64::from(meta.mode() & 0o777), 0o604);
    fs::write(pool.path("h"), "longer data").unwrap();
    same("size", &|meta| meta.len(), 11);
    for name in all {
        assert_eq!(get(pool.path(name)), b"longer data");
    }
    fs::remove_file(pool.path("h")).unwrap();
    let count = |name: &str| fs::metadata(pool.path(name)).unwrap().nlink();
    assert_eq!((count("a/f"), count("b/g")), (2, 2));
    assert_eq!(
        errno(fs::hard_link(pool.path("a/f"), pool.path("b/g"))),
        Errno::EXIST
    );
    assert!(fs::hard_link(pool.path("b"), pool.path("dirlink")).is_err());

    // Renaming one alias onto the other does nothing, says POSIX.
    fs::rename(pool.path("a/f"), pool.path("b/g")).unwrap();
    assert_eq!((count("a/f"), count("b/g")), (2, 2));
}

#[test]
fn links_made_before_the_mount_are_one_file_too() {
    let mut pool = Pool::tmpfs(2)
        .option("cache.attr=3600,cache.entry=3600")
        .prepare();
    put(pool.on(1, "f"), "data");
    fs::create_dir(pool.on(1, "d")).unwrap();
    fs::hard_link(pool.on(1, "f"), pool.on(1, "d/g")).unwrap();
    pool.start();
    let meta = |name: &str| fs::metadata(pool.path(name)).unwrap();
    assert_eq!(meta("f").ino(), meta("d/g").ino());
    assert_eq!(meta("f").nlink(), 2);
    fs::set_permissions(pool.path("f"), fs::Permissions::from_mode(0o611)).unwrap();
    assert_eq!(meta("d/g").mode() & 0o777, 0o611);
    let open = open_with(pool.path("f"), 0).unwrap();
    open.write_all_at(b"more data", 0).unwrap();
    assert_eq!(get(pool.path("d/g")), b"more data");
    assert_eq!(meta("d/g").len(), 9);
}

#[test]
fn a_link_joins_its_file_wherever_the_policy_would_put_new_ones() {
    let mut pool = Pool::tmpfs(2).option("category.create=ff").prepare();
    put(pool.on(1, "f"), "data");
    fs::create_dir(pool.on(0, "d")).unwrap();
    pool.start();
    fs::hard_link(pool.path("f"), pool.path("d/g")).unwrap();
    assert_eq!(
        pool.holders("d/g"),
        [1],
        "beside the file, with the directory cloned"
    );
    assert_eq!(fs::metadata(pool.on(1, "d/g")).unwrap().nlink(), 2);
}

#[test]
fn handles_find_files_whose_names_are_forgotten() {
    need_root!();
    let pool = Pool::tmpfs(2).option("category.create=rand").mount();
    fs::create_dir(pool.path("d")).unwrap();
    let mut handles = Vec::new();
    for number in 0..50 {
        let name = format!("d/f{number}");
        put(pool.path(&name), &name);
        handles.push((name.clone(), name_to_handle(&pool.path(&name)).unwrap()));
    }
    let dir = name_to_handle(&pool.path("d")).unwrap();
    let check = |renamed: bool| {
        for (name, handle) in &handles {
            let file = open_by_handle(pool.root(), handle, libc::O_RDWR).unwrap();
            assert_eq!(read_all(&file).unwrap(), name.as_bytes());
            let now = if renamed {
                name.replace("d/", "e/")
            } else {
                name.clone()
            };
            assert_eq!(
                file.metadata().unwrap().ino(),
                fs::metadata(pool.path(now)).unwrap().ino()
            );
        }
    };
    check(false);
    drop_caches(2);
    check(false);
    fs::rename(pool.path("d"), pool.path("e")).unwrap();
    drop_caches(2);
    check(true);
    let opened = open_by_handle(pool.root(), &dir, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
    assert!(opened.metadata().unwrap().is_dir());

    // A file that is gone is stale, and a new one of its name has another handle.
    let (name, handle) = handles[0].clone();
    let now = pool.path(name.replace("d/", "e/"));
    let open = File::open(&now).unwrap();
    fs::remove_file(&now).unwrap();
    let again = open_by_handle(pool.root(), &handle, libc::O_RDONLY).unwrap();
    assert_eq!(
        read_all(&again).unwrap(),
        name.as_bytes(),
        "unlinked but open is still there"
    );
    drop((open, again));
    put(&now, "new");
    // The kernel tells of the last close in the background.
    let gone = (0..100).any(|_| {
        drop_caches(2);
        std::thread::sleep(std::time::Duration::from_millis(10));
        open_by_handle(pool.root(), &handle, libc::O_RDONLY).is_err()
    });
    assert!(
        gone,
        "the handle of a removed file still opens a second later"
    );
    assert_eq!(
        errno(open_by_handle(pool.root(), &handle, libc::O_RDONLY)),
        Errno::STALE
    );
    assert_ne!(name_to_handle(&now).unwrap(), handle);
}

/// The kernel opens a pipe without the server, which then knew no way to it: ESTALE.
#[test]
fn a_pipe_that_is_removed_while_it_is_open_is_still_there() {
    need_root!();
    for count in [1, 2] {
        let pool = Pool::tmpfs(count).option("cache.attr=0").mount();
        let path = pool.path("pipe");
        let mode = Mode::from_raw_mode(0o644);
        let take_name_away: [&dyn Fn(); 2] = [&|| fs::remove_file(&path).unwrap(), &|| {
            put(pool.path("other"), "other");
            fs::rename(pool.path("other"), &path).unwrap();
        }];
        let held = || pool.status().held.descriptors.directories;
        for take in take_name_away {
            mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
            let pipe = open_with(&path, 0).unwrap();
            let number = pipe.metadata().unwrap().ino();
            let before = held();
            take();
            let now = pipe.metadata().unwrap();
            assert!(now.file_type().is_fifo());
            assert_eq!((now.ino(), now.nlink()), (number, 0), "{count}");
            pipe.set_permissions(fs::Permissions::from_mode(0o600))
                .unwrap();
            assert_eq!(pipe.metadata().unwrap().mode() & 0o777, 0o600);
            assert_eq!(held(), before + 1, "it is held");
            drop(pipe);
            eventually("it is let go", Duration::from_secs(30), || held() <= before);
            fs::remove_file(&path).ok();
        }
    }
}

/// A file that others replace all the time, as editors and package managers do, is there all the time. The
/// kernel looks again only once for whoever comes to open what was replaced since it looked.
#[test]
fn a_file_that_is_replaced_all_the_time_is_opened_by_everybody() {
    const OPENS: usize = 3000;
    for branches in [1, 2] {
        let pool = Pool::tmpfs(branches).option("category.create=rand").mount();
        let file = pool.path("f");
        put(&file, "f");
        let is_over = AtomicBool::new(false);
        let failures: Vec<Errno> = std::thread::scope(|scope| {
            for number in 0..3 {
                let (is_over, file, new) = (&is_over, &file, pool.path(format!("f{number}")));
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        put(&new, "f");
                        fs::rename(&new, file).unwrap();
                    }
                });
            }
            let openers = [false, true, false].map(|makes| {
                let file = &file;
                scope.spawn(move || {
                    let mut options = fs::OpenOptions::new();
                    options.read(true).write(makes).create(makes);
                    let tries = (0..OPENS).map(|_| options.open(file));
                    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap();
                    tries
                        .filter_map(|it| it.err().map(errno))
                        .collect::<Vec<_>>()
                })
            });
            let failures = openers.map(|opener| opener.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
            failures.concat()
        });
        assert_eq!(failures, [], "{branches}");
    }
}

/// The kernel looks for a name anew that it was given, and for a descriptor not at all.
#[test]
fn what_is_gone_for_who_has_but_a_descriptor_is_said_in_the_log() {
    for branches in [1, 2] {
        let pool = Pool::tmpfs(branches).option("cache.attr=0").mount();
        let file = pool.path("f");
        put(&file, "f");
        let said = || pool.log().matches("errno=ESTALE").count();
        let named = open_with(&file, libc::O_PATH).unwrap();
        put(pool.path("new"), "new");
        fs::rename(pool.path("new"), &file).unwrap();
        assert_eq!(get(&file), *b"new");
        assert_eq!(said(), 0, "{}", pool.log());
        assert_eq!(errno(named.metadata()), Errno::STALE);
        eventually("it is said", Duration::from_secs(30), || said() == 1);
    }
}
