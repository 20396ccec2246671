//! Aborting a connection: every request of it, waiting or to come, fails at once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::types::Errno;

/// Where the kernel's control files usually are.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// Which of the control filesystem's mounts to take first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The one everybody sees.
    Usual,
    /// One of our own: a file kept open on it keeps nobody from unmounting the other.
    Private,
}

/// Aborts a connection by its number. ENOENT: it is gone already. EPERM, EACCES: not allowed;
/// then it is aborted only by closing every descriptor of its device.
pub(super) fn abort(connection: u32, device: BorrowedFd<'_>) -> Result<(), Errno> {
    let file = open(connection, device, Way::Usual)?;
    rustix::io::write(file, b"1").map(drop)
}

/// Aborts the connection of a mount that cannot go meanwhile: the caller holds it. Errors as for [`abort`].
pub(super) fn abort_by_number(connection: u32) -> Result<(), Errno> {
    rustix::io::write(open_unasked(connection, Way::Usual)?, b"1").map(drop)
}

/// The file that aborts a connection when anything is written to it; without effect once the
/// connection is gone. ENOENT: it is gone already. EPERM, EACCES: not allowed.
///
/// The kernel gives the number of a mount that is gone to the next one at once. So `device` is
/// asked whether its connection still stands *after* the control file was opened: then the file is
/// that connection's, and becomes nobody's when the connection goes.
pub(super) fn open(connection: u32, device: BorrowedFd<'_>, way: Way) -> Result<OwnedFd, Errno> {
    let file = open_unasked(connection, way)?;
    if !is_connected(device)? {
        return Err(Errno::NOENT);
    }
    Ok(file)
}

/// The same, of whichever connection has the number.
fn open_unasked(connection: u32, way: Way) -> Result<OwnedFd, Errno> {
    open_control(connection, "abort", OFlags::WRONLY, way)
}

/// A control file of whichever connection has the number.
fn open_control(connection: u32, name: &str, how: OFlags, way: Way) -> Result<OwnedFd, Errno> {
    let file = format!("{connection}/{name}");
    let open =
        |control: OwnedFd| rustix::fs::openat(control, &file, how | OFlags::CLOEXEC, Mode::empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let usual = || rustix::fs::open(CONTROL, flags, Mode::empty()).and_then(open);
    let private = || private_control().and_then(open);
    match way {
        Way::Usual => usual().or_else(|_| private()),
        // What the usual one says is the more telling: users have none of their own.
        Way::Private => private().or_else(|_| usual()),
    }
}

/// Tells whether a connection's mount still stands, when its number may be another's by now. It keeps
/// neither the mount nor the connection.
#[derive(Debug)]
pub struct WatchedConnection(OwnedFd);

impl WatchedConnection {
    /// That of whichever mount has the number: the caller looks afterwards whether it is the right one.
    pub(super) fn open(connection: u32) -> Result<WatchedConnection, Errno> {
        open_control(connection, "waiting", OFlags::PATH, Way::Private).map(WatchedConnection)
    }

    /// Whether the connection is there, and with it its number nobody else's. `fuse_conn_waiting_read` in
    /// fs/fuse/control.c reads nothing once the mount is gone, which is before its number is free.
    pub fn is_there(&self) -> io::Result<bool> {
        // Opened anew each time: the file gives its text once, and cannot be sought in.
        let own = format!("/proc/thread-self/fd/{}", self.0.as_raw_fd());
        let file = rustix::fs::open(own, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(rustix::io::read(file, &mut [0; 8])? > 0)
    }
}

/// `fuse_dev_poll` in the kernel's fs/fuse/dev.c: an error and nothing else once the connection
/// has ended.
pub(crate) fn is_connected(device: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut asked = [PollFd::from_borrowed_fd(device, PollFlags::OUT)];
    poll(&mut asked, Some(&Timespec::default()))?;
    let [answer] = asked;
    Ok(!answer.revents().contains(PollFlags::ERR))
}

/// The control filesystem where it is not mounted: a mount that no path leads to.
fn private_control() -> Result<OwnedFd, Errno> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::empty();
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}
