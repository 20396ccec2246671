//! Extended attributes, ACLs and locks, all of which live on the branch.

use crate::{need_root, need_tool};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::files::{
    attr_size, errno, open_with, process_lock, put, record_lock, set_times,
};
use crate::support::{Pool, eventually, run};
use rustix::fs::{
    FlockOperation, XattrFlags, flock, getxattr, lgetxattr, listxattr, lsetxattr, removexattr,
    setxattr,
};
use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

fn get_attr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65536];
    let length = getxattr(path, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

#[test]
fn attributes_are_stored_on_the_branch() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let (path, beneath) = (pool.path("f"), pool.on(0, "f"));
    // tmpfs before Linux 6.6 has no user attributes; trusted ones are everywhere.
    for name in ["trusted.one", "trusted.two", "security.three"] {
        setxattr(&path, name, name.as_bytes(), XattrFlags::CREATE).unwrap();
        assert_eq!(get_attr(&path, name).unwrap(), name.as_bytes());
        assert_eq!(get_attr(&beneath, name).unwrap(), name.as_bytes());
    }
    let create = setxattr(&path, "trusted.one", b"", XattrFlags::CREATE);
    assert_eq!(errno(create), Errno::EXIST);
    let replace = setxattr(&path, "trusted.new", b"", XattrFlags::REPLACE);
    assert_eq!(errno(replace), Errno::NODATA);
    setxattr(&path, "trusted.one", b"", XattrFlags::REPLACE).unwrap();
    assert_eq!(get_attr(&path, "trusted.one").unwrap(), b"");

    let mut list = vec![0; 4096];
    let length = listxattr(&path, &mut list[..]).unwrap();
    let listed = String::from_utf8(list[..length].to_vec()).unwrap();
    let mut listed: Vec<&str> = listed.split_terminator('\0').collect();
    listed.sort_unstable();
    assert_eq!(listed, ["security.three", "trusted.one", "trusted.two"]);
    assert_eq!(errno(listxattr(&path, &mut [0_u8; 4][..])), Errno::RANGE);
    assert_eq!(
        errno(getxattr(&path, "trusted.two", &mut [0_u8; 3][..])),
        Errno::RANGE
    );
    assert_eq!(attr_size(&path, "trusted.two").unwrap(), 11);

    removexattr(&path, "trusted.two").unwrap();
    assert_eq!(errno(removexattr(&path, "trusted.two")), Errno::NODATA);
    assert_eq!(errno(get_attr(&path, "trusted.two")), Errno::NODATA);
    assert_eq!(
        errno(setxattr(&path, "nonsense", b"", XattrFlags::empty())),
        Errno::OPNOTSUPP
    );
    let longest = format!("trusted.{}", "n".repeat(255 - 8));
    setxattr(&path, &longest, b"v", XattrFlags::empty()).unwrap();
    let longer = setxattr(&path, format!("{longest}n"), b"v", XattrFlags::empty());
    assert_eq!(errno(longer), Errno::RANGE);
    let large = vec![7; 60_000];
    match setxattr(&beneath, "trusted.large", &large, XattrFlags::empty()) {
        Ok(()) => assert_eq!(get_attr(&path, "trusted.large").unwrap(), large),
        Err(error) => assert_eq!(
            errno(setxattr(
                &path,
                "trusted.large",
                &large,
                XattrFlags::empty()
            )),
            error,
            "the pool refuses what the branch refuses"
        ),
    }
}

#[test]
fn symlinks_and_directories_have_their_own_attributes() {
    need_root!();
    let pool = Pool::tmpfs(2).option("category.create=all").mount();
    fs::create_dir(pool.path("d")).unwrap();
    setxattr(pool.path("d"), "trusted.d", b"1", XattrFlags::empty()).unwrap();
    assert_eq!(get_attr(&pool.on(0, "d"), "trusted.d").unwrap(), b"1");
    assert_eq!(
        get_attr(&pool.on(1, "d"), "trusted.d").unwrap(),
        b"1",
        "on every branch"
    );
    std::os::unix::fs::symlink("d", pool.path("l")).unwrap();
    lsetxattr(pool.path("l"), "trusted.l", b"2", XattrFlags::empty()).unwrap();
    let mut value = [0; 8];
    assert_eq!(
        lgetxattr(pool.path("l"), "trusted.l", &mut value[..]).unwrap(),
        1
    );
    assert_eq!(errno(get_attr(&pool.path("l"), "trusted.l")), Errno::NODATA);
}

#[test]
fn a_write_by_someone_else_drops_file_capabilities() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    fs::set_permissions(
        pool.path("f"),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    // VFS_CAP_REVISION_2 with CAP_NET_RAW permitted and effective.
    let capability = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    setxattr(
        pool.path("f"),
        "security.capability",
        &capability,
        XattrFlags::empty(),
    )
    .unwrap();
    let script = format!("printf y >> '{}'", pool.path("f").display());
    run(
        "setpriv",
        [
            "--reuid=4242",
            "--regid=4242",
            "--clear-groups",
            "sh",
            "-c",
            &script,
        ],
    )
    .ok();
    assert_eq!(
        errno(get_attr(&pool.on(0, "f"), "security.capability")),
        Errno::NODATA
    );
}

#[test]
fn acls_are_kept_enforced_and_inherited() {
    need_root!();
    need_tool!("setfacl", "getfacl");
    let pool = Pool::tmpfs(2)
        .option("category.create=ff,posix-acl=true")
        .mount();
    put(pool.path("f"), "secret");
    fs::set_permissions(
        pool.path("f"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let path = pool.path("f").display().to_string();
    let read = || {
        run(
            "setpriv",
            [
                "--reuid=4242",
                "--regid=4242",
                "--clear-groups",
                "cat",
                &path,
            ],
        )
    };
    assert!(!read().status.success());
    run("setfacl", ["-m", "u:4242:r", &path]).ok();
    assert_eq!(read().ok().stdout, "secret");
    let acl = |path: &Path| {
        run("getfacl", ["-c", "-n", "-p", path.to_str().unwrap()])
            .ok()
            .stdout
    };
    assert_eq!(acl(&pool.path("f")), acl(&pool.on(0, "f")));
    assert!(acl(&pool.path("f")).contains("user:4242:r--"));
    // The mask is the group part of the mode: a chmod narrows it.
    fs::set_permissions(
        pool.path("f"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    assert!(!read().status.success());

    fs::create_dir(pool.path("d")).unwrap();
    let dir = pool.path("d").display().to_string();
    run("setfacl", ["-d", "-m", "u:4242:rwx,g::r-x,o::---", &dir]).ok();
    let script = format!("umask 077; mkdir '{dir}/sub'; touch '{dir}/file'");
    run("sh", ["-c", &script]).ok();
    for name in ["d/sub", "d/file"] {
        let inherited = acl(&pool.path(name));
        assert!(inherited.contains("user:4242:rwx"), "{name}: {inherited}");
        assert_eq!(inherited, acl(&pool.on(0, name)));
    }
    assert!(acl(&pool.path("d/sub")).contains("default:user:4242:rwx"));
    // The umask does not apply where a default ACL does.
    assert_eq!(
        fs::metadata(pool.on(0, "d/sub")).unwrap().mode() & 0o777,
        0o770
    );
}

#[test]
fn record_locks_reach_the_branch_file() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let open = |path: &Path| open_with(path, 0).unwrap();
    let (through, beneath) = (open(&pool.path("f")), open(&pool.on(0, "f")));

    record_lock(&through, libc::F_WRLCK).unwrap();
    assert_eq!(errno(record_lock(&beneath, libc::F_RDLCK)), Errno::AGAIN);
    assert_eq!(
        errno(record_lock(&open(&pool.path("f")), libc::F_WRLCK)),
        Errno::AGAIN
    );
    record_lock(&through, libc::F_UNLCK).unwrap();
    record_lock(&beneath, libc::F_WRLCK).unwrap();
    assert_eq!(errno(record_lock(&through, libc::F_RDLCK)), Errno::AGAIN);
    record_lock(&beneath, libc::F_RDLCK).unwrap();
    record_lock(&through, libc::F_RDLCK).unwrap();
    record_lock(&beneath, libc::F_UNLCK).unwrap();

    // Closing the last description of an open file releases its lock on the branch.
    assert_eq!(errno(record_lock(&beneath, libc::F_WRLCK)), Errno::AGAIN);
    drop(through);
    crate::support::eventually(
        "the lock to go with its file",
        Duration::from_secs(5),
        || record_lock(&beneath, libc::F_WRLCK).is_ok(),
    );
}

#[test]
fn process_locks_reach_the_branch_file() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let through = open_with(pool.path("f"), 0).unwrap();
    let beneath = open_with(pool.on(0, "f"), 0).unwrap();
    process_lock(&through, libc::F_WRLCK).unwrap();
    assert_eq!(errno(record_lock(&beneath, libc::F_WRLCK)), Errno::AGAIN);
    // Any close of the file by its process drops the process's locks, as POSIX has it.
    drop(File::open(pool.path("f")).unwrap());
    crate::support::eventually(
        "the lock to go with a close",
        Duration::from_secs(5),
        || record_lock(&beneath, libc::F_WRLCK).is_ok(),
    );
    assert_eq!(errno(process_lock(&through, libc::F_RDLCK)), Errno::AGAIN);
}

#[test]
fn flock_reaches_the_branch_file() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let through = open_with(pool.path("f"), 0).unwrap();
    let beneath = open_with(pool.on(0, "f"), 0).unwrap();
    flock(&through, FlockOperation::LockExclusive).unwrap();
    assert_eq!(
        errno(flock(&beneath, FlockOperation::NonBlockingLockShared)),
        Errno::AGAIN
    );
    flock(&through, FlockOperation::LockShared).unwrap();
    flock(&beneath, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(
        errno(flock(&through, FlockOperation::NonBlockingLockExclusive)),
        Errno::AGAIN
    );
    flock(&beneath, FlockOperation::Unlock).unwrap();
    drop(through);
    crate::support::eventually(
        "the lock to go with its file",
        Duration::from_secs(5),
        || flock(&beneath, FlockOperation::NonBlockingLockExclusive).is_ok(),
    );
}

#[test]
fn a_waiting_lock_blocks_nobody_else() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let holder = open_with(pool.on(0, "f"), 0).unwrap();
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    let waiting = open_with(pool.path("f"), 0).unwrap();
    let waiter = std::thread::spawn(move || flock(&waiting, FlockOperation::LockExclusive));
    for number in 0..200 {
        put(pool.path(format!("other-{number}")), "served meanwhile");
    }
    assert!(!waiter.is_finished());
    flock(&holder, FlockOperation::Unlock).unwrap();
    waiter.join().unwrap().unwrap();
}

/// In passthrough the kernel keeps the first open file for all who open it later.
#[test]
fn flock_ends_with_its_file_though_others_have_it_open() {
    need_root!();
    for options in ["", "passthrough.io=off"] {
        let pool = Pool::tmpfs(1).option(options).mount();
        put(pool.path("f"), "");
        let first = File::open(pool.path("f")).unwrap();
        flock(&first, FlockOperation::NonBlockingLockExclusive).unwrap();
        let second = File::open(pool.path("f")).unwrap();
        let lock = || flock(&second, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(lock(), Err(Errno::WOULDBLOCK), "{options}");
        drop(first);
        // The kernel tells of the close a moment later.
        eventually("the lock is free", Duration::from_secs(10), || {
            lock().is_ok()
        });
    }
}

/// Directories are cloned to further branches while users change their attributes, and those of
/// the directories above: what users set stays.
#[test]
fn attributes_set_while_directories_are_cloned_stay() {
    need_root!();
    let pool = Pool::tmpfs(3).option("category.create=rand").mount();
    let rounds = 200;
    for round in 0..rounds {
        put(pool.on(2, format!("above/d{round}/below/f")), "");
    }
    let seconds = std::cell::Cell::new(1_000_000);
    let set_time = |path: &Path| {
        seconds.set(seconds.get() - 1);
        set_times(path, seconds.get());
        seconds.get()
    };
    for round in 0..rounds {
        let above = pool.path("above");
        let dir = above.join(format!("d{round}"));
        let below = dir.join("below");
        let mut set = Default::default();
        std::thread::scope(|scope| {
            let cloner =
                scope.spawn(|| (0..4).for_each(|file| put(below.join(format!("g{file}")), "")));
            loop {
                let mode = 0o700 + round % 8;
                fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
                set = (set_time(&dir), set_time(&above), mode);
                // Not once more after the last clone: that would put right what went wrong.
                if cloner.is_finished() {
                    break;
                }
            }
        });
        let time = |path: &Path| fs::metadata(path).unwrap().mtime();
        let mode = fs::metadata(&dir).unwrap().mode() & 0o7777;
        assert_eq!((time(&dir), time(&above), mode), set, "round {round}");
    }
}

/// A directory that is cloned to a branch ahead is at no time shown with the attributes of a clone
/// that is not finished.
#[test]
fn nobody_is_locked_out_while_a_directory_is_cloned() {
    need_root!();
    // Each look asks the branches.
    let pool = Pool::tmpfs(3)
        .option("category.create=rand,coherence=strict")
        .mount();
    let rounds = 300;
    for round in 0..rounds {
        put(pool.on(2, format!("d{round}/f")), "");
    }
    let root = pool.root().to_path_buf();
    for round in 0..rounds {
        let dir = root.join(format!("d{round}"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let user = Uid::from_raw(12_345);
                set_thread_res_uid(user, user, user).unwrap();
                while !done.load(Ordering::Relaxed) {
                    File::open(dir.join("f")).unwrap();
                    fs::read_dir(&dir)
                        .unwrap()
                        .for_each(|entry| drop(entry.unwrap()));
                }
            });
            (0..6).for_each(|file| put(dir.join(format!("g{file}")), ""));
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
    }
}
