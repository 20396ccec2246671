//! Mounting and unmounting: with mount(2) where the server may, else through `fusermount3`.

pub(crate) mod abort;
mod direct;
mod error;
mod helper;
mod killed;
mod mountinfo;
mod options;
mod unmount;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use abort::WatchedConnection;
pub use error::MountError;
pub use options::{MountFlags, MountOptions};
pub(crate) use unmount::Mount;
pub use unmount::{
    Hindrance, UnmountMode, hindrance, recover_dead_mountpoint, recover_dying_mountpoint,
    recover_killed_mountpoint, unmount, watch_connection, which_serve,
};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::sys;
use crate::types::Errno;

/// Where the device is, unless the configuration says otherwise.
const DEVICE: &str = "/dev/fuse";

/// How to mount.
pub(crate) struct Way<'a> {
    /// The device, if not [`DEVICE`].
    pub(crate) device: Option<&'a Path>,
    /// Through `fusermount3` even where mount(2) is allowed.
    pub(crate) helper_only: bool,
}

/// Mounts; the kernel's INIT can be read from the descriptor then.
pub(crate) fn mount(
    mountpoint: &Path,
    options: &MountOptions,
    way: &Way<'_>,
) -> Result<(Arc<OwnedFd>, Mount), MountError> {
    let mountpoint = check_mountpoint(mountpoint)?;
    let (device, by_helper) = if way.helper_only {
        (helper::mount(&mountpoint, options, Errno::PERM)?, true)
    } else {
        let path = way.device.unwrap_or(Path::new(DEVICE));
        match direct::mount(path, &mountpoint, options) {
            Ok(device) => (device, false),
            Err(direct::Failure::NotAllowed(errno)) => {
                tracing::debug!(%errno, "not allowed to mount; asking fusermount3");
                (helper::mount(&mountpoint, options, errno)?, true)
            }
            Err(direct::Failure::Error(error)) => return Err(error),
        }
    };
    let device = Arc::new(device);
    let mount = Mount::find(mountpoint, by_helper, &device)?;
    Ok((device, mount))
}

/// The mountpoint, absolute and without symbolic links, if it can be used.
fn check_mountpoint(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let refuse = |problem, errno| MountError::Mountpoint {
        path: mountpoint.to_owned(),
        problem,
        errno,
    };
    let explain = |error: std::io::Error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let problem = match errno {
            Errno::NOENT => "does not exist: create the directory first",
            Errno::NOTCONN => {
                "is held by a FUSE mount whose server is dead: unmount it first (umount -l, or \
                 fusermount3 -u -z)"
            }
            Errno::ACCESS => "cannot be reached: search permission is missing on the way",
            Errno::NOTDIR => "is not a directory",
            _ => "cannot be examined",
        };
        refuse(problem, errno)
    };
    let metadata = std::fs::metadata(mountpoint).map_err(explain)?;
    if !metadata.is_dir() {
        return Err(refuse("is not a directory", Errno::NOTDIR));
    }
    std::fs::canonicalize(mountpoint).map_err(explain)
}

/// Asks the filesystem, past all caches. Any answer of its own will do, even an error. In a child: a thread of
/// a server that was killed would wait for the answer of that server, and keep its device open by that.
pub(crate) fn answers(mountpoint: &Path) -> bool {
    let Ok(path) = CString::new(mountpoint.as_os_str().as_bytes()) else {
        return false;
    };
    let answer = match sys::attributes_in_child(&path) {
        Err(errno) if sys::has_no_child(errno) => {
            let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
            statx(CWD, mountpoint, flags, StatxFlags::BASIC_STATS).map(drop)
        }
        answer => answer,
    };
    !matches!(
        answer,
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CONNREFUSED)
    )
}
