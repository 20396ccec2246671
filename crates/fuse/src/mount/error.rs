//! Why a mount did not come about, and what to do about it.

use std::path::PathBuf;

use crate::negotiate::NegotiateError;
use crate::report::RingUnavailable;
use crate::types::Errno;

/// Why a mount did not come about. The message is one sentence with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// There is no FUSE device.
    #[error(
        "{} does not exist: load the module (modprobe fuse), or give the container the device \
         (--device /dev/fuse)",
        device.display()
    )]
    NoDevice {
        /// Where it was looked for.
        device: PathBuf,
    },
    /// The kernel has no FUSE.
    #[error("the kernel knows no FUSE filesystem: load the module (modprobe fuse)")]
    NoKernelSupport,
    /// Not allowed to mount, and no helper that is.
    #[error(
        "not allowed to mount ({errno}) and fusermount3 is not installed: install the package \
         fuse3, or run as root"
    )]
    NoPermission {
        /// What mount(2) or opening the device said.
        errno: Errno,
    },
    /// The mountpoint cannot be used.
    #[error("mountpoint {}: {problem}", path.display())]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: &'static str,
        /// The error behind it.
        errno: Errno,
    },
    /// `fusermount3` will not let others in.
    #[error(
        "allow_other is refused for users who are not root: put the line user_allow_other into \
         /etc/fuse.conf, or leave the option out"
    )]
    AllowOther,
    /// The device is there and closed to this user.
    #[error(
        "/dev/fuse may not be opened: give users access to it (chmod 0666 /dev/fuse is what \
         distributions do), or run as root"
    )]
    ClosedDevice,
    /// Not even the helper may mount, as in most containers.
    #[error(
        "mounting is not permitted here: give the container the capability \
         (--cap-add SYS_ADMIN --device /dev/fuse), or run as root outside of it"
    )]
    Confined,
    /// `fusermount3` refused for another reason.
    #[error("fusermount3 refused: {message}")]
    Fusermount {
        /// What it wrote.
        message: String,
        /// The error, as far as it can be told.
        errno: Errno,
    },
    /// mount(2) refused.
    #[error("mounting on {} failed: {errno}; see the kernel log (dmesg) for the option it refused", path.display())]
    Mount {
        /// The mountpoint.
        path: PathBuf,
        /// What mount(2) said.
        errno: Errno,
    },
    /// The kernel and this server cannot agree on a protocol.
    #[error(transparent)]
    Negotiate(#[from] NegotiateError),
    /// Requests were to come over io_uring and cannot.
    #[error("transport=uring: {0}")]
    Ring(RingUnavailable),
    /// The filesystem refused to start.
    #[error("the filesystem refused to start: {0}")]
    Refused(Errno),
    /// Something else the operating system refused.
    #[error("{what}: {errno}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// What came back.
        errno: Errno,
    },
}

impl MountError {
    /// The error number for exit codes and tests.
    pub fn errno(&self) -> Errno {
        match self {
            MountError::NoDevice { .. } => Errno::NOENT,
            MountError::NoKernelSupport => Errno::NODEV,
            MountError::AllowOther | MountError::Confined => Errno::PERM,
            MountError::ClosedDevice => Errno::ACCESS,
            MountError::Ring(_) => Errno::OPNOTSUPP,
            MountError::Negotiate(_) => Errno::PROTO,
            MountError::NoPermission { errno }
            | MountError::Mountpoint { errno, .. }
            | MountError::Fusermount { errno, .. }
            | MountError::Mount { errno, .. }
            | MountError::Refused(errno)
            | MountError::Os { errno, .. } => *errno,
        }
    }
}
