//! Serving in the background: `mount` starts the server as a child, waits until it serves, and
//! returns with its word.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::args::MountArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::plan::MountPlan;

/// What the server writes to its standard output once the mount answers.
const READY: &[u8] = b"ready";

/// How long the mount of a dead server may take to say so.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts this program again as the server of a pool, see [`start`]: it gets the plan, and the
/// mountpoint among its arguments for whoever lists processes.
///
/// # Errors
/// As [`start`].
pub fn start_server(plan: MountPlan) -> Result<Exit, Failure> {
    let mountpoint = plan.mountpoint.to_string_lossy().into_owned();
    let place = plan.mountpoint.clone();
    let plan = plan.send();
    let plan = plan.map_err(Failure::system("handing the plan to the server"))?;
    start(
        ["mount", "--background-server", "--", &mountpoint],
        plan.into(),
        &place,
    )
}

/// Starts this program again with these arguments and this standard input, as a server, and waits
/// for it to be ready. Returns [`Exit::Ok`] if it serves, else how it ended; nothing is left on the
/// mountpoint then, though the server was killed.
///
/// # Errors
/// The child could not be started. A child that fails has said why on standard error.
pub fn start<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
    input: Stdio,
    mountpoint: &Path,
) -> Result<Exit, Failure> {
    let program = std::env::current_exe().map_err(Failure::system("finding the program"))?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::system("starting the server"))?;
    let mut word = Vec::new();
    if let Some(mut from_child) = child.stdout.take() {
        from_child
            .read_to_end(&mut word)
            .map_err(Failure::system("waiting for the server"))?;
    }
    if word == READY {
        return Ok(Exit::Ok);
    }
    let status = child
        .wait()
        .map_err(Failure::system("waiting for the server"))?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) | None => {
            // Had it ended by itself, it would have unmounted.
            let left = strandfs_fuse::recover_dying_mountpoint(mountpoint, PATIENCE);
            let left = left
                .err()
                .filter(|error| error.kind() != ErrorKind::NotFound);
            let left = left.map(|error| {
                format!(
                    ", and what it left at {} cannot be unmounted: {error}",
                    mountpoint.display()
                )
            });
            let left = left.unwrap_or_default();
            Err(Failure::Background(format!(" ({status}){left}")))
        }
        Some(code) => Ok(Exit::of_code(code)),
    }
}

/// The arguments in the form of `strandfs mount`, however they came in.
pub fn mount_arguments(args: &MountArgs) -> Vec<&str> {
    let mut arguments = Vec::new();
    let flags = [
        (args.read_only, "--read-only"),
        (args.from_mount, "--from-mount"),
        (args.sloppy, "--sloppy"),
        (args.as_user, "--as-user"),
    ];
    arguments.extend(flags.iter().filter(|(on, _)| *on).map(|(_, flag)| *flag));
    for options in &args.options {
        arguments.extend(["-o", options]);
    }
    arguments.push("--");
    arguments.extend(args.paths.iter().map(String::as_str));
    arguments
}

/// In the server: leaves the caller's terminal and directory, tells the waiting parent, then lets
/// go of the standard streams.
///
/// Not sooner than the mount serves: on an automount point (`x-systemd.automount`) the kernel lets
/// only the process group of whoever asked for the mount look at the mountpoint until it is there.
pub fn report_ready() {
    // A session leader already is as detached as can be.
    let _ = rustix::process::setsid();
    if let Err(error) = rustix::process::chdir("/") {
        tracing::warn!(%error, "cannot leave the directory the pool was mounted from");
    }
    let _ = std::io::stdout()
        .write_all(READY)
        .and_then(|()| std::io::stdout().flush());
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    else {
        return;
    };
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}
