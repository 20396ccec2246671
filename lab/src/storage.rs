//! What holds the bytes below a path: filesystem, mount options, device. Read from the kernel, so
//! that a figure can be traced to hardware, and RAM be told from a disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Loop devices on loop devices end somewhere.
const DEEPEST_CHAIN: usize = 8;
/// Filesystems whose bytes come over a network.
const NETWORK: &[&str] = &[
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "ceph",
    "afs",
    "lustre",
    "gfs2",
    "ocfs2",
    "glusterfs",
];
/// The same served by a program: `fuse.` and one of these, or a beginning of it.
const FUSE_NETWORK: &[&str] = &[
    "sshfs",
    "glusterfs",
    "ceph-fuse",
    "rclone",
    "s3fs",
    "juicefs",
    "mfs",
    "davfs",
    "curlftpfs",
    "gcsfuse",
    "mountpoint-s3",
    "smbnetfs",
    "moosefs",
    "nfs",
    crate::far::SUBTYPE,
];

/// What kind of thing it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// RAM: tmpfs, ramfs, zram, or an image that lies in one of them.
    Memory,
    /// A device of this machine.
    Local,
    /// Another machine.
    Network,
    /// A program of this machine (FUSE) or a filesystem without a device that can be named.
    Other,
}

/// How a device is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // The names say it.
pub enum Bus {
    Nvme,
    Sata,
    Sas,
    Usb,
    Mmc,
    /// A virtual machine's: what it says of itself is what the hypervisor says.
    Virtual,
}

impl Bus {
    /// From a disk's place in sysfs: `/sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/.../block/sda`.
    fn of(place: &str) -> Option<Self> {
        let parts = || place.split('/');
        let has = |beginning: &str| {
            parts().any(|it| {
                let rest = it.strip_prefix(beginning);
                rest.is_some_and(|it| it.starts_with(|it: char| it.is_ascii_digit()))
            })
        };
        // A disk in a USB case has both: what holds it back is the nearer one.
        match () {
            () if has("usb") => Some(Self::Usb),
            () if has("nvme") => Some(Self::Nvme),
            () if has("virtio") => Some(Self::Virtual),
            () if has("ata") => Some(Self::Sata),
            () if has("end_device-") => Some(Self::Sas),
            () if has("mmc") => Some(Self::Mmc),
            () => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nvme => "NVMe",
            Self::Sata => "SATA",
            Self::Sas => "SAS",
            Self::Usb => "USB",
            Self::Mmc => "MMC",
            Self::Virtual => "virtual",
        }
    }
}

/// What is known about it. Empty strings and `None`: the kernel does not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// `ext4`, `fuse.sshfs`.
    pub filesystem: String,
    /// Mount options and those of the superblock.
    pub mount_options: String,
    /// What was mounted: `/dev/sda1`, `host:/export`.
    pub source: String,
    /// What kind of thing holds the bytes in the end.
    pub medium: Medium,
    /// The device below everything, past loop devices, as in /proc/diskstats: `sda`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its model, as it names itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Its firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Whether it turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// How it is attached, as far as its place in sysfs tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<Bus>,
    /// The IO scheduler in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Requests its queue takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
    /// Free space, bytes.
    pub free_bytes: u64,
    /// Size of the filesystem, bytes.
    pub total_bytes: u64,
}

impl Storage {
    /// Looks at what holds `path`.
    ///
    /// # Errors
    /// Those of stat(2) and statvfs(3) on it.
    pub fn of(path: &Path) -> Result<Self, BenchError> {
        let looked = fs::metadata(path).map_err(BenchError::io("looking at", path))?;
        let space =
            rustix::fs::statvfs(path).map_err(BenchError::io("asking for space at", path))?;
        let mount = mount_of(path, looked.dev()).unwrap_or_default();
        let bottom = bottom_device(&mount, DEEPEST_CHAIN);
        let medium = medium(&mount.filesystem, &bottom);
        let device = match bottom {
            Bottom::Device(name) => Some(name),
            _ => None,
        };
        let fact = |file: &str| {
            let name = device.as_ref()?;
            let text = fs::read_to_string(queue_owner(name).join(file)).ok()?;
            let text = text.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        Ok(Self {
            medium,
            model: fact("device/model"),
            firmware: fact("device/firmware_rev").or_else(|| fact("device/rev")),
            rotational: fact("queue/rotational").map(|it| it == "1"),
            bus: device.as_deref().and_then(bus),
            scheduler: fact("queue/scheduler").map(|it| chosen(&it)),
            queue_depth: fact("queue/nr_requests").and_then(|it| it.parse().ok()),
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
            total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            filesystem: mount.filesystem,
            mount_options: mount.options,
            source: mount.source,
            device,
        })
    }

    /// What kind of device it is: `NVMe, solid state`, `SATA, rotating`; `None` where the kernel says neither.
    pub fn kind(&self) -> Option<String> {
        let turns = self.rotational.map(|turns| match turns {
            true => "rotating",
            false => "solid state",
        });
        match (self.bus, turns) {
            (None, None) => None,
            (Some(Bus::Virtual), Some(turns)) => Some(format!("virtual, said to be {turns}")),
            (bus, turns) => {
                let words: Vec<&str> = bus.map(Bus::name).into_iter().chain(turns).collect();
                Some(words.join(", "))
            }
        }
    }

    /// One line for people: `ext4 on sda (Samsung SSD 870, solid state)`.
    pub fn describe(&self) -> String {
        let mut text = self.filesystem.clone();
        if let Some(device) = &self.device {
            text.push_str(" on ");
            text.push_str(device);
        } else if self.medium == Medium::Network {
            text.push_str(" from ");
            text.push_str(&self.source);
        }
        let kind = self.kind();
        let model = self.model.as_deref().into_iter();
        let words: Vec<&str> = model.chain(kind.as_deref()).collect();
        if !words.is_empty() {
            text.push_str(&format!(" ({})", words.join(", ")));
        }
        text
    }
}

#[derive(Clone, Debug, Default)]
struct Mount {
    filesystem: String,
    options: String,
    source: String,
}

/// Where the bytes end up.
enum Bottom {
    Memory,
    Device(String),
    None,
}

fn medium(filesystem: &str, bottom: &Bottom) -> Medium {
    let network = NETWORK.contains(&filesystem)
        || filesystem
            .strip_prefix("fuse.")
            .is_some_and(|kind| FUSE_NETWORK.iter().any(|known| kind.starts_with(known)));
    match bottom {
        _ if network => Medium::Network,
        Bottom::Memory => Medium::Memory,
        Bottom::Device(_) => Medium::Local,
        Bottom::None => Medium::Other,
    }
}

/// The mount that shows `path`: of those with its device number the one with the longest
/// mountpoint. (btrfs gives subvolumes other numbers than mountinfo: then only the path counts.)
fn mount_of(path: &Path, device: u64) -> Option<Mount> {
    let path = fs::canonicalize(path).ok()?;
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    // Mountpoints have any names, also such as are no UTF-8.
    let text = fs::read("/proc/thread-self/mountinfo").ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut best: Option<(bool, usize, Mount)> = None;
    for line in text.lines() {
        let Some((number_there, point, mount)) = parse(line) else {
            continue;
        };
        if !path.starts_with(&point) {
            continue;
        }
        let rank = (number_there == number, point.as_os_str().len());
        // Equal: mounted over each other, the later one is seen.
        if best.as_ref().is_none_or(|it| (it.0, it.1) <= rank) {
            best = Some((rank.0, rank.1, mount));
        }
    }
    best.map(|it| it.2)
}

/// Device number, mountpoint and the rest of a line of mountinfo (proc(5)).
fn parse(line: &str) -> Option<(String, PathBuf, Mount)> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (number, _root, point) = (left.next()?, left.next()?, left.next()?);
    let options = left.next()?;
    let mut right = right.split(' ');
    let (filesystem, source) = (right.next()?, right.next()?);
    let mount = Mount {
        filesystem: filesystem.to_owned(),
        options: format!("{options};{}", right.next().unwrap_or_default()),
        source: unescape(source),
    };
    Some((number.to_owned(), PathBuf::from(unescape(point)), mount))
}

/// Where something is mounted.
pub(crate) fn mountpoints() -> Vec<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let fields = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    fields.map(|it| PathBuf::from(unescape(it))).collect()
}

/// Blanks and backslashes stand as octal numbers in the kernel's lists.
fn unescape(field: &str) -> String {
    field
        .replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// The files of the loop devices below `path`, from above: their pages hold the same data again.
pub fn images(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut at = path.to_path_buf();
    while found.len() < DEEPEST_CHAIN {
        let mount = fs::metadata(&at)
            .ok()
            .and_then(|it| mount_of(&at, it.dev()));
        let image = mount.and_then(|it| backing_file(&block_device(&it)?));
        let Some(image) = image else { break };
        found.push(image.clone());
        at = image;
    }
    found
}

/// Where sysfs describes the block device that was mounted.
fn block_device(mount: &Mount) -> Option<PathBuf> {
    if !mount.source.starts_with("/dev/") {
        return None;
    }
    let number = fs::metadata(&mount.source).ok()?.rdev();
    let link = format!(
        "/sys/dev/block/{}:{}",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    );
    fs::canonicalize(link).ok()
}

/// The file of a loop device.
fn backing_file(device: &Path) -> Option<PathBuf> {
    let file = fs::read_to_string(device.join("loop/backing_file")).ok()?;
    Some(PathBuf::from(file.trim_end()))
}

/// Follows loop devices down to a device that has no file below it.
fn bottom_device(mount: &Mount, depth: usize) -> Bottom {
    if matches!(mount.filesystem.as_str(), "tmpfs" | "ramfs" | "devtmpfs") {
        return Bottom::Memory;
    }
    let Some(place) = block_device(mount) else {
        return Bottom::None;
    };
    if let Some(file) = backing_file(&place) {
        let below = fs::metadata(&file)
            .ok()
            .and_then(|it| mount_of(&file, it.dev()));
        return match below {
            Some(below) if depth > 0 => bottom_device(&below, depth - 1),
            _ => Bottom::None,
        };
    }
    match place.file_name().and_then(|it| it.to_str()) {
        Some(name) if name.starts_with("zram") || name.starts_with("ram") => Bottom::Memory,
        Some(name) => Bottom::Device(name.to_owned()),
        None => Bottom::None,
    }
}

fn bus(device: &str) -> Option<Bus> {
    let place = fs::canonicalize(queue_owner(device)).ok()?;
    Bus::of(place.to_str()?)
}

/// The directory in sysfs that describes a device: of a partition, the disk's.
fn queue_owner(name: &str) -> PathBuf {
    let own = PathBuf::from("/sys/class/block").join(name);
    match fs::canonicalize(&own) {
        Ok(place) if place.join("partition").exists() => {
            place.parent().map_or(own, Path::to_path_buf)
        }
        _ => own,
    }
}

/// The word in brackets of `none [mq-deadline] kyber`.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|it| it.1.split_once(']'));
    inside.map_or_else(|| text.to_owned(), |it| it.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_taken_apart() {
        let line = "36 35 98:0 /mnt1 /mnt\\040two rw,noatime master:1 - ext3 /dev/root rw,errors=x";
        let (number, point, mount) = parse(line).unwrap();
        assert_eq!((number.as_str(), point), ("98:0", "/mnt two".into()));
        assert_eq!(mount.options, "rw,noatime;rw,errors=x");
        assert_eq!(
            (mount.filesystem.as_str(), mount.source.as_str()),
            ("ext3", "/dev/root")
        );
    }

    #[test]
    fn names_tell_networks_from_local_programs() {
        for (filesystem, expected) in [
            ("nfs4", Medium::Network),
            ("fuse.sshfs", Medium::Network),
            ("fuse.glusterfs", Medium::Network),
            ("fuse.strandfs", Medium::Other),
            ("overlay", Medium::Other),
        ] {
            assert_eq!(medium(filesystem, &Bottom::None), expected, "{filesystem}");
        }
        assert_eq!(medium("tmpfs", &Bottom::Memory), Medium::Memory);
    }

    #[test]
    fn proc_has_neither_device_nor_ram_and_shm_is_ram() {
        assert_eq!(
            Storage::of(Path::new("/proc")).unwrap().medium,
            Medium::Other
        );
        if let Ok(shm) = Storage::of(Path::new("/dev/shm"))
            && shm.filesystem == "tmpfs"
        {
            assert_eq!(shm.medium, Medium::Memory);
            assert_eq!(shm.device, None);
        }
    }

    #[test]
    fn buses_are_told_apart_by_where_the_device_is() {
        for (place, expected) in [
            (
                "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda",
                Some(Bus::Sata),
            ),
            (
                "pci0000:00/0000:02:00.0/nvme/nvme0/nvme0n1",
                Some(Bus::Nvme),
            ),
            (
                "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdc",
                Some(Bus::Usb),
            ),
            (
                "pci0000:00/host0/port-0:0/end_device-0:0/target0:0:0/block/sdb",
                Some(Bus::Sas),
            ),
            (
                "platform/soc/mmc_host/mmc0/mmc0:0001/block/mmcblk0",
                Some(Bus::Mmc),
            ),
            (
                "pci0000:00/0000:00:04.0/virtio1/block/vda",
                Some(Bus::Virtual),
            ),
            ("virtual/block/loop0", None),
        ] {
            assert_eq!(
                Bus::of(&format!("/sys/devices/{place}")),
                expected,
                "{place}"
            );
        }
    }

    #[test]
    fn the_scheduler_in_brackets_counts() {
        assert_eq!(chosen("none [mq-deadline] kyber"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
    }
}
