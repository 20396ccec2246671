//! The guardian: a small process that outlives the server, frees whoever waits for it, and with
//! `auto-unmount` unmounts what it left behind.
//!
//! A killed server does not always close `/dev/fuse` (see [`strandfs_fuse::hold_until_death`]), and
//! until then the kernel lets its clients wait for an answer, for ever. The guardian holds the file
//! that aborts the connection and the reading end of a pipe that ends with the server.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::failure::Failure;

/// What the process is called, by `ps` too: not `strandfs`, so that what is aimed at all servers
/// does not hit what guards against it.
const NAME: &str = "strandfs-guard";

/// Before the mountpoint: unmount as well.
const UNMOUNTS: &str = "--unmount";

/// This program, even if its file was replaced or is hidden by a mount.
const PROGRAM: &str = "/proc/self/exe";

/// How long a dead server's mount may take to say so.
const PATIENCE: Duration = Duration::from_secs(60);

/// A guardian as the server sees it, or why there is none.
pub struct Guard(Result<Mutex<Child>, String>);

/// In the server, before it serves: starts the guardian. `abort_file` is what it writes to once the
/// server is dead.
///
/// # Errors
/// `auto-unmount` asks for it and it cannot be started.
pub fn start(
    mountpoint: &Path,
    abort_file: Result<OwnedFd, Errno>,
    unmounts: bool,
) -> Result<Guard, Failure> {
    let why_no_file = abort_file.as_ref().err().map(|errno| explain(*errno));
    if let (Some(why), false) = (&why_no_file, unmounts) {
        return Ok(Guard(Err(why.clone())));
    }
    match spawn(mountpoint, abort_file.ok(), unmounts) {
        // There to unmount, and no more.
        Ok(child) if why_no_file.is_some() => {
            // Reaped by whoever reaps the server.
            drop(child);
            Ok(Guard(Err(why_no_file.unwrap_or_default())))
        }
        Ok(child) => Ok(Guard(Ok(Mutex::new(child)))),
        Err(error) if unmounts => Err(Failure::system("starting the process for auto-unmount")(
            error,
        )),
        Err(error) => Ok(Guard(Err(format!("it cannot be started: {error}")))),
    }
}

fn spawn(mountpoint: &Path, abort_file: Option<OwnedFd>, unmounts: bool) -> std::io::Result<Child> {
    let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
    strandfs_fuse::hold_until_death(ours.as_fd())?;
    Command::new(PROGRAM)
        .arg0(NAME)
        .args(unmounts.then_some(UNMOUNTS))
        .arg(mountpoint)
        .stdin(Stdio::from(theirs))
        .stdout(abort_file.map_or_else(Stdio::null, Stdio::from))
        // Not ours: whoever waits for the end of that must not wait for the guardian.
        .stderr(Stdio::null())
        .spawn()
}

fn explain(errno: Errno) -> String {
    let control = "/sys/fs/fuse/connections";
    match errno {
        Errno::NOENT | Errno::PERM | Errno::ACCESS => format!(
            "the connection cannot be aborted by this user ({errno}): have the control filesystem \
             mounted (mount -t fusectl none {control})"
        ),
        errno => format!("the connection's file in {control} cannot be opened: {errno}"),
    }
}

impl Guard {
    /// The guardian's process id.
    ///
    /// # Errors
    /// There is none (any more), and why.
    pub fn pid(&self) -> Result<u32, String> {
        let child = self.0.as_ref().map_err(Clone::clone)?;
        let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
        match child.try_wait() {
            Ok(None) => Ok(child.id()),
            Ok(Some(status)) => Err(format!(
                "it has ended ({status}); it is back when the mount is mounted again"
            )),
            Err(error) => Err(format!("it cannot be asked after: {error}")),
        }
    }
}

/// Whether the program was started as a guardian.
pub fn is_called(program: Option<&std::ffi::OsString>) -> bool {
    program.is_some_and(|name| name == NAME)
}

/// In the guardian: waits for the end of the server and does what is left to do.
pub fn main(arguments: Vec<std::ffi::OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().skip(1).peekable();
    let unmounts = arguments.next_if(|word| word == UNMOUNTS).is_some();
    let Some(mountpoint) = arguments.next().map(PathBuf::from) else {
        return ExitCode::from(crate::failure::USAGE);
    };
    // The server may have been started with more than it knows of.
    let _ = strandfs_fuse::close_inherited();
    // A service manager asks all processes of a service to end, and a terminal those of its
    // session: the server is to end in order then, and the guardian with it.
    let _signals = strandfs_fuse::Signals::block();
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    let _ = rustix::thread::set_name(c"strandfs-guard");
    if !unmounts {
        give_up_everything();
    }
    // Nothing is ever sent; an error ends the wait as well.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    // After a server that has ended in order the connection is gone, and this without effect.
    let _ = rustix::io::write(rustix::stdio::stdout(), b"1");
    if unmounts && strandfs_fuse::recover_dying_mountpoint(&mountpoint, PATIENCE).is_err() {
        return ExitCode::from(crate::failure::FAILED);
    }
    ExitCode::SUCCESS
}

/// Writing to a file that is open already takes no right at all.
fn give_up_everything() {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    let _ = rustix::thread::set_capabilities(None, none);
    let _ = rustix::thread::set_no_new_privs(true);
}
