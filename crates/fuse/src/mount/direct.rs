//! mount(2) by the server itself.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags as Flags;

use super::error::MountError;
use super::options::{MountFlags, MountOptions};
use crate::types::Errno;

/// Why mounting failed.
pub(super) enum Failure {
    /// For lack of privilege: the helper may have it.
    NotAllowed(Errno),
    /// For good.
    Error(MountError),
}

/// Opens the device and mounts it on the directory `mountpoint`.
pub(super) fn mount(
    device: &Path,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<OwnedFd, Failure> {
    let descriptor = open(device)?;
    let text = |text: String| {
        CString::new(text).map_err(|_| {
            Failure::Error(MountError::Os {
                what: "a mount option holds a NUL character",
                errno: Errno::INVAL,
            })
        })
    };
    let source = text(options.source().to_owned())?;
    let kind = text(options.kind())?;
    let data = text(data(&descriptor, options))?;
    let flags = flags(options.flags);
    match rustix::mount::mount(source, mountpoint, kind, flags, data.as_c_str()) {
        Ok(()) => Ok(descriptor),
        Err(errno @ (Errno::PERM | Errno::ACCESS)) => Err(Failure::NotAllowed(errno)),
        Err(Errno::NODEV) => Err(Failure::Error(MountError::NoKernelSupport)),
        Err(errno) => Err(Failure::Error(MountError::Mount {
            path: mountpoint.to_owned(),
            errno,
        })),
    }
}

fn open(device: &Path) -> Result<OwnedFd, Failure> {
    match rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(descriptor) => Ok(descriptor),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            Err(Failure::Error(MountError::NoDevice {
                device: device.to_owned(),
            }))
        }
        Err(errno @ (Errno::PERM | Errno::ACCESS)) => Err(Failure::NotAllowed(errno)),
        Err(errno) => Err(Failure::Error(MountError::Os {
            what: "opening the FUSE device",
            errno,
        })),
    }
}

/// The options of the filesystem itself.
fn data(device: &OwnedFd, options: &MountOptions) -> String {
    let mut parts = vec![
        format!("fd={}", device.as_raw_fd()),
        format!("rootmode={:o}", libc::S_IFDIR),
        format!("user_id={}", rustix::process::geteuid().as_raw()),
        format!("group_id={}", rustix::process::getegid().as_raw()),
    ];
    parts.extend(options.kernel_options());
    parts.join(",")
}

fn flags(wanted: MountFlags) -> Flags {
    let pairs = [
        (MountFlags::READ_ONLY, Flags::RDONLY),
        (MountFlags::NOSUID, Flags::NOSUID),
        (MountFlags::NODEV, Flags::NODEV),
        (MountFlags::NOEXEC, Flags::NOEXEC),
        (MountFlags::SYNC, Flags::SYNCHRONOUS),
        (MountFlags::DIRSYNC, Flags::DIRSYNC),
        (MountFlags::NOATIME, Flags::NOATIME),
        (MountFlags::NODIRATIME, Flags::NODIRATIME),
        (MountFlags::RELATIME, Flags::RELATIME),
        (MountFlags::STRICTATIME, Flags::STRICTATIME),
        (MountFlags::LAZYTIME, Flags::LAZYTIME),
    ];
    pairs
        .into_iter()
        .filter(|(option, _)| wanted.contains(*option))
        .fold(Flags::empty(), |flags, (_, flag)| flags | flag)
}
