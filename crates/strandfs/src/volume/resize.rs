//! `strandfs volume resize`.

use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use rustix::io::Errno;
use strandfs_options::show_size;
use strandfs_volume::backing::Backing;
use strandfs_volume::loop_device;

use super::found::{self, MountedVolume};
use crate::alone::{self, Alone};
use crate::args::volume::ResizeArgs;
use crate::failure::Failure;

/// Makes a volume larger: in the server if it is served, and its block devices with it; else in
/// its backing file.
///
/// # Errors
/// The volume is larger already, or there is none.
pub fn run(args: &ResizeArgs) -> Result<ExitCode, Failure> {
    let (target, size) = (&args.target, args.size);
    let _alone = Alone::take(&alone::VOLUME, &found::backing_of(target)?)?;
    match found::find(target)? {
        Some(found) => grow(target, &found, size)?,
        None if !target.exists() => {
            return Err(Failure::NoVolume {
                path: target.clone(),
                but: ", and there is no such file",
            });
        }
        // Taking a directory or a device for a backing file says what is wrong with it.
        None => drop(Backing::open_existing(target, size)?),
    }
    println!("{} has {}", target.display(), show_size(size));
    Ok(ExitCode::SUCCESS)
}

fn grow(target: &Path, found: &MountedVolume, size: u64) -> Result<(), Failure> {
    let fail = |why: String| {
        Failure::Volume(strandfs_volume::VolumeError::Backing {
            path: target.to_owned(),
            why,
        })
    };
    let status = found.status.as_ref().map_err(|error| fail(error.clone()))?;
    if size < status.size_bytes {
        return Err(fail(format!(
            "has {} bytes: a volume never shrinks, what lies behind the new end would be lost",
            status.size_bytes
        )));
    }
    strandfs_volume::check_size(size)?;
    let grown = File::options()
        .write(true)
        .open(found.file())
        .and_then(|file| file.set_len(size));
    grown.map_err(|error| Failure::System {
        what: "making the volume larger",
        source: error,
    })?;
    for device in &found.devices {
        loop_device::take_new_size(&device.device).map_err(|errno: Errno| Failure::System {
            what: "showing the new size on the block device",
            source: errno.into(),
        })?;
    }
    for mount in found.devices.iter().flat_map(|device| &device.mounts) {
        say!(
            "the filesystem on {0} is as large as before: xfs_growfs {0}, or resize2fs \
             and the device for ext4, extends it",
            mount.display()
        );
    }
    Ok(())
}
