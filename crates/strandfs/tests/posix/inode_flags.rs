//! The ioctls of chattr(1) and lsattr(1): whom they obey, and what they leave alone.

use crate::{need_root, need_tool};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support::files::{errno, get, put};
use crate::support::{Kind, Pool};
use rustix::fs::IFlags;
use rustix::io::Errno;

fn flags(path: &Path) -> rustix::io::Result<IFlags> {
    rustix::fs::ioctl_getflags(File::open(path).unwrap())
}

fn set_flags(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    rustix::fs::ioctl_setflags(File::open(path).unwrap(), flags)
}

/// The filesystem's generation of the inode's number.
fn version(path: &Path) -> i32 {
    let file = File::open(path).unwrap();
    let mut value: libc::c_long = 0;
    // SAFETY: this request writes an int where the argument points to.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETVERSION, &raw mut value) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    value as i32
}

/// Whether flags can be set on branches here (a tmpfs of older kernels has none).
fn known_here(path: &Path) -> bool {
    let known = flags(path).is_ok();
    if !known {
        crate::support::say("skipped: no inode flags on tmpfs");
    }
    known
}

#[test]
fn nothing_on_a_read_only_branch_is_changed() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("8m"), "=RO")
        .branch(Kind::Tmpfs("8m"), "")
        .mount();
    put(pool.on(0, "f"), "x");
    for branch in [0, 1] {
        fs::create_dir(pool.on(branch, "d")).unwrap();
    }
    if !known_here(&pool.on(0, "f")) {
        return;
    }
    for name in ["f", "d"] {
        let refused = set_flags(&pool.path(name), IFlags::NOATIME);
        assert_eq!(refused, Err(Errno::ROFS), "{name}");
        for branch in pool.holders(name) {
            let flags = flags(&pool.on(branch, name)).unwrap();
            assert!(!flags.contains(IFlags::NOATIME), "{name} on {branch}");
        }
    }
}

#[test]
fn flags_of_a_directory_are_set_on_all_branches_and_taken_off_again() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    for branch in [0, 1] {
        fs::create_dir(pool.on(branch, "d")).unwrap();
    }
    if !known_here(&pool.on(0, "d")) {
        return;
    }
    for wanted in [IFlags::IMMUTABLE, IFlags::empty()] {
        let rest = flags(&pool.path("d"))
            .unwrap()
            .difference(IFlags::IMMUTABLE);
        set_flags(&pool.path("d"), rest | wanted).unwrap();
        for branch in [0, 1] {
            let found = flags(&pool.on(branch, "d")).unwrap() & IFlags::IMMUTABLE;
            assert_eq!(found, wanted, "on {branch}");
        }
    }
}

#[test]
fn a_change_of_flags_shows_in_the_change_time() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    if !known_here(&pool.on(0, "f")) {
        return;
    }
    let times = |path: &Path| {
        let stat = fs::metadata(path).unwrap();
        (stat.ctime(), stat.ctime_nsec())
    };
    let before = times(&pool.path("f"));
    std::thread::sleep(std::time::Duration::from_millis(20));
    set_flags(&pool.path("f"), IFlags::NOATIME).unwrap();
    let beneath = times(&pool.on(0, "f"));
    assert_ne!(beneath, before);
    assert_eq!(times(&pool.path("f")), beneath);
}

fn set_version(path: &Path, version: i32) -> io::Result<()> {
    let file = File::open(path)?;
    let value = libc::c_long::from(version);
    // SAFETY: this request reads an int where the argument points to.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETVERSION, &raw const value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel leaves this one to the filesystem to check.
#[test]
fn only_the_owner_changes_the_version_of_an_inode() {
    need_root!();
    need_tool!("mkfs.ext4");
    const OWNER: u32 = 1234;
    let pool = Pool::build().branch(Kind::Loop("ext4", "32m"), "").mount();
    put(pool.path("f"), "x");
    std::os::unix::fs::chown(pool.path("f"), Some(OWNER), None).unwrap();
    let (path, before) = (pool.path("f"), version(&pool.on(0, "f")));
    let set_as = |user: u32, version: i32| {
        let path = path.clone();
        let as_user = std::thread::spawn(move || {
            // SAFETY: an id by value; the raw call concerns this thread only, which ends soon.
            unsafe { libc::syscall(libc::SYS_setfsuid, user) };
            set_version(&path, version)
        });
        as_user.join().unwrap()
    };
    assert_eq!(errno(set_as(65534, 66)), Errno::PERM);
    assert_eq!(version(&pool.on(0, "f")), before);
    for (user, version_set) in [(OWNER, 77), (0, 88)] {
        match set_as(user, version_set) {
            Ok(()) => assert_eq!(version(&pool.on(0, "f")), version_set),
            // ext4 with checksums of its inodes has no such thing.
            refused => assert_eq!(errno(refused), Errno::NOTTY),
        }
    }
    // It is the same file as before.
    assert_eq!(get(&path), b"x");
}
