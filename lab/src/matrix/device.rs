//! Whether a device that somebody named may be overwritten. Everything here errs towards no: what
//! cannot be looked at is refused.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::BenchError;
use crate::tool;

/// Exit code of `blkid -p` for "nothing known found".
const BLKID_NOTHING: i32 = 2;

/// A block device by number: its names are many, and some change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number {
    major: u32,
    minor: u32,
}

impl Number {
    /// Of the device at `path`; `None` for what is no block device.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        found.file_type().is_block_device().then(|| Self {
            major: rustix::fs::major(found.rdev()),
            minor: rustix::fs::minor(found.rdev()),
        })
    }

    /// As the kernel's lists show it.
    fn text(self) -> String {
        format!("{}:{}", self.major, self.minor)
    }

    /// Where sysfs describes it.
    fn sysfs(self) -> PathBuf {
        Path::new("/sys/dev/block").join(self.text())
    }

    /// The disk that a partition is a part of.
    fn disk(self) -> Option<Self> {
        let place = fs::canonicalize(self.sysfs()).ok()?;
        place.join("partition").exists().then_some(())?;
        let text = fs::read_to_string(place.parent()?.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }

    /// Its size in bytes.
    fn size(self) -> Option<u64> {
        let sectors = fs::read_to_string(self.sysfs().join("size")).ok()?;
        Some(sectors.trim().parse::<u64>().ok()? * SECTOR)
    }
}

/// Sectors in sysfs are of this size whatever the device's are.
const SECTOR: u64 = 512;

/// Refuses a device that holds anything, or that anything uses or is to use.
///
/// # Errors
/// [`BenchError::Usage`] with what was found and, where there is a way, what to do about it.
pub fn check_unused(path: &Path, needed: u64) -> Result<(), BenchError> {
    let refuse = |why: &str| BenchError::Usage(format!("{}: {why}", path.display()));
    if !path.is_absolute() {
        return Err(refuse("name the device by its whole path, /dev/…"));
    }
    fs::metadata(path).map_err(BenchError::io("looking at", path))?;
    let number = Number::of(path).ok_or_else(|| refuse("it is no block device"))?;
    let place = number.sysfs();
    let says = |file: &str| fs::read_to_string(place.join(file)).unwrap_or_default();
    if says("ro").trim() != "0" {
        return Err(refuse("it is read-only"));
    }
    if let Some(point) = mounted_at(number) {
        return Err(refuse(&format!("it is mounted at {point}")));
    }
    if swaps().contains(&number) {
        return Err(refuse("it is swap space in use"));
    }
    if let Some(holder) = first_entry(&place.join("holders")) {
        return Err(refuse(&format!("{holder} is built on it")));
    }
    if has_partitions(&place) {
        return Err(refuse("it has partitions; name an unused one of them"));
    }
    if let Some(line) = in_fstab(number, "/etc/fstab") {
        return Err(refuse(&format!("/etc/fstab names it: {line}")));
    }
    check_claims(path)?;
    check_signature(path)?;
    let size = number.size().unwrap_or(0);
    if size < needed {
        return Err(refuse(&format!(
            "it has {size} bytes, {needed} are needed; give a smaller --size"
        )));
    }
    Ok(())
}

/// Refuses a device on which something else has an exclusive hold: a mount in another namespace,
/// RAID, LVM, another program that makes a filesystem; or that a loop device lies on.
///
/// # Errors
/// [`BenchError::Usage`] for a device in use or without permission.
pub fn check_claims(path: &Path) -> Result<(), BenchError> {
    // The kernel's claim does not tell of these.
    if let Some(name) = Number::of(path).and_then(loop_above) {
        let why = format!("{}: the loop device {name} lies on it", path.display());
        return Err(BenchError::Usage(why));
    }
    let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path);
    opened.map(drop).map_err(|error| {
        let busy = error.kind() == std::io::ErrorKind::ResourceBusy;
        let why = match busy {
            true => "something uses it".to_owned(),
            false => error.to_string(),
        };
        BenchError::Usage(format!("{}: {why}", path.display()))
    })
}

/// Anything blkid knows on the device: a filesystem, a partition table, a RAID or LVM member.
fn check_signature(path: &Path) -> Result<(), BenchError> {
    let refuse = |why: String| BenchError::Usage(format!("{}: {why}", path.display()));
    let args = ["-p", "-o", "export"].map(std::ffi::OsStr::new);
    let found = tool::output("blkid", args.into_iter().chain([path.as_os_str()]))
        .map_err(|error| refuse(format!("whether it is empty cannot be told: {error}")))?;
    match found.code {
        Some(BLKID_NOTHING) if found.stdout.trim().is_empty() => Ok(()),
        Some(0) => {
            let kind = found
                .stdout
                .lines()
                .find_map(|line| line.strip_prefix("TYPE=").or(line.strip_prefix("PTTYPE=")));
            Err(refuse(format!(
                "it holds something ({}); if nobody needs it, run `wipefs -a {}` first",
                kind.unwrap_or("of a kind blkid does not name"),
                path.display()
            )))
        }
        _ => Err(refuse(format!(
            "whether it is empty cannot be told: blkid says {:?}",
            found.stderr.trim()
        ))),
    }
}

/// Where it is mounted, as this process sees it.
fn mounted_at(number: Number) -> Option<String> {
    // Mountpoints have any names, also such as are no UTF-8.
    let text = fs::read("/proc/thread-self/mountinfo").ok()?;
    let text = String::from_utf8_lossy(&text);
    let own = number.text();
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        // btrfs shows a number of its own; its source still names the device.
        let source = fields.iter().position(|it| *it == "-").map(|dash| dash + 2);
        let source = source.and_then(|at| fields.get(at)).map(Path::new);
        let same =
            fields.get(2) == Some(&own.as_str()) || source.and_then(Number::of) == Some(number);
        same.then(|| fields.get(4).copied().unwrap_or_default().to_owned())
    })
}

/// The loop device that lies on this device, on a partition of it, or on the disk it is a part of; also one
/// whose device cannot be looked at.
fn loop_above(number: Number) -> Option<String> {
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let family = |it: Number| [Some(it), it.disk()].into_iter().flatten();
    let lies_here = |backing: &Path| match Number::of(backing) {
        Some(its) => family(its).any(|it| family(number).any(|own| own == it)),
        None => {
            let is_file = backing.starts_with("/dev/shm") || backing.exists();
            backing.starts_with("/dev") && !is_file
        }
    };
    let mut loops = blocks.filter_map(|block| {
        let backing = fs::read_to_string(block.path().join("loop/backing_file")).ok()?;
        lies_here(Path::new(backing.trim_end_matches('\n')))
            .then(|| block.file_name().to_string_lossy().into_owned())
    });
    loops.next()
}

fn swaps() -> Vec<Number> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let names = text.lines().skip(1);
    names
        .filter_map(|line| Number::of(Path::new(line.split_whitespace().next()?)))
        .collect()
}

fn first_entry(dir: &Path) -> Option<String> {
    let entry = fs::read_dir(dir).ok()?.flatten().next()?;
    Some(entry.file_name().to_string_lossy().into_owned())
}

fn has_partitions(place: &Path) -> bool {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| entry.path().join("partition").exists())
}

/// The line of an fstab that names the device, by path or by tag.
fn in_fstab(number: Number, fstab: &str) -> Option<String> {
    let text = fs::read_to_string(fstab).ok()?;
    text.lines().map(str::trim).find_map(|line| {
        let spec = line.split_whitespace().next()?;
        let named = device_of_spec(spec)?;
        (Number::of(&named) == Some(number)).then(|| line.to_owned())
    })
}

/// The device that the first field of a line of fstab means (fstab(5)).
fn device_of_spec(spec: &str) -> Option<PathBuf> {
    let Some((tag, value)) = spec.split_once('=') else {
        return spec.starts_with('/').then(|| PathBuf::from(spec));
    };
    let dir = match tag {
        "UUID" => "by-uuid",
        "LABEL" => "by-label",
        "PARTUUID" => "by-partuuid",
        "PARTLABEL" => "by-partlabel",
        "ID" => "by-id",
        _ => return None,
    };
    Some(
        Path::new("/dev/disk")
            .join(dir)
            .join(value.trim_matches('"')),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_directories_and_short_names_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (path, said) in [
            (file.path(), "no block device"),
            (Path::new("/tmp"), "no block device"),
            (Path::new("/dev/null"), "no block device"),
            (Path::new("sda"), "whole path"),
        ] {
            let error = check_unused(path, 0).unwrap_err();
            assert!(matches!(error, BenchError::Usage(_)));
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    /// The filesystem on it was mounted, and lost.
    #[test]
    fn a_device_that_a_loop_device_lies_on_is_refused() {
        use strandfs_volume::loop_device;
        if !rustix::process::geteuid().is_root() || loop_device::check().is_err() {
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let below = crate::loop_image::LoopDevice::attach(file.path()).unwrap();
        check_unused(below.path(), 0).unwrap();
        let above = crate::loop_image::LoopDevice::attach(below.path()).unwrap();
        let said = check_unused(below.path(), 0).unwrap_err().to_string();
        let name = above.path().file_name().unwrap().to_string_lossy();
        assert!(said.contains(&format!("{name} lies on it")), "{said}");
    }

    #[test]
    fn fields_of_fstab_name_devices_by_path_and_by_tag() {
        for (spec, device) in [
            ("/dev/sda1", Some("/dev/sda1")),
            ("UUID=12-34", Some("/dev/disk/by-uuid/12-34")),
            ("LABEL=\"a\"", Some("/dev/disk/by-label/a")),
            ("tmpfs", None),
            ("host:/export", None),
            ("#", None),
        ] {
            assert_eq!(device_of_spec(spec).as_deref(), device.map(Path::new));
        }
    }
}
