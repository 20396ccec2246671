//! The setuid helper `fusermount3` (or `fusermount`): it mounts for those who may not, and sends
//! the device's descriptor back over a socket.

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::UnmountMode;
use super::error::MountError;
use super::options::MountOptions;
use crate::types::Errno;

/// The helpers, best first.
const PROGRAMS: [&str; 2] = ["fusermount3", "fusermount"];

/// Mounts through the helper. `refusal` is what mounting without it said.
pub(super) fn mount(
    mountpoint: &Path,
    options: &MountOptions,
    refusal: Errno,
) -> Result<OwnedFd, MountError> {
    let os = |what| move |errno| MountError::Os { what, errno };
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(os("making a socket for fusermount3"))?;
    let prepare = |command: &mut Command| -> io::Result<()> {
        // The socket goes as standard input: that one descriptor is inherited without a moment
        // in which another thread's child could inherit it too.
        command
            .env("_FUSE_COMMFD", "0")
            .stdin(theirs.try_clone()?)
            // It writes nothing there. If this process is killed now, the helper mounts all the same, and
            // whoever reads our output to its end comes after that, to unmount it.
            .stdout(Stdio::inherit())
            .arg("-o")
            .arg(options.helper_options())
            .arg("--")
            .arg(mountpoint);
        Ok(())
    };
    let mut child = match spawn(prepare) {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::NoPermission { errno: refusal });
        }
        Err(error) => {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            return Err(os("starting fusermount3")(errno));
        }
    };
    // Without this end the socket ends when the helper does.
    drop(theirs);
    let received = receive_descriptor(&ours);
    let message = complaint(&mut child);
    let error = match received {
        Ok(Some(device)) => return Ok(device),
        Ok(None) => explain(message),
        Err(errno) => os("receiving the device from fusermount3")(errno),
    };
    // A helper that ended between mounting and sending leaves a mount that nobody serves; there was none before.
    let _ = super::recover_dead_mountpoint(mountpoint);
    Err(error)
}

/// Unmounts through the helper.
pub(super) fn unmount(mountpoint: &Path, mode: UnmountMode) -> io::Result<()> {
    let prepare = |command: &mut Command| -> io::Result<()> {
        command.arg("-u").stdin(Stdio::null()).stdout(Stdio::null());
        if mode == UnmountMode::Detach {
            command.arg("-z");
        }
        command.arg("--").arg(mountpoint);
        Ok(())
    };
    let mut child = spawn(prepare)?;
    let message = complaint(&mut child);
    if child.wait()?.success() {
        Ok(())
    } else {
        Err(errno_in(&message).into())
    }
}

/// Starts the first helper there is.
fn spawn(prepare: impl Fn(&mut Command) -> io::Result<()>) -> io::Result<std::process::Child> {
    let mut missing = io::Error::from(io::ErrorKind::NotFound);
    for program in PROGRAMS {
        let mut command = Command::new(program);
        prepare(&mut command)?;
        command.stderr(Stdio::piped());
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing = error,
            result => return result,
        }
    }
    Err(missing)
}

/// The descriptor the helper sends, or `None` if it ends without.
fn receive_descriptor(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        let mut data = [IoSliceMut::new(&mut byte)];
        recvmsg(
            socket.as_fd(),
            &mut data,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

/// What the helper wrote, until it ended.
fn complaint(child: &mut std::process::Child) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = child.stderr.take() {
        // A message cut short is still the best there is.
        let _ = pipe.read_to_end(&mut bytes);
    }
    let _ = child.wait();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn explain(message: String) -> MountError {
    if message.contains("user_allow_other") {
        return MountError::AllowOther;
    }
    let errno = errno_in(&message);
    if message.contains("failed to open /dev/fuse: Permission denied") {
        return MountError::ClosedDevice;
    }
    if message.contains("mount failed: Operation not permitted") {
        return MountError::Confined;
    }
    if message.contains("fuse device not found") {
        let device = PathBuf::from(super::DEVICE);
        return MountError::NoDevice { device };
    }
    let message = if message.is_empty() {
        "it ended without a word".to_owned()
    } else {
        message
    };
    MountError::Fusermount { message, errno }
}

/// The helper says errors in words only.
fn errno_in(message: &str) -> Errno {
    let known = [
        ("No such file", Errno::NOENT),
        ("Permission denied", Errno::ACCESS),
        ("busy", Errno::BUSY),
        ("not found in", Errno::INVAL),
        ("Invalid argument", Errno::INVAL),
        ("not connected", Errno::NOTCONN),
    ];
    let found = known.into_iter().find(|(words, _)| message.contains(words));
    found.map_or(Errno::PERM, |(_, errno)| errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_helper_name_their_remedy() {
        for (message, errno, remedy) in [
            (
                "fusermount3: option allow_other only allowed if 'user_allow_other' is set in \
                 /etc/fuse.conf",
                Errno::PERM,
                "put the line user_allow_other",
            ),
            (
                "fusermount3: failed to open /dev/fuse: Permission denied",
                Errno::ACCESS,
                "chmod 0666 /dev/fuse",
            ),
            (
                "fusermount3: mount failed: Operation not permitted",
                Errno::PERM,
                "--cap-add SYS_ADMIN",
            ),
            (
                "fusermount3: fuse device not found, try 'modprobe fuse' first",
                Errno::NOENT,
                "modprobe fuse",
            ),
            (
                "fusermount3: user has no write access to mountpoint /mnt",
                Errno::PERM,
                "no write access to mountpoint /mnt",
            ),
            ("", Errno::PERM, "ended without a word"),
        ] {
            let error = explain(message.to_owned());
            assert_eq!(error.errno(), errno, "{message}");
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
