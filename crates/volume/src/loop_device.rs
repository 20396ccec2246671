//! Block devices over volumes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, Stat};
use strandfs_fuse::Errno;

use crate::error::VolumeError;
use crate::sys;

const CONTROL: &str = "/dev/loop-control";
/// How often somebody else may be faster to take a free device.
const ATTEMPTS: usize = 64;
/// How many devices that do not discard are made anew.
const RENEWALS: usize = 8;
/// Pause between looks whether a device has been let go of.
const LOOK: Duration = Duration::from_millis(10);

/// A loop device over a volume.
#[derive(Debug)]
pub struct Attached {
    /// `/dev/loopN`.
    pub path: PathBuf,
    /// Whether discarding blocks frees space on the backing filesystem.
    pub discards: bool,
    /// Whether it reads and writes the file with direct I/O.
    pub is_direct: bool,
}

/// What a loop device has to be like.
#[derive(Clone, Copy)]
enum Demand {
    /// Direct I/O, and sectors of so many bytes.
    Direct(u32),
    /// Direct I/O if the kernel finds it possible, and the sectors it chooses.
    IfPossible,
}

/// Every loop device that has a file, with the file's name as the kernel shows it.
fn all() -> Vec<(PathBuf, PathBuf)> {
    let Ok(blocks) = std::fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    let found = blocks.flatten().filter_map(|block| {
        let name = block.file_name();
        let file = std::fs::read(block.path().join("loop/backing_file")).ok()?;
        let file = file.strip_suffix(b"\n").unwrap_or(&file);
        let file = PathBuf::from(std::ffi::OsStr::from_bytes(file));
        name.as_bytes()
            .starts_with(b"loop")
            .then(|| (Path::new("/dev").join(&name), file))
    });
    found.collect()
}

/// The loop devices whose file is `file`, an absolute path without symbolic links.
pub fn on(file: &Path) -> Vec<PathBuf> {
    let mut devices: Vec<PathBuf> = all()
        .into_iter()
        .filter(|(_, its)| its == file)
        .map(|(device, _)| device)
        .collect();
    devices.sort();
    devices
}

/// A loop device that lies on the very file of `stat`, past any server.
pub(crate) fn straight_on(stat: &Stat) -> Option<PathBuf> {
    let same = |file: &Path| {
        std::fs::metadata(file)
            .is_ok_and(|its| (its.dev(), its.ino()) == (stat.st_dev, stat.st_ino))
    };
    let mut found = all().into_iter().filter(|(_, file)| same(file));
    found.next().map(|(device, _)| device)
}

/// Whether this process may set up loop devices, before anything is done for one.
///
/// # Errors
/// It may not, or there are none.
pub fn check() -> Result<(), VolumeError> {
    open(Path::new(CONTROL))
        .map(drop)
        .map_err(|errno| VolumeError::Loop {
            what: format!("opening {CONTROL}"),
            why: explain(errno),
        })
}

/// Puts a free loop device on `file` with direct I/O and sectors of `sector_bytes`; both are
/// verified.
///
/// # Errors
/// No permission, no loop devices, no free one, or direct I/O or the sectors cannot be had; no
/// device is left behind.
pub fn attach(file: &Path, sector_bytes: u32) -> Result<Attached, VolumeError> {
    attach_as(file, Demand::Direct(sector_bytes))
}

/// Puts a free loop device on `file`, an image: with direct I/O where its filesystem has that, and
/// with the sectors the kernel chooses.
///
/// # Errors
/// No permission, no loop devices, or no free one; no device is left behind.
pub fn attach_image(file: &Path) -> Result<Attached, VolumeError> {
    attach_as(file, Demand::IfPossible)
}

fn attach_as(file: &Path, demand: Demand) -> Result<Attached, VolumeError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |errno: Errno| VolumeError::Loop {
            what,
            why: explain(errno),
        }
    };
    let control = open(Path::new(CONTROL)).map_err(failed(&format!("opening {CONTROL}")))?;
    let target = File::options().read(true).write(true).open(file);
    let target = target.map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        failed(&format!("opening {}", file.display()))(errno)
    })?;
    for attempt in 1..=ATTEMPTS {
        let number = sys::free_number(control.as_fd()).map_err(failed("finding a loop device"))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path).map_err(failed(&format!("opening {}", path.display())))?;
        let name = file.as_os_str().as_bytes();
        let sector_bytes = match demand {
            Demand::Direct(bytes) => bytes,
            Demand::IfPossible => sys::KERNEL_CHOOSES,
        };
        match sys::configure(device.as_fd(), target.as_fd(), sector_bytes, name) {
            Ok(()) => {
                let checked = match demand {
                    Demand::Direct(bytes) => verify(&device, &target, bytes).map(|()| true),
                    Demand::IfPossible => {
                        sys::has_direct_io(device.as_fd()).map_err(|errno| errno.to_string())
                    }
                };
                let is_direct = match checked {
                    Ok(is_direct) => is_direct,
                    Err(why) => {
                        // Ours, and nobody has seen it yet.
                        let _ = sys::clear(device.as_fd());
                        let what = format!("setting up {}", path.display());
                        return Err(VolumeError::Loop { what, why });
                    }
                };
                let discards = discards(&path);
                if discards || attempt > RENEWALS {
                    return Ok(Attached {
                        path,
                        discards,
                        is_direct,
                    });
                }
                let _ = sys::clear(device.as_fd());
                drop(device);
                // Refused while others have it open; the next attempt may get another.
                let _ = sys::remove(control.as_fd(), number);
            }
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(failed(&format!("setting up {}", path.display()))(errno)),
        }
    }
    Err(failed("taking a free loop device")(Errno::BUSY))
}

/// Somebody may have switched discards off for this number (`discard_max_bytes` in sysfs): that
/// outlasts the use of the device, and cannot be taken back but by removing it and making it anew.
fn discards(device: &Path) -> bool {
    let queue = Path::new("/sys/block")
        .join(device.file_name().unwrap_or_default())
        .join("queue");
    let most = |name: &str| {
        let text = std::fs::read_to_string(queue.join(name)).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    most("discard_max_bytes") > 0
}

/// The kernel drops direct I/O in silence where it does not fit.
fn verify(device: &OwnedFd, file: &File, sector_bytes: u32) -> Result<(), String> {
    let said = |errno: Errno| errno.to_string();
    if !sys::has_direct_io(device.as_fd()).map_err(said)? {
        return Err(format!(
            "the kernel does no direct I/O on it with sectors of {sector_bytes} bytes: the \
             backing file's disk has larger ones; try --sector-size 4096"
        ));
    }
    let found = sys::block_size_bytes(device.as_fd()).map_err(said)?;
    if found != sector_bytes {
        return Err(format!(
            "its sectors have {found} bytes where {sector_bytes} were asked for"
        ));
    }
    let size = sys::device_size_bytes(device.as_fd()).map_err(said)?;
    let expected = file.metadata().map_err(|error| error.to_string())?.len();
    if size != expected / u64::from(sector_bytes) * u64::from(sector_bytes) {
        return Err(format!(
            "it shows {size} bytes of the {expected} of the volume"
        ));
    }
    Ok(())
}

/// Takes the file away from `device`, which was on `file`, and waits for that.
///
/// # Errors
/// EBUSY: somebody still has the device open after `patience`; it goes when they close it. Those
/// of opening the device.
pub fn detach(device: &Path, file: &Path, patience: Duration) -> Result<(), Errno> {
    let opened = open(device)?;
    match sys::clear(opened.as_fd()) {
        // It has gone by itself.
        Ok(()) | Err(Errno::NXIO) => {}
        Err(errno) => return Err(errno),
    }
    drop(opened);
    let deadline = Instant::now() + patience;
    // By name and file: another program may have taken the number meanwhile.
    while on(file).iter().any(|its| its == device) {
        if Instant::now() > deadline {
            return Err(Errno::BUSY);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Shows the new size of its file on `device`.
///
/// # Errors
/// Those of opening the device and of `LOOP_SET_CAPACITY`.
pub fn take_new_size(device: &Path) -> Result<(), Errno> {
    sys::take_new_size(open(device)?.as_fd())
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn explain(errno: Errno) -> String {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            "not permitted: run as root, or give the container its loop devices".to_owned()
        }
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            "there are no loop devices here: load the module (modprobe loop), or give the \
             container /dev/loop-control and /dev/loop*"
                .to_owned()
        }
        Errno::BUSY => "others keep taking them: try again".to_owned(),
        errno => io::Error::from(errno).to_string(),
    }
}
