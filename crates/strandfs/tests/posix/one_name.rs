//! A name leads to one file: none is made beside one that exists, and what has a directory's name on
//! a branch keeps nothing from being made on the others.

use crate::need_root;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::files::{errno, get, put};
use crate::support::{Pool, eventually};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

/// The directory is on one branch, the policy picks the other, and the kernel believes for a minute
/// that the name is free.
#[test]
fn what_was_made_behind_the_pool_is_opened_and_not_made_a_second_time() {
    need_root!();
    let pool = Pool::tmpfs(2)
        .option("coherence=timeout,cache.negative-entry=60,category.create=mfs")
        .mount();
    fs::create_dir(pool.on(0, "d")).unwrap();
    put(pool.on(0, "ballast"), vec![0; 20 << 20]);
    for name in ["opened", "exclusive", "dir", "link"] {
        assert!(!pool.path("d").join(name).exists());
    }
    for name in ["opened", "exclusive", "dir", "link"] {
        put(pool.on(0, "d").join(name), "made behind");
    }
    let mut options = OpenOptions::new();
    let open = options.write(true).create(true);
    let mut opened = open.open(pool.path("d/opened")).unwrap();
    opened.write_all(b"went").unwrap();
    drop(opened);
    assert_eq!(pool.holders("d/opened"), [0]);
    assert_eq!(get(pool.on(0, "d/opened")), b"went behind");
    let exclusive = open.create_new(true).open(pool.path("d/exclusive"));
    assert_eq!(errno(exclusive), Errno::EXIST);
    assert_eq!(
        errno(fs::create_dir(pool.path("d/dir"))),
        Errno::EXIST,
        "mkdir"
    );
    put(pool.path("elsewhere"), "x");
    let link = fs::hard_link(pool.path("elsewhere"), pool.path("d/link"));
    assert_eq!(errno(link), Errno::EXIST, "link");
    for name in ["d/exclusive", "d/dir", "d/link"] {
        assert_eq!(pool.holders(name), [0], "{name}");
        assert_eq!(get(pool.on(0, name)), b"made behind", "{name}");
    }
}

#[test]
fn what_was_made_right_after_a_look_in_vain_is_not_made_a_second_time() {
    need_root!();
    let pool = Pool::tmpfs(2)
        .option("coherence=timeout,cache.negative-entry=60,category.create=mfs")
        .mount();
    fs::create_dir(pool.on(0, "d")).unwrap();
    put(pool.on(0, "ballast"), vec![0; 20 << 20]);
    for number in 0..20 {
        let name = format!("d/f{number}");
        let (path, behind) = (pool.path(&name), pool.on(0, &name));
        assert!(!path.exists());
        File::create(behind).unwrap();
        File::create(path).unwrap();
        assert_eq!(pool.holders(&name), [0], "{name}");
    }
}

#[test]
fn a_file_with_a_directorys_name_on_one_branch_leaves_the_others_to_be_used() {
    let pool = Pool::tmpfs(2).option("category.create=rand").mount();
    fs::create_dir(pool.on(0, "d")).unwrap();
    put(pool.on(1, "d"), "a file, hidden by the directory");
    for number in 0..24 {
        put(pool.path(format!("d/f{number}")), "x");
        fs::create_dir(pool.path(format!("d/s{number}"))).unwrap();
    }
    assert_eq!(get(pool.on(1, "d")), b"a file, hidden by the directory");
    // What lies there cannot get a name in the directory: mv(1) copies it then.
    put(pool.on(1, "moved"), "x");
    let moved = fs::rename(pool.path("moved"), pool.path("d/moved"));
    assert_eq!(errno(moved), Errno::XDEV);
    let linked = fs::hard_link(pool.path("moved"), pool.path("d/linked"));
    assert_eq!(errno(linked), Errno::XDEV);
    assert_eq!(get(pool.path("moved")), b"x");
}

/// A program has a file open whose name somebody gave to another file, on another branch, behind the
/// pool: what it does to its file was done to that one as well.
#[test]
fn what_is_done_to_an_open_file_reaches_no_file_that_took_its_name() {
    need_root!();
    let pool = Pool::tmpfs(2).option("coherence=timeout").mount();
    put(pool.on(1, "name"), "its own");
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .open(pool.path("name"))
        .unwrap();
    fs::rename(pool.on(1, "name"), pool.on(1, "renamed")).unwrap();
    put(pool.on(0, "name"), "of another");
    fs::set_permissions(pool.on(0, "name"), Permissions::from_mode(0o600)).unwrap();
    let before = fs::metadata(pool.on(0, "name")).unwrap();

    file.set_permissions(Permissions::from_mode(0o666)).unwrap();
    std::os::unix::fs::fchown(&file, Some(4711), Some(4711)).unwrap();
    rustix::fs::fsetxattr(&file, "user.of", b"it", rustix::fs::XattrFlags::empty()).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    file.set_len(3).unwrap();
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    let cwd = rustix::fs::CWD;
    rustix::fs::linkat(cwd, &by_descriptor, cwd, pool.path("further"), follow).unwrap();

    assert_eq!(get(pool.on(0, "name")), b"of another");
    let after = fs::metadata(pool.on(0, "name")).unwrap();
    let seen = |of: &fs::Metadata| {
        (
            of.mode(),
            of.uid(),
            of.gid(),
            of.mtime(),
            of.nlink(),
            of.ctime_nsec(),
        )
    };
    assert_eq!(seen(&after), seen(&before));
    assert_eq!(pool.holders("further"), [1]);
    assert_eq!(get(pool.on(1, "renamed")), b"its");
}

/// One name of a file went elsewhere and the other became another's, which refuses to be opened so.
#[test]
fn a_file_opens_though_one_of_its_names_became_a_directory() {
    need_root!();
    let pool = Pool::tmpfs(1).option("coherence=timeout").mount();
    for taken in ["first", "second"] {
        let other = if taken == "first" { "second" } else { "first" };
        put(pool.path("first"), "content");
        fs::hard_link(pool.path("first"), pool.path("second")).unwrap();
        let path = rustix::fs::OFlags::PATH;
        let held = rustix::fs::open(pool.path("first"), path, 0.into()).unwrap();
        fs::rename(pool.on(0, other), pool.on(0, "away")).unwrap();
        fs::remove_file(pool.on(0, taken)).unwrap();
        fs::create_dir(pool.on(0, taken)).unwrap();
        let by_descriptor = format!("/proc/self/fd/{}", held.as_raw_fd());
        let mut file = OpenOptions::new().append(true).open(by_descriptor).unwrap();
        std::io::Write::write_all(&mut file, b" and more").unwrap();
        assert_eq!(get(pool.on(0, "away")), b"content and more");
        drop(file);
        fs::remove_file(pool.on(0, "away")).unwrap();
        fs::remove_dir(pool.on(0, taken)).unwrap();
    }
}

/// The kernel keeps what a listing says of names for long, and the rest of a long listing is told
/// long after it was made.
#[test]
fn a_listing_leads_to_no_copy_that_is_hidden_since_it_was_made() {
    need_root!();
    const FILES: usize = 1500;
    let pool = Pool::tmpfs(2).mount();
    fs::create_dir(pool.on(0, "d")).unwrap();
    let name = |number: usize| format!("d/a-file-with-a-long-name-{number:06}");
    for number in 0..FILES {
        put(pool.on(1, name(number)), "old");
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = rustix::fs::open(pool.path("d"), flags, Mode::empty()).unwrap();
    let mut buffer = Vec::with_capacity(2048);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut listed = 0;
    let mut next = |look: bool| {
        let entry = entries.next()?.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        listed += 1;
        if look {
            // Listings tell attributes to those who ask for them.
            fs::symlink_metadata(pool.path(Path::new("d").join(&name))).unwrap();
        }
        Some(name)
    };
    for _ in 0..20 {
        next(false).unwrap();
    }
    for number in 0..FILES {
        put(pool.on(0, name(number)), "new");
    }
    eventually("the change is known", Duration::from_secs(30), || {
        let status = pool.status();
        status.coherence.events >= FILES as u64
    });
    while next(true).is_some() {}
    assert_eq!(listed, FILES + 2);
    eventually("no old copy shows", Duration::from_secs(30), || {
        (0..FILES).all(|number| get(pool.path(name(number))) == b"new")
    });
}
