//! Mounts of the tests: private to the test's thread as root, looked up where that thread sees
//! them, undone lazily.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::UnshareFlags;
use strandfs_fuse::{Filesystem, MountOptions, Session, SessionConfig};

use super::{Kind, NAMESPACE, Run, is_root, run, say};

/// The filesystem types a mounted pool may show: one, but for stand-ins.
pub fn fstypes() -> String {
    std::env::var("STRANDFS_TEST_FSTYPE")
        .unwrap_or_else(|_| "fuse.strandfs,fuse.mergerfs".to_owned())
}

/// Gives the calling thread (and what it starts) its own mounts. Without root the tests share the
/// machine's mounts and rely on clean-up alone.
pub fn own_namespace() {
    if !is_root() || NAMESPACE.get() {
        return;
    }
    // SAFETY: only the mount namespace (and with it cwd and umask) stops being shared; no other
    // thread depends on sharing those with a test thread.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.expect("a mount namespace");
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).expect("private mounts");
    NAMESPACE.set(true);
    if !Path::new("/sys/fs/fuse/connections").join(".").exists()
        || fs::read_dir("/sys/fs/fuse/connections").is_ok_and(|mut dir| dir.next().is_none())
    {
        // For aborting hung connections; a system without it only loses that.
        run(
            "mount",
            ["-t", "fusectl", "none", "/sys/fs/fuse/connections"],
        );
    }
}

/// Every mount this thread sees: mountpoint, type, and the device's minor number.
pub fn list() -> Vec<(PathBuf, String, String)> {
    // Not /proc/self: that is the main thread's namespace.
    let text = strandfs_fuse::read_lossy("/proc/thread-self/mountinfo").expect("mountinfo");
    let mut found = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let Some(dash) = fields.iter().position(|field| *field == "-") else {
            continue;
        };
        let minor = fields[2].split(':').nth(1).unwrap_or_default().to_owned();
        found.push((unescape(fields[4]), fields[dash + 1].to_owned(), minor));
    }
    found
}

/// Blanks and backslashes stand as octal numbers in the kernel's lists.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes
            .get(at + 1..at + 4)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if bytes[at] == b'\\' => {
                out.push(byte);
                at += 4;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Whether a pool is what `mountpoint` shows.
pub fn is_mounted(mountpoint: &Path) -> bool {
    let list = list();
    let top = list.iter().rev().find(|(path, _, _)| path == mountpoint);
    top.is_some_and(|(_, kind, _)| fstypes().split(',').any(|known| known == kind))
}

/// Whether anything at all is mounted below `dir`.
pub fn any_below(dir: &Path) -> bool {
    list().iter().any(|(path, _, _)| path.starts_with(dir))
}

/// Unmounts the way an administrator does, or a user for a mount of their own.
pub fn unmount_cleanly(mountpoint: &Path) -> Run {
    let target = mountpoint.to_str().expect("a plain path");
    if is_root() {
        run("umount", [target])
    } else {
        run("fusermount3", ["-u", target])
    }
}

/// Lazily unmounts whatever is mounted at `path`, however often.
pub fn detach(path: &Path) {
    let times = list()
        .iter()
        .filter(|(mounted, _, _)| mounted == path)
        .count();
    for _ in 0..times {
        if unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
            run(
                "fusermount3",
                ["-u", "-z", path.to_str().unwrap_or_default()],
            );
        }
    }
}

/// Lazily unmounts whatever is mounted below `dir`, the last one first.
pub fn detach_below(dir: &Path) {
    for (path, _, _) in list().iter().rev() {
        if path.starts_with(dir) {
            detach(path);
        }
    }
}

/// Lazily unmounts the topmost mount at `path`, and only that.
pub fn detach_once(path: &Path) {
    unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).ok();
}

/// Where running FUSE connections can be aborted, by the minor number of their mount.
pub fn fuse_connections() -> PathBuf {
    PathBuf::from("/sys/fs/fuse/connections")
}

/// Aborts the connection of a pool: every request in flight fails at once.
pub fn abort(mountpoint: &Path, connections: &Path) {
    for (path, kind, minor) in list() {
        if path == mountpoint && kind.starts_with("fuse") {
            fs::write(connections.join(minor).join("abort"), "1").ok();
        }
    }
}

/// Makes the filesystem of one branch at `path`.
pub fn make_branch(path: &Path, kind: Kind) {
    let target = path.to_str().expect("a plain path");
    match kind {
        Kind::Dir => {}
        Kind::Tmpfs(_) if !is_root() => {}
        Kind::Tmpfs(options) => {
            let options = format!("mode=0755,size={options}");
            run(
                "mount",
                ["-t", "tmpfs", "-o", &options, "strandfs-branch", target],
            )
            .ok();
        }
        Kind::Loop(fstype, size) => {
            let image = format!("{target}.img");
            make_image(Path::new(&image), fstype, size);
            run("mount", ["-o", "loop", &image, target]).ok();
            fs::remove_dir(path.join("lost+found")).ok();
        }
        Kind::FewInodes(size, count) => make_ext4(path, size, &["-m", "0", "-N", count]),
        Kind::ForRoot(size, percent) => make_ext4(path, size, &["-m", percent]),
        Kind::Quota(size, limit) => {
            make_branch(path, Kind::Loop("btrfs", size));
            run("btrfs", ["quota", "enable", target]).ok();
            run("btrfs", ["qgroup", "limit", limit, "0/5", target]).ok();
        }
    }
}

fn make_ext4(path: &Path, size: &str, how: &[&str]) {
    let target = path.to_str().expect("a plain path");
    let image = format!("{target}.img");
    run("truncate", ["-s", size, &image]).ok();
    let line = ["-q", "-F"].iter().chain(how).copied().chain([&*image]);
    run("mkfs.ext4", line).ok();
    run("mount", ["-o", "loop", &image, target]).ok();
    fs::remove_dir(path.join("lost+found")).ok();
}

/// When filesystems of tests are made, whenever that is: all at once, as by a script that formats one
/// disk after the other. The roots of such disks look alike (ext4 and XFS: the same inode number,
/// generation and birth time).
const MADE: &str = "1700000000";

/// Makes a filesystem in a file, all of a type at the same second.
pub fn make_image(image: &Path, fstype: &str, size: &str) {
    let image = image.to_str().expect("a plain path");
    run("truncate", ["-s", size, image]).ok();
    let times = [
        format!("E2FSPROGS_FAKE_TIME={MADE}"),
        format!("SOURCE_DATE_EPOCH={MADE}"),
    ];
    let mkfs = format!("mkfs.{fstype}");
    let quiet: &[&str] = match fstype {
        "ext4" => &["-q", "-F", "-m", "0", image],
        _ => &["-q", "-f", image],
    };
    let line = times.iter().chain([&mkfs]).map(String::as_str);
    run("env", line.chain(quiet.iter().copied())).ok();
    if fstype == "xfs" {
        // Its mkfs does not always let itself be told the time.
        let root = run("xfs_db", ["-c", "sb 0", "-c", "p rootino", image]).ok();
        let root = root.stdout.trim().replace("rootino = ", "inode ");
        let born = "write v3.crtime.sec 1";
        run("xfs_db", ["-x", "-c", &root, "-c", born, image]).ok();
    }
}

/// Images of filesystems of one type whose roots were made in the same second; `place` is a
/// mountpoint to look at them.
pub fn same_second_images<const N: usize>(
    images: [&Path; N],
    (fstype, size): (&str, &str),
    place: &Path,
) {
    let born = |image: &&Path| {
        attach(image, place, "");
        let born = run("stat", ["-c", "%i %W", place.to_str().unwrap()]).ok();
        run("umount", [place]).ok();
        born.stdout
    };
    // The mkfs of btrfs goes by the clock: three of them may meet the end of a second.
    for _ in 0..20 {
        for image in images {
            fs::remove_file(image).ok();
            make_image(image, fstype, size);
        }
        let mut all = images.iter().map(born);
        let first = all.next();
        if all.all(|other| Some(other) == first) {
            return;
        }
    }
    panic!("{fstype} in one second: never");
}

/// Mounts an image through a loop device of its own.
pub fn attach(image: &Path, place: &Path, options: &str) {
    let options = format!("loop,{options}");
    let (image, place) = (image.to_str().unwrap(), place.to_str().unwrap());
    run("mount", ["-o", options.trim_end_matches(','), image, place]).ok();
}

/// The kernel's switch for FUSE over io_uring.
pub const URING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether FUSE over io_uring is to be had, after switching it on where the test may; it stays on,
/// for other tests may use it at the same time. Says so when it is not.
pub fn uring_is_on() -> bool {
    let is_on = || fs::read_to_string(URING_SWITCH).is_ok_and(|switch| switch.trim() == "Y");
    let on = is_on() || fs::write(URING_SWITCH, "Y").is_ok() && is_on();
    if !on {
        say("skipped: needs FUSE over io_uring (Linux 6.14) and root to switch it on");
    }
    on
}

/// Whether a loop-mounted filesystem of this type can be had here; says so when it cannot.
pub fn loop_works(fstype: &str) -> bool {
    let have = is_root()
        && super::command::have(&format!("mkfs.{fstype}"))
        && Path::new("/dev/loop-control").exists();
    if !have {
        say(&format!(
            "skipped: needs root, loop devices and mkfs.{fstype}"
        ));
    }
    have
}

/// Mounts a filesystem of the test's own, served by a thread of the test until it is unmounted.
pub fn serve(filesystem: impl Filesystem, name: &str, mountpoint: &Path) {
    let options = MountOptions {
        fsname: name.to_owned(),
        subtype: name.to_owned(),
        default_permissions: true,
        allow_other: true,
        ..MountOptions::default()
    };
    let config = SessionConfig::default();
    let session = Session::mount(Arc::new(filesystem), mountpoint, &options, config).unwrap();
    std::thread::spawn(move || session.serve());
    fs::metadata(mountpoint).unwrap();
}
