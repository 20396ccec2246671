//! What a branch is made of: its filesystem, and how long its medium takes to answer.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags, major, minor};
use strandfs_fuse::read_lossy;

/// How long a medium takes to answer, in classes of a power of ten or so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// No device at all: below a microsecond.
    Memory,
    /// Flash: about 100 microseconds.
    SolidState,
    /// A disk that has to seek: about 10 milliseconds.
    Rotating,
    /// Another machine: anything.
    Network,
    /// A server of this machine that may do anything (FUSE).
    Server,
    /// The kernel does not say.
    Unknown,
}

impl Latency {
    /// Whether a call may wait for something that does not end by itself.
    pub fn may_hang(self) -> bool {
        matches!(self, Self::Network | Self::Server)
    }

    /// Whether data are written, and as a rule read, without waiting for the device; `direct`: past the page cache.
    pub fn is_at_hand(self, direct: bool) -> bool {
        match self {
            Self::Memory => true,
            Self::SolidState => !direct,
            Self::Rotating | Self::Network | Self::Server | Self::Unknown => false,
        }
    }

    /// For people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::SolidState => "solid state",
            Self::Rotating => "rotating",
            Self::Network => "network",
            Self::Server => "server",
            Self::Unknown => "unknown",
        }
    }
}

/// The filesystem below a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Medium {
    /// Its type as in `/proc/mounts`; empty if its mount is out of sight.
    pub filesystem: String,
    /// What is mounted, as a device's path.
    pub source: String,
    /// How long it takes to answer.
    pub latency: Latency,
    /// Whatever it is, it takes no more than some 600 MB a second: a server moves more.
    pub is_outrun: bool,
}

impl Medium {
    /// Asks the kernel about the filesystem that holds `root`, which need not answer itself.
    pub fn of(root: BorrowedFd<'_>) -> Medium {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(root.as_fd(), c"", flags, StatxFlags::MNT_ID).ok();
        let mounts = read_lossy("/proc/self/mountinfo").unwrap_or_default();
        let mount = stat.and_then(|stat| line_of(&mounts, stat.stx_mnt_id));
        let (filesystem, source) = mount.unwrap_or_default();
        let device = stat.map(|stat| (stat.stx_dev_major, stat.stx_dev_minor));
        let devices = Path::new("/sys/dev/block");
        let latency = latency(&filesystem, &source, device, devices);
        let is_outrun = match latency {
            Latency::Rotating | Latency::Network => true,
            Latency::SolidState => device.is_some_and(|device| has_slow_link(devices, device)),
            Latency::Memory | Latency::Server | Latency::Unknown => false,
        };
        Medium {
            filesystem,
            source,
            latency,
            is_outrun,
        }
    }
}

impl Medium {
    /// Type and source of what is mounted on this path or nearest above it, and whether it is on the
    /// path itself; asks nothing but the kernel's list.
    pub fn by_name(path: &Path) -> Option<((String, String), bool)> {
        let mounts = read_lossy("/proc/self/mountinfo").ok()?;
        nearest(&mounts, path)
    }
}

/// The options of the filesystem that holds `root`, as the kernel's list has them; empty where it has none.
pub(super) fn options_of(root: BorrowedFd<'_>) -> String {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(root, c"", flags, StatxFlags::MNT_ID).ok();
    let mounts = read_lossy("/proc/thread-self/mountinfo").unwrap_or_default();
    let wanted = stat.map(|stat| stat.stx_mnt_id.to_string());
    let mut lines = mounts.lines();
    let line = lines.find(|line| line.split(' ').next() == wanted.as_deref());
    let options = line.and_then(|line| line.split(" - ").nth(1)?.split(' ').nth(2));
    options.unwrap_or_default().to_owned()
}

/// As [`Medium::by_name`]. Of several mounts on one path the last one is seen.
fn nearest(mounts: &str, path: &Path) -> Option<((String, String), bool)> {
    let path = escape(&path.to_string_lossy());
    let path = Path::new(&path);
    let mut found: Option<(usize, &str, bool)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(id), Some(point)) = (fields.next(), fields.nth(3)) else {
            continue;
        };
        let depth = Path::new(point).components().count();
        if path.starts_with(point) && found.is_none_or(|(deepest, ..)| depth >= deepest) {
            found = Some((depth, id, path == Path::new(point)));
        }
    }
    let (_, id, is_root) = found?;
    Some((line_of(mounts, id.parse().ok()?)?, is_root))
}

/// A path as the kernel's list has it: what would end a field is written as an octal number.
fn escape(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for character in path.chars() {
        match character {
            ' ' | '\t' | '\n' | '\\' | '#' => {
                escaped.push_str(&format!("\\{:03o}", u32::from(character)));
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// Type and source of the mount with this id: `id parent dev root point options [tags] - TYPE
/// SOURCE options`.
fn line_of(mounts: &str, id: u64) -> Option<(String, String)> {
    let wanted = id.to_string();
    let line = mounts
        .lines()
        .find(|line| line.split(' ').next() == Some(&wanted))?;
    let mut rest = line.split(" - ").nth(1)?.split(' ');
    Some((rest.next()?.to_owned(), rest.next()?.to_owned()))
}

fn latency(filesystem: &str, source: &str, device: Option<(u32, u32)>, devices: &Path) -> Latency {
    match filesystem {
        "tmpfs" | "ramfs" | "devtmpfs" => return Latency::Memory,
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "afs" | "virtiofs" => {
            return Latency::Network;
        }
        kind if matches!(kind, "fuse" | "fuseblk") || kind.starts_with("fuse.") => {
            return Latency::Server;
        }
        _ => {}
    }
    // btrfs and ZFS show a device number of their own making; their source may be a device.
    let by_source = || {
        let device = rustix::fs::stat(source).ok()?.st_rdev;
        rotates(devices, (major(device), minor(device)))
    };
    let known = device.and_then(|device| rotates(devices, device));
    match known.or_else(by_source) {
        Some(true) => Latency::Rotating,
        Some(false) => Latency::SolidState,
        None => Latency::Unknown,
    }
}

/// Whether a block device has to seek; a partition says what its disk says.
fn rotates(devices: &Path, (major, minor): (u32, u32)) -> Option<bool> {
    let device: PathBuf = devices.join(format!("{major}:{minor}"));
    let places = [
        device.join("queue/rotational"),
        device.join("../queue/rotational"),
    ];
    let text = places
        .iter()
        .find_map(|place| std::fs::read_to_string(place).ok())?;
    Some(text.trim() == "1")
}

/// Whether a block device is plugged into SATA, USB or an SD slot: its place in the tree of devices
/// says so.
fn has_slow_link(devices: &Path, (major, minor): (u32, u32)) -> bool {
    let Ok(place) = devices.join(format!("{major}:{minor}")).canonicalize() else {
        return false;
    };
    place.components().any(|part| {
        let part = part.as_os_str().as_encoded_bytes();
        ["ata", "usb", "mmc"].iter().any(|link| {
            let number = part.strip_prefix(link.as_bytes());
            number
                .and_then(<[u8]>::first)
                .is_some_and(u8::is_ascii_digit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 256 KiB at a time went through two threads on any medium, and took 150 us where 192 KiB took 50.
    #[test]
    fn large_requests_wait_for_no_device_in_memory_nor_for_flash_behind_the_page_cache() {
        use Latency::{Memory, Network, Rotating, Server, SolidState, Unknown};
        assert!(Memory.is_at_hand(true) && SolidState.is_at_hand(false));
        assert!(!SolidState.is_at_hand(true));
        for waits in [Rotating, Network, Server, Unknown] {
            assert!(!waits.is_at_hand(false), "{waits:?}");
        }
    }

    #[test]
    fn media_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        for (path, rotational) in [("disk/queue", "1\n"), ("flash/queue", "0\n")] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
            std::fs::write(dir.path().join(path).join("rotational"), rotational).unwrap();
        }
        std::fs::create_dir(dir.path().join("disk/part")).unwrap();
        for (link, target) in [("8:0", "disk"), ("8:1", "disk/part"), ("259:0", "flash")] {
            std::os::unix::fs::symlink(target, dir.path().join(link)).unwrap();
        }
        let of = |filesystem, device| latency(filesystem, "none", Some(device), dir.path());
        assert_eq!(of("ext4", (8, 0)), Latency::Rotating);
        assert_eq!(of("ext4", (8, 1)), Latency::Rotating);
        assert_eq!(of("xfs", (259, 0)), Latency::SolidState);
        assert_eq!(of("zfs", (0, 40)), Latency::Unknown);
        assert_eq!(of("tmpfs", (0, 40)), Latency::Memory);
        assert_eq!(of("nfs4", (0, 40)), Latency::Network);
        assert_eq!(of("fuse.sshfs", (0, 40)), Latency::Server);
    }

    #[test]
    fn the_link_of_a_device_is_seen_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        for (number, place) in [
            (
                "8:0",
                "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda",
            ),
            (
                "8:16",
                "pci0000:00/0000:00:14.0/usb2/2-3/2-3:1.0/host4/block/sdb",
            ),
            ("259:0", "pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1"),
            (
                "179:0",
                "platform/fe340000.mmc/mmc_host/mmc0/mmc0:aaaa/block/mmcblk0",
            ),
        ] {
            std::fs::create_dir_all(dir.path().join(place)).unwrap();
            std::os::unix::fs::symlink(place, dir.path().join(number)).unwrap();
        }
        let slow = |device| has_slow_link(dir.path(), device);
        assert!(slow((8, 0)) && slow((8, 16)) && slow((179, 0)));
        assert!(!slow((259, 0)) && !slow((9, 9)));
    }

    #[test]
    fn the_mount_of_a_path_is_found_by_its_name() {
        let mounts = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            21 20 0:5 / /mnt/a\\040b rw - fuse.sshfs nas: rw\n\
            22 20 0:6 / /mnt/a rw - tmpfs none rw\n\
            23 22 0:7 / /mnt/a rw - nfs4 nas:/x rw\n";
        let of = |path| nearest(mounts, Path::new(path)).unwrap();
        let mount = |kind: &str, source: &str| (kind.to_owned(), source.to_owned());
        assert_eq!(of("/mnt/a b"), (mount("fuse.sshfs", "nas:"), true));
        assert_eq!(of("/mnt/a b/sub"), (mount("fuse.sshfs", "nas:"), false));
        assert_eq!(of("/mnt/a"), (mount("nfs4", "nas:/x"), true));
        assert_eq!(of("/mnt/ab"), (mount("ext4", "/dev/sda1"), false));
    }

    #[test]
    fn a_mount_is_found_by_its_id() {
        let mounts = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            120 20 0:5 / /mnt/a rw shared:5 master:1 - tmpfs none rw\n";
        let found = line_of(mounts, 120);
        assert_eq!(found, Some(("tmpfs".to_owned(), "none".to_owned())));
        assert_eq!(line_of(mounts, 2), None);
    }
}
