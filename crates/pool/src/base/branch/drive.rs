//! What a filesystem lies on, as far as the kernel says: copies of a filesystem have all in common
//! but this.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, major, minor};

use crate::base::branch::{Medium, open_to_ask};
use crate::base::sys;

/// Where the kernel lists block devices by number.
pub(super) const DEVICES: &str = "/sys/dev/block";

/// The block device below a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Drive {
    number: (u32, u32),
    /// Of the device with this number: the next one that gets the number has another. Kernels since
    /// 5.15 tell.
    sequence: Option<u64>,
    /// What the drive says of itself (with the number of the partition), a volume's UUID, or the file
    /// behind a loop device; the same wherever it is plugged in.
    name: Option<String>,
}

impl Drive {
    /// The one that holds the filesystem of `root`; none without a device, or with several.
    pub(super) fn of(root: BorrowedFd<'_>, device: (u32, u32), medium: &Medium) -> Option<Drive> {
        let devices = Path::new(DEVICES);
        Drive::at(device, devices).or_else(|| {
            // The kernel makes up the device numbers that btrfs shows.
            if medium.filesystem != "btrfs" {
                return None;
            }
            let count = sys::btrfs_devices(open_to_ask(root)?.as_fd())?;
            let stat = rustix::fs::stat(medium.source.as_str()).ok()?;
            let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
            let number = (major(stat.st_rdev), minor(stat.st_rdev));
            (count == 1 && is_device).then(|| Drive::at(number, devices))?
        })
    }

    fn at(number: (u32, u32), devices: &Path) -> Option<Drive> {
        let (major, minor) = number;
        let link = devices.join(format!("{major}:{minor}"));
        if major == 0 || !link.exists() {
            return None;
        }
        let device = link.canonicalize().ok()?;
        let partition = read(&device.join("partition"));
        let disk: PathBuf = match &partition {
            Some(_) => device.parent()?.to_path_buf(),
            None => device,
        };
        const NAMES: [&str; 6] = [
            "dm/uuid",
            "loop/backing_file",
            "wwid",
            "device/wwid",
            "serial",
            "device/serial",
        ];
        let name = NAMES.iter().find_map(|name| read(&disk.join(name)));
        let part = partition.map_or_else(String::new, |number| format!(", partition {number}"));
        Some(Drive {
            number,
            sequence: read(&disk.join("diskseq")).and_then(|text| text.parse().ok()),
            name: name.map(|name| name + &part),
        })
    }

    /// Its number.
    pub(super) fn number(&self) -> (u32, u32) {
        self.number
    }

    /// Whether the kernel still lists it, and not another one by its number.
    pub(super) fn is_there(&self) -> bool {
        let now = Drive::at(self.number, Path::new(DEVICES));
        now.is_some_and(|now| now.sequence == self.sequence)
    }

    /// Whether what `now` holds must be a copy, if it looks like what this one held: they are two
    /// drives. The same one comes back under another number once it is gone under the former.
    pub(super) fn is_another(&self, now: &Drive) -> bool {
        let says = |drive: &Drive| drive.name.clone();
        let names_differ = matches!((says(self), says(now)), (Some(a), Some(b)) if a != b);
        names_differ || self.number != now.number && self.sequence.is_some() && self.is_there()
    }
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn drives_are_known_by_what_they_say_of_themselves() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        put(&path("disk/device/wwid"), "naa.5000\n");
        put(&path("disk/diskseq"), "12\n");
        put(&path("disk/part/partition"), "3\n");
        put(&path("mapped/dm/uuid"), "LVM-abc\n");
        for (link, target) in [("8:0", "disk"), ("8:3", "disk/part"), ("253:0", "mapped")] {
            std::os::unix::fs::symlink(target, path(link)).unwrap();
        }
        let at = |number| Drive::at(number, dir.path()).unwrap();
        assert_eq!(at((8, 0)).name.as_deref(), Some("naa.5000"));
        assert_eq!(at((8, 3)).name.as_deref(), Some("naa.5000, partition 3"));
        assert_eq!(at((8, 3)).sequence, Some(12));
        assert_eq!(at((253, 0)).name.as_deref(), Some("LVM-abc"));
        assert_eq!(at((253, 0)).sequence, None);
        assert!(at((8, 0)).is_another(&at((8, 3))));
        assert!(!at((8, 0)).is_another(&at((8, 0))));
        assert_eq!(Drive::at((8, 2), dir.path()), None);
        assert_eq!(Drive::at((0, 40), dir.path()), None);
    }
}
