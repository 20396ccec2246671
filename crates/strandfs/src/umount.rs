//! `strandfs umount`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::io::Errno;
use strandfs_fuse::UnmountMode;

use crate::args::UmountArgs;
use crate::check::clear_killed;
use crate::failure::Failure;
use crate::{deaths, mounts, probe};

/// How long a mount in use may take to say that its server is dead, which it does at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Unmounts a pool.
///
/// # Errors
/// No pool is mounted there, or it is in use.
pub fn run(args: &UmountArgs) -> Result<ExitCode, Failure> {
    let path = &args.mountpoint;
    // A dead mount cannot be resolved; its name is taken as it is.
    let real = std::fs::canonicalize(path)
        .or_else(|_| std::path::absolute(path))
        .unwrap_or_else(|_| path.clone());
    deaths::tell(&real);
    let failure = |why: String| Failure::Unmount {
        path: path.clone(),
        why,
    };
    if mounts::find(&real)
        .map_err(Failure::system("reading /proc/self/mountinfo"))?
        .is_none()
    {
        return Err(Failure::NotMounted(path.clone()));
    }
    let cleared = clear_killed(&real).map_err(|error| {
        failure(format!(
            "its server was killed and cannot end, and its connection cannot be aborted: {error}"
        ))
    })?;
    if cleared {
        deaths::forget(&real);
        return Ok(ExitCode::SUCCESS);
    }
    // What is still to be written waits for the server, and unmounting for that.
    if let Some(why) = mounts::hindrance(&real) {
        return Err(failure(why));
    }
    let mode = match args.lazy {
        true => UnmountMode::Detach,
        false => UnmountMode::IfUnused,
    };
    let outcome = match strandfs_fuse::unmount(&real, mode) {
        Err(error) if is(&error, Errno::BUSY) && is_dead(&real) => {
            eprintln!(
                "strandfs: the server of {} is dead: detached from those who still use it",
                path.display()
            );
            strandfs_fuse::unmount(&real, UnmountMode::Detach)
        }
        outcome => outcome,
    };
    outcome.map_err(|error| {
        failure(match error {
            error if is(&error, Errno::BUSY) => {
                "it is in use (`fuser -vm` shows by whom); close what uses it, or give --lazy"
                    .to_owned()
            }
            error if is(&error, Errno::PERM) => {
                "only root or the user who mounted it may".to_owned()
            }
            error => error.to_string(),
        })
    })?;
    deaths::forget(&real);
    Ok(ExitCode::SUCCESS)
}

fn is(error: &std::io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Whether the mount says that its server is dead; a server that lives may take its time to answer.
fn is_dead(mountpoint: &Path) -> bool {
    let asked = probe::filesystem(mountpoint, PATIENCE);
    asked.is_err_and(|error| is(&error, Errno::NOTCONN))
}
