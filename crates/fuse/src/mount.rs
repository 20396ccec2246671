//! Mounting and unmounting: with mount(2) where the server may, else through `fusermount3`.

mod error;
mod options;

pub use error::MountError;
pub use options::{MountFlags, MountOptions};

use std::io;
use std::path::Path;

/// Unmounts what is mounted on `mountpoint`. Lazily: takes it out of sight at once, and the
/// mount ends when its last user leaves it. EBUSY: in use (not lazy). EINVAL: not a mountpoint.
pub fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<()> {
    let _ = (mountpoint, lazy);
    Err(rustix::io::Errno::NOSYS.into())
}

/// If the mountpoint is held by a FUSE mount whose server is dead (ENOTCONN), unmounts that
/// lazily and returns true. Touches nothing else.
pub fn recover_dead_mountpoint(mountpoint: &Path) -> io::Result<bool> {
    let _ = mountpoint;
    Err(rustix::io::Errno::NOSYS.into())
}
