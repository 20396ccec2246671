//! Aborting a connection: every request of it, waiting or to come, fails at once.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::types::Errno;

/// Where the kernel's control files usually are.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// Aborts a connection by its number. ENOENT: it is gone already. EPERM, EACCES: not allowed;
/// then it is aborted only by closing every descriptor of its device.
pub(super) fn abort(connection: u32) -> Result<(), Errno> {
    let file = format!("{connection}/abort");
    let open = |control: OwnedFd| {
        rustix::fs::openat(
            control,
            &file,
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let usual = rustix::fs::open(CONTROL, flags, Mode::empty()).and_then(open);
    let file = usual.or_else(|_| open(private_control()?))?;
    rustix::io::write(file, b"1").map(drop)
}

/// The control filesystem where it is not mounted: a mount that no path leads to.
fn private_control() -> Result<OwnedFd, Errno> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::empty();
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}
