//! Volumes that are served, and what lies on them.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use strandfs_volume::backing::{FileId, Made};
use strandfs_volume::{FILE_NAME, Status, loop_device, status};

use crate::answers::VolumeDevice;
use crate::failure::Failure;
use crate::mounts::{self, Mounted};
use crate::probe;

/// How long servers may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A volume that is mounted.
pub struct MountedVolume {
    /// Where it is served.
    pub mountpoint: PathBuf,
    /// The line in the kernel's list.
    pub mounted: Mounted,
    /// The backing file as the kernel's list of mounts has it.
    pub backing: PathBuf,
    /// What the server says; an error if it is dead.
    pub status: Result<Status, String>,
    /// The block devices over it.
    pub devices: Vec<VolumeDevice>,
}

impl MountedVolume {
    /// The file that is served.
    pub fn file(&self) -> PathBuf {
        self.mountpoint.join(FILE_NAME)
    }

    /// The backing file, if this very server has made it.
    pub fn made(&self) -> Option<Made> {
        let mut answer = [0; 64];
        let length = rustix::fs::getxattr(&self.mountpoint, status::MADE_ATTRIBUTE, &mut answer);
        let answer = answer.get(..length.ok()?)?;
        let (device, inode) = std::str::from_utf8(answer).ok()?.split_once(' ')?;
        let id: FileId = (device.parse().ok()?, inode.parse().ok()?);
        Made::find(&self.backing, id)
    }

    /// Whether a user who names `target` means this one.
    fn is_meant(&self, target: &Path) -> bool {
        let device = |device: &VolumeDevice| {
            device.device == target || device.mounts.iter().any(|mount| mount == target)
        };
        self.mountpoint == target
            || self.file() == target
            || self.backing == target
            || self.devices.iter().any(device)
    }
}

/// Whether a volume may be served here.
///
/// # Errors
/// One is served already.
pub fn is_free(mountpoint: &Path) -> Result<(), Failure> {
    match all()?.iter().any(|found| found.mountpoint == mountpoint) {
        true => Err(Failure::VolumeHeld {
            path: mountpoint.to_owned(),
            why: "a volume is served here already; choose another directory".to_owned(),
        }),
        false => Ok(()),
    }
}

/// Whether nothing is left of an earlier server of this backing file. Its lock ended with it, but
/// with passthrough those who use the volume go on to write to the file.
///
/// # Errors
/// Something is left.
pub fn is_unused(backing: &Path) -> Result<(), Failure> {
    let real = std::fs::canonicalize(backing).unwrap_or_else(|_| backing.to_owned());
    for found in all()?.iter().filter(|found| found.backing == real) {
        if let Err(why) = &found.status {
            return Err(Failure::VolumeUse {
                path: backing.to_owned(),
                why: format!(
                    "it is served at {} ({why}), and what was mounted there may still be writing \
                     to it: `strandfs volume detach {0}` first",
                    found.mountpoint.display()
                ),
            });
        }
    }
    Ok(())
}

/// Every volume that root or this user has mounted. Those of others are left out: which backing
/// file a mount names, and what is in it, is the word of whoever made it.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn all() -> Result<Vec<MountedVolume>, Failure> {
    let mounted = list_mounts()?;
    // All at once: those that do not answer take the same time.
    let asked: Vec<_> = mounted
        .iter()
        .filter(|it| is_volume(it))
        .map(|it| (it, ask(&it.mountpoint)))
        .collect();
    let found = asked
        .into_iter()
        .map(|(volume, asking)| look_at(volume, &mounted, answer_of(asking)));
    Ok(found.collect())
}

fn list_mounts() -> Result<Vec<Mounted>, Failure> {
    mounts::list().map_err(Failure::system("reading /proc/self/mountinfo"))
}

fn is_volume(mounted: &Mounted) -> bool {
    let kind = mounted.kind.strip_prefix(b"fuse.");
    kind == Some(strandfs_volume::SUBTYPE.as_bytes()) && mounted.stranger().is_none()
}

fn silent() -> String {
    format!(
        "its server does not answer within {} seconds",
        PATIENCE.as_secs()
    )
}

fn look_at(volume: &Mounted, mounted: &[Mounted], status: Result<Status, String>) -> MountedVolume {
    let mountpoint = volume.mountpoint.clone();
    let devices = loop_device::on(&mountpoint.join(FILE_NAME));
    let devices = devices.into_iter().map(|device| VolumeDevice {
        mounts: mounts_of(&device, mounted),
        device,
    });
    MountedVolume {
        status,
        mounted: volume.clone(),
        backing: volume.source.clone(),
        devices: devices.collect(),
        mountpoint,
    }
}

/// What is mounted of a device, whatever name it was mounted by, or of its partitions.
fn mounts_of(device: &Path, mounted: &[Mounted]) -> Vec<PathBuf> {
    let number = std::fs::metadata(device).map(|device| {
        let number = device.rdev();
        (rustix::fs::major(number), rustix::fs::minor(number))
    });
    let partition = format!("{}p", device.display());
    let here = mounted.iter().filter(|it| {
        number.as_ref().is_ok_and(|number| it.device == *number)
            || it.source.to_string_lossy().starts_with(&partition)
    });
    here.map(|it| it.mountpoint.clone()).collect()
}

type Asking = io::Result<JoinHandle<Result<Status, String>>>;

/// Asks on a thread of its own: several servers that are stuck take the time of one.
fn ask(mountpoint: &Path) -> Asking {
    let mountpoint = mountpoint.to_owned();
    std::thread::Builder::new().spawn(move || status_of(&mountpoint))
}

/// What the server said; the thread ends within [`PATIENCE`], because another process waits in its place.
fn answer_of(asking: Asking) -> Result<Status, String> {
    let asking = asking.map_err(|error| format!("its server could not be asked: {error}"))?;
    asking
        .join()
        .unwrap_or_else(|_| Err("its server could not be asked".to_owned()))
}

fn status_of(mountpoint: &Path) -> Result<Status, String> {
    let answer = probe::attribute(mountpoint, status::ATTRIBUTE, PATIENCE);
    let answer = answer.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOTCONN) => "its server is dead".to_owned(),
        None if error.kind() == io::ErrorKind::TimedOut => silent(),
        _ => error.to_string(),
    })?;
    serde_json::from_slice(&answer)
        .map_err(|error| format!("its server is of another version: {error}"))
}

/// The one that `target` names: by its backing file, its block device, or where it or what is on
/// it is mounted. `None` if no volume goes by that name.
///
/// # Errors
/// As [`all`].
pub fn find(target: &Path) -> Result<Option<MountedVolume>, Failure> {
    // What is mounted over a dead server cannot be resolved; its name is taken as it is.
    let real = std::fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    Ok(all()?.into_iter().find(|found| found.is_meant(&real)))
}

/// The backing file that `target` stands for, as for [`find`]; itself if no volume goes by that name.
/// Asks no server.
///
/// # Errors
/// As [`all`].
pub fn backing_of(target: &Path) -> Result<PathBuf, Failure> {
    let real = std::fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
    let mounted = list_mounts()?;
    let mut volumes = mounted
        .iter()
        .filter(|it| is_volume(it))
        .map(|it| look_at(it, &mounted, Err(String::new())));
    let meant = volumes.find(|found| found.is_meant(&real));
    Ok(meant.map_or(real, |found| found.backing))
}

/// Whether it is mounted there no more.
pub fn is_unmounted(mountpoint: &Path) -> bool {
    list_mounts().is_ok_and(|mounted| mounted.iter().all(|it| it.mountpoint != mountpoint))
}
