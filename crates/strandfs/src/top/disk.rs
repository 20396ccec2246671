//! What the block device below a branch has moved: passthrough traffic does not reach the server, but
//! the disk counts it. Nothing here asks a branch's filesystem, which may not answer.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::mounts::{Mounted, that_holds};

const SECTOR_BYTES: u64 = 512;

/// The counters of a device since it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// For how long it had something to do.
    pub busy_ms: u64,
}

/// The counters of the device that a directory is on; none where there is no single block device, as
/// for network filesystems, tmpfs, ZFS.
pub fn of(directory: &Path, mounts: &[Mounted]) -> Option<Disk> {
    let (major, minor) = device_of(directory, mounts)?;
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    parse(&text)
}

fn device_of(directory: &Path, mounts: &[Mounted]) -> Option<(u32, u32)> {
    let mount = that_holds(directory, mounts)?;
    if mount.device.0 != 0 {
        return Some(mount.device);
    }
    // btrfs has numbers of its own: what it was mounted from is the disk, or the first of several.
    if !mount.source.starts_with("/dev") {
        return None;
    }
    let source = fs::metadata(&mount.source).ok()?;
    let number = source
        .file_type()
        .is_block_device()
        .then(|| source.rdev())?;
    Some((rustix::fs::major(number), rustix::fs::minor(number)))
}

/// As Documentation/block/stat.rst of the kernel says: requests, merged, sectors and milliseconds of
/// reads, the same of writes, then requests in flight and milliseconds in which there were any.
fn parse(text: &str) -> Option<Disk> {
    let numbers: Vec<u64> = text
        .split_ascii_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    Some(Disk {
        read_bytes: numbers.get(2)?.saturating_mul(SECTOR_BYTES),
        written_bytes: numbers.get(6)?.saturating_mul(SECTOR_BYTES),
        busy_ms: *numbers.get(9)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn mounted(mountpoint: &str, source: &str, device: (u32, u32)) -> Mounted {
        Mounted {
            mountpoint: PathBuf::from(mountpoint),
            kind: b"ext4".to_vec(),
            source: PathBuf::from(source),
            device,
            owner: None,
            is_part: false,
        }
    }

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        let text = "  4061  12  166738  1052  870  943  25912  1440  0  1200  2492  0 0 0 0\n";
        let disk = parse(text).unwrap();
        assert_eq!(
            (disk.read_bytes, disk.written_bytes),
            (166_738 * 512, 25_912 * 512)
        );
        assert_eq!(disk.busy_ms, 1200);
        assert_eq!(parse("1 2 3"), None);
    }

    #[test]
    fn the_device_is_that_of_the_nearest_mount() {
        let mounts = [
            mounted("/", "/dev/root", (8, 1)),
            mounted("/mnt/a", "tmpfs", (0, 40)),
            mounted("/mnt/a", "/dev/sdb1", (8, 17)),
            mounted("/mnt/n", "server:/x", (0, 50)),
        ];
        let device = |path: &str| device_of(Path::new(path), &mounts);
        assert_eq!(device("/mnt/a/pool"), Some((8, 17)));
        assert_eq!(device("/mnt/ab"), Some((8, 1)));
        assert_eq!(device("/mnt/n/x"), None);
    }
}
