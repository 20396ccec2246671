//! `strandfs volume detach`.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use strandfs_fuse::{UnmountMode, WatchedConnection};
use strandfs_volume::loop_device;

use super::attach;
use super::found::{self, MountedVolume};
use crate::alone::{self, Alone};
use crate::args::volume::DetachArgs;
use crate::failure::Failure;
use crate::mounts;

/// How long a block device may take to be let go of, and a server to end.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long what was used until now may still look in use.
const SETTLING: Duration = Duration::from_secs(2);
/// Pause between looks.
const LOOK: Duration = Duration::from_millis(10);

/// Unmounts what is on the volume, lets go of its block devices, ends its server, in this order.
///
/// # Errors
/// Somebody uses it, or no volume goes by that name. What was undone until then stays undone.
pub fn run(args: &DetachArgs) -> Result<ExitCode, Failure> {
    let target = &args.target;
    let _alone = Alone::take(&alone::VOLUME, &found::backing_of(target)?)?;
    let Some(found) = found::find(target)? else {
        return Err(Failure::NoVolume {
            path: target.clone(),
            but: "",
        });
    };
    if let (Ok(status), false) = (&found.status, args.discard)
        && !status.backing_exists
    {
        return Err(Failure::VolumeUse {
            path: target.clone(),
            why: format!(
                "its backing file was removed, so what is on the volume is gone once it is \
                 detached: copy {} first, or give --discard",
                found.file().display()
            ),
        });
    }
    undo(&found)?;
    Ok(ExitCode::SUCCESS)
}

/// See [`run`].
pub fn undo(found: &MountedVolume) -> Result<(), Failure> {
    for device in found.devices.iter().rev() {
        for mount in device.mounts.iter().rev() {
            match rustix::mount::unmount(mount, UnmountFlags::NOFOLLOW) {
                // A shutdown unmounts, too, and may have been faster.
                Err(Errno::INVAL) if found::is_unmounted(mount) => {}
                outcome => outcome.map_err(|errno| refused(mount, errno))?,
            }
        }
        loop_device::detach(&device.device, &found.file(), PATIENCE)
            .map_err(|errno| refused(&device.device, errno))?;
    }
    let connection = strandfs_fuse::watch_connection(&found.mountpoint);
    let connection = connection.ok().flatten();
    end_mount(&found.mountpoint).map_err(|errno| refused(&found.mountpoint, errno))?;
    if let Ok(status) = &found.status {
        wait_for(status.pid, found, connection.as_ref())?;
    }
    attach::forget_directory(&found.mountpoint);
    Ok(())
}

/// The kernel lets go of a block device's file a moment after it has let go of the device.
fn end_mount(mountpoint: &Path) -> Result<(), Errno> {
    let deadline = Instant::now() + SETTLING;
    loop {
        let outcome = strandfs_fuse::unmount(mountpoint, UnmountMode::IfUnused)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
        // A server that was told to end does so when the volume is free, which it just became.
        if outcome == Err(Errno::INVAL) && found::is_unmounted(mountpoint) {
            return Ok(());
        }
        if outcome != Err(Errno::BUSY) || Instant::now() > deadline {
            return outcome;
        }
        std::thread::sleep(LOOK);
    }
}

fn refused(path: &Path, errno: Errno) -> Failure {
    let why = match errno {
        Errno::BUSY => {
            return Failure::InUse {
                path: path.to_owned(),
                why:
                    "it is in use (`fuser -vm` shows by whom); close what uses it and detach again"
                        .to_owned(),
            };
        }
        Errno::PERM | Errno::ACCESS => {
            return Failure::NotPermitted {
                path: path.to_owned(),
                why: "not permitted: run as root".to_owned(),
            };
        }
        errno => std::io::Error::from(errno).to_string(),
    };
    Failure::Unmount {
        path: path.to_owned(),
        why,
    }
}

/// The server has the backing file until it has ended.
fn wait_for(
    pid: u32,
    found: &MountedVolume,
    connection: Option<&WatchedConnection>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    let process = Path::new("/proc").join(pid.to_string());
    // A process that has ended and is still to be reaped has no program.
    while std::fs::read_link(process.join("exe")).is_ok() {
        if Instant::now() > deadline {
            return Err(still_there(pid, found, connection));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn still_there(pid: u32, found: &MountedVolume, connection: Option<&WatchedConnection>) -> Failure {
    let seen = mounts::seen_elsewhere(&found.mounted);
    // Asked afterwards: the volume's number was not another mount's before that.
    let is_there = connection.is_none_or(|connection| connection.is_there().unwrap_or(true));
    let Some((other, name)) = seen.filter(|_| is_there) else {
        return Failure::System {
            what: "waiting for the server to end",
            source: Errno::TIMEDOUT.into(),
        };
    };
    Failure::InUse {
        path: found.mountpoint.clone(),
        why: format!(
            "it is detached here, but process {other} ({name}) still sees it in a mount namespace \
             of its own (a container, a service with mounts of its own): its server (pid {pid}) \
             keeps the backing file until that ends"
        ),
    }
}
