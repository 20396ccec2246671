//! Ways out of a mount: by request, by force, and over the body of a dead server.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::mount::UnmountFlags;

use super::abort::{self, WatchedConnection, abort};
use super::error::MountError;
use super::helper;
use super::killed;
use super::mountinfo::{Mounted, mounts_at};
use crate::sys;
use crate::types::Errno;

/// Pause between looks at a connection that is ending.
const DYING_PAUSE: Duration = Duration::from_millis(20);

/// What becomes of a mount that somebody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// It stays, and unmounting fails with EBUSY.
    IfUnused,
    /// It is taken out of sight at once, and ends when its last user leaves it.
    Detach,
}

/// Unmounts what is mounted on `mountpoint`. EBUSY: in use. EINVAL: not a mountpoint. Users who
/// are not root need `fusermount3`.
pub fn unmount(mountpoint: &Path, mode: UnmountMode) -> io::Result<()> {
    let path = resolve(mountpoint)?;
    let flags = match mode {
        UnmountMode::IfUnused => UnmountFlags::empty(),
        UnmountMode::Detach => UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(&path, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => helper::unmount(&path, mode),
        result => Ok(result?),
    }
}

/// If the mountpoint is held by FUSE mounts whose server is dead (ENOTCONN), unmounts those
/// lazily and returns true. Touches nothing else. Waits for the answer of a server that lives.
pub fn recover_dead_mountpoint(mountpoint: &Path) -> io::Result<bool> {
    let path = resolve(mountpoint)?;
    let mut recovered = false;
    // Mounts on top of each other may all be dead.
    while let Some(dead) = dead_at(&path)? {
        dead.detach(&path)?;
        recovered = true;
    }
    Ok(recovered)
}

/// As [`recover_dead_mountpoint`], for a server that is ending this moment: waits for its
/// connection to be over, at most `patience`.
pub fn recover_dying_mountpoint(mountpoint: &Path, patience: Duration) -> io::Result<bool> {
    let path = resolve(mountpoint)?;
    let deadline = Instant::now() + patience;
    loop {
        if recover_dead_mountpoint(&path)? {
            return Ok(true);
        }
        let fuse = mounts_at(&path)?.last().is_some_and(Mounted::is_fuse);
        // A request that was waiting when the server ended is told so, once.
        let dying = fuse && rustix::fs::statfs(&path).is_err();
        if !dying || Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(DYING_PAUSE);
    }
}

/// Why a server does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// It was killed and cannot end; see [`recover_killed_mountpoint`].
    Killed,
    /// It is stopped (SIGSTOP, a debugger).
    Stopped {
        /// The server.
        pid: u32,
    },
}

/// Why whoever asks the mount would wait, where that is to be known without asking it.
pub fn hindrance(mountpoint: &Path) -> io::Result<Option<Hindrance>> {
    let Some(connection) = connection_at(mountpoint)? else {
        return Ok(None);
    };
    if killed::server_is_killed(connection) {
        return Ok(Some(Hindrance::Killed));
    }
    let stopped = killed::stopped_server(connection);
    Ok(stopped.map(|pid| Hindrance::Stopped { pid }))
}

/// Which of these processes serve the mount. Asks the mount itself nothing; leaves out those of which that is not
/// to be known (other users' processes, kernels that do not show whose connection a device is).
pub fn which_serve(
    mountpoint: &Path,
    processes: impl IntoIterator<Item = u32>,
) -> io::Result<Vec<u32>> {
    let Some(connection) = connection_at(mountpoint)? else {
        return Ok(Vec::new());
    };
    let serving = processes.into_iter();
    Ok(serving
        .filter(|pid| killed::is_served_by(connection, *pid))
        .collect())
}

/// What tells from now on whether the FUSE mount that is seen at the path, or another of its connection,
/// still stands. None if there is none. EACCES, ENOENT: this user may not know, or the control filesystem
/// is not mounted.
pub fn watch_connection(mountpoint: &Path) -> io::Result<Option<WatchedConnection>> {
    let Some(connection) = connection_at(mountpoint)? else {
        return Ok(None);
    };
    let watched = WatchedConnection::open(connection)?;
    // The control file is that of the mount which has the number while it is open.
    let is_same = connection_at(mountpoint)? == Some(connection);
    Ok((is_same && watched.is_there()?).then_some(watched))
}

/// The connection of the FUSE mount that is seen at the path.
fn connection_at(mountpoint: &Path) -> io::Result<Option<u32>> {
    let top = mounts_at(&resolve(mountpoint)?)?.pop();
    Ok(top.filter(Mounted::is_fuse).map(|mounted| mounted.minor))
}

/// The mount that is seen at the path, if its server was killed and cannot end.
fn of_killed_server(path: &Path) -> io::Result<Option<Root>> {
    let Some(top) = mounts_at(path)?.pop().filter(Mounted::is_fuse) else {
        return Ok(None);
    };
    // Held from here on, the mount stays and its connection's number nobody else's: the guardian may be
    // faster than the look at the server, and the next mount here would have the same number.
    let root = Root::open(path)?;
    let is_killed = root.minor() == Some(top.minor) && killed::server_is_killed(top.minor);
    Ok(is_killed.then_some(root))
}

/// If the server was killed and cannot end, aborts the connection, unmounts lazily and returns true.
pub fn recover_killed_mountpoint(mountpoint: &Path) -> io::Result<bool> {
    let path = resolve(mountpoint)?;
    let mut recovered = false;
    while let Some(root) = of_killed_server(&path)? {
        match root.take_away(UnmountFlags::FORCE | UnmountFlags::DETACH) {
            Err(Errno::PERM) => {
                abort::abort_by_number(root.minor().ok_or(Errno::NOENT)?)?;
                // The helper takes a path.
                if Root::open(&path)?.number() == root.number() {
                    helper::unmount(&path, UnmountMode::Detach)?;
                }
            }
            result => result?,
        }
        recovered = true;
    }
    Ok(recovered)
}

/// What is seen at the path, if it is a FUSE mount whose server is dead.
fn dead_at(path: &Path) -> io::Result<Option<Root>> {
    let top = mounts_at(path)?.pop();
    if !top.is_some_and(|mounted| mounted.is_fuse()) {
        return Ok(None);
    }
    let root = Root::open(path)?;
    // Unlike attributes, these are never answered from the kernel's cache.
    let dead = rustix::fs::fstatfs(&root.0).err() == Some(Errno::NOTCONN);
    Ok(dead.then_some(root))
}

/// The root of a mount, whatever is mounted on its path meanwhile: the next server may be faster
/// than who clears up after the last one.
struct Root(OwnedFd);

impl Root {
    fn open(path: &Path) -> io::Result<Root> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Root(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// A number that no other mount ever gets (`STATX_MNT_ID_UNIQUE`, Linux 6.8); the numbers in
    /// the kernel's list come again. No server is asked.
    fn number(&self) -> Option<u64> {
        const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&self.0, c"", flags, UNIQUE).ok()?;
        (found.stx_mask & UNIQUE.bits() != 0).then_some(found.stx_mnt_id)
    }

    /// The minor number of its device, which for FUSE is that of the connection.
    fn minor(&self) -> Option<u32> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&self.0, c"", flags, StatxFlags::empty()).ok()?;
        Some(found.stx_dev_minor)
    }

    /// Unmounts this mount, and no other. One that is gone already is no error.
    fn take_away(&self, flags: UnmountFlags) -> Result<(), Errno> {
        let own = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        match rustix::mount::unmount(own, flags) {
            Err(Errno::INVAL) => Ok(()),
            result => result,
        }
    }

    /// Takes this mount out of sight.
    fn detach(&self, path: &Path) -> io::Result<()> {
        match self.take_away(UnmountFlags::DETACH) {
            Err(Errno::PERM) => helper::unmount(path, UnmountMode::Detach),
            result => Ok(result?),
        }
    }
}

/// Absolute and without symbolic links, also where the last component is a dead mount.
fn resolve(mountpoint: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(mountpoint) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
            let absolute = std::path::absolute(mountpoint)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => Ok(std::fs::canonicalize(parent)?.join(name)),
                _ => Err(error),
            }
        }
        result => result,
    }
}

/// As [`unmount`] of this process' own mount. In a child: it waits for data that the server is to write, and a
/// thread of a server that is killed meanwhile would keep its device open by that.
fn unmount_apart(mountpoint: &Path, mode: UnmountMode) -> io::Result<()> {
    let path = CString::new(mountpoint.as_os_str().as_bytes())?;
    let flags = match mode {
        UnmountMode::IfUnused => UnmountFlags::NOFOLLOW,
        UnmountMode::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match sys::unmount_in_child(&path, flags.bits().cast_signed()) {
        Err(errno) if sys::has_no_child(errno) => unmount(mountpoint, mode),
        Err(Errno::PERM) => helper::unmount(mountpoint, mode),
        result => Ok(result?),
    }
}

/// How a mount of ours stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is what is seen at the mountpoint.
    Visible,
    /// Something else was mounted over it.
    Covered,
    /// It is not in our mount namespace (any more).
    Gone,
}

/// A mount of ours, however the path may change its meaning.
#[derive(Debug)]
pub(crate) struct Mount {
    mountpoint: PathBuf,
    id: u64,
    /// See [`Root::number`].
    number: Option<u64>,
    connection: u32,
    /// Of the connection; the session owns it.
    device: Weak<OwnedFd>,
    by_helper: bool,
}

impl Mount {
    /// The mount just made on `mountpoint`, served through `device`.
    pub(super) fn find(
        mountpoint: PathBuf,
        by_helper: bool,
        device: &Arc<OwnedFd>,
    ) -> Result<Self, MountError> {
        let lost = |errno| MountError::Os {
            what: "finding the new mount in /proc/self/mountinfo",
            errno,
        };
        let table = mounts_at(&mountpoint)
            .map_err(|error| lost(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let newest = table.into_iter().rfind(Mounted::is_fuse);
        let Mounted { id, minor, .. } = newest.ok_or_else(|| lost(Errno::NOENT))?;
        let number = Root::open(&mountpoint).ok().and_then(|root| root.number());
        Ok(Self {
            mountpoint,
            id,
            number,
            connection: minor,
            device: Arc::downgrade(device),
            by_helper,
        })
    }

    /// The kernel's number of its connection.
    pub(crate) fn connection(&self) -> u32 {
        self.connection
    }

    /// Where it was mounted.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether it is still there.
    fn standing(&self) -> io::Result<Standing> {
        let mounts = mounts_at(&self.mountpoint)?;
        let top = mounts.last().is_some_and(|mount| mount.id == self.id);
        if top && self.number.is_some() {
            // The next mount here may have been given the number in the list.
            let seen = Root::open(&self.mountpoint)?.number();
            return Ok(match seen == self.number {
                true => Standing::Visible,
                false => Standing::Gone,
            });
        }
        Ok(match mounts.iter().position(|mount| mount.id == self.id) {
            None => Standing::Gone,
            Some(place) if place + 1 == mounts.len() => Standing::Visible,
            Some(_) => Standing::Covered,
        })
    }

    /// Unmounts it, if it is the one that is seen. EBUSY: in use, or covered by another.
    pub(crate) fn unmount(&self, mode: UnmountMode) -> io::Result<()> {
        match self.standing()? {
            Standing::Gone => Ok(()),
            Standing::Covered => Err(Errno::BUSY.into()),
            Standing::Visible if self.by_helper => helper::unmount(&self.mountpoint, mode),
            Standing::Visible => unmount_apart(&self.mountpoint, mode),
        }
    }

    /// Takes it out of sight if it is still seen after its connection has ended.
    pub(crate) fn clear_away(&self) -> io::Result<()> {
        // The next mount here has another server, which lives.
        if self.number.is_none() && dead_at(&self.mountpoint)?.is_none() {
            return Ok(());
        }
        self.unmount(UnmountMode::Detach)
    }

    /// See [`abort::open`].
    pub(crate) fn abort_file(&self) -> Result<OwnedFd, Errno> {
        let device = self.device.upgrade().ok_or(Errno::NOENT)?;
        abort::open(self.connection, device.as_fd(), abort::Way::Private)
    }

    /// Aborts the connection, as far as we may, and takes the mount out of sight. Whatever is left
    /// ends when the server closes the device.
    pub(crate) fn force(&self) {
        // Without its device the connection has ended, and its number may be another's.
        let aborted = self
            .device
            .upgrade()
            .map(|device| abort(self.connection, device.as_fd()));
        match aborted {
            None | Some(Ok(()) | Err(Errno::NOENT)) => {}
            Some(Err(errno)) => {
                let connection = self.connection;
                tracing::warn!(%errno, connection, "cannot abort the connection");
            }
        }
        if let Err(error) = self.unmount(UnmountMode::Detach) {
            let mountpoint = self.mountpoint.display();
            tracing::warn!(%error, %mountpoint, "cannot take the mount out of sight");
        }
    }
}
