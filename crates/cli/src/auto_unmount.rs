//! `auto-unmount`: a process that outlives the server and unmounts what it left behind.
//!
//! It holds one end of a pipe whose other end only the server has. However the server ends, the
//! kernel then closes that end.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::failure::Failure;

/// How long a server may take to be gone once its end of the pipe is closed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the server holds on to for as long as it lives.
pub struct Lifeline {
    _end: OwnedFd,
}

/// In the server: starts the process.
///
/// # Errors
/// It cannot be started.
pub fn start(mountpoint: &Path) -> Result<Lifeline, Failure> {
    let failed = Failure::system("starting the process for auto-unmount");
    let attempt = || -> std::io::Result<Lifeline> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        // Not our output: whoever waits for the end of that must not wait for this process.
        Command::new(std::env::current_exe()?)
            // The program takes other names for other commands.
            .arg0("strandfs")
            .args(["umount", "--after-server"])
            .arg(mountpoint)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Lifeline { _end: ours })
    };
    attempt().map_err(failed)
}

/// In that process: waits for the end of the server and clears its mount away if it is dead.
///
/// # Errors
/// It cannot be unmounted.
pub fn wait(mountpoint: &Path) -> Result<ExitCode, Failure> {
    // A signal for the server's terminal or session is none for this process.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/").map_err(|errno| Failure::System {
        what: "leaving the directory",
        source: errno.into(),
    })?;
    // Nothing is ever sent; an error ends the wait as well.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    strandfs_fuse::recover_dying_mountpoint(mountpoint, PATIENCE).map_err(|error| {
        Failure::Unmount {
            path: mountpoint.to_owned(),
            why: error.to_string(),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
