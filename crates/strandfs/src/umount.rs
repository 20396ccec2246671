//! `strandfs umount`.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use strandfs_fuse::{UnmountMode, WatchedConnection};

use crate::args::UmountArgs;
use crate::check::clear_killed;
use crate::control::client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::logging::one_line;
use crate::{deaths, mounts, probe};

/// How long a mount in use may take to say that its server is dead, which it does at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the server may take to end after the last mount of its pool is gone.
const END_PATIENCE: Duration = Duration::from_secs(15);

/// How long it takes as a rule. Only after that it is asked who still uses the pool.
const USUAL_END: Duration = Duration::from_millis(500);

/// `strandfs umount`.
///
/// # Errors
/// As for [`end`].
pub fn run(args: &UmountArgs) -> Result<ExitCode, Failure> {
    end(args).map(ExitCode::from)
}

/// Unmounts a pool, and waits for its server to end: then the branches are free, and what mounts the
/// pool again finds nothing left of the last mount. [`Exit::Degraded`] if the server goes on, which
/// has been said then.
///
/// # Errors
/// No pool is mounted there, or it is in use.
pub fn end(args: &UmountArgs) -> Result<Exit, Failure> {
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
        return Ok(Exit::Ok);
    }
    // What is still to be written waits for the server, and unmounting for that.
    if let Some(why) = mounts::hindrance(&real) {
        // Killed since.
        if clear_killed(&real).is_ok_and(|cleared| cleared) {
            deaths::forget(&real);
            return Ok(Exit::Ok);
        }
        return Err(failure(why));
    }
    let server = Server::of(&real);
    let mode = match args.lazy {
        true => UnmountMode::Detach,
        false => UnmountMode::IfUnused,
    };
    let outcome = match strandfs_fuse::unmount(&real, mode) {
        Err(error) if is(&error, Errno::BUSY) && is_dead(&real) => {
            say!(
                "the server of {} is dead: detached from those who still use it",
                path.display()
            );
            strandfs_fuse::unmount(&real, UnmountMode::Detach)
        }
        // Somebody else was first, as a server that was told to end is.
        Err(error) if is(&error, Errno::INVAL) && is_gone(&real) => Ok(()),
        outcome => outcome,
    };
    outcome.map_err(|error| match error {
        error if is(&error, Errno::BUSY) => Failure::InUse {
            path: path.clone(),
            why: "it is in use (`fuser -vm` shows by whom); close what uses it, or give --lazy"
                .to_owned(),
        },
        error if is(&error, Errno::PERM) || !is_own(&real) => Failure::NotPermitted {
            path: path.clone(),
            why: "only root or the user who mounted it may unmount it".to_owned(),
        },
        error => failure(error.to_string()),
    })?;
    deaths::forget(&real);
    // One that is detached lives for as long as somebody uses it, which is what was asked for.
    let goes_on = server.filter(|_| !args.lazy).and_then(Server::wait);
    Ok(match goes_on {
        None => Exit::Ok,
        Some(why) => {
            say!("{}: unmounted here, but {why}", path.display());
            Exit::Degraded
        }
    })
}

/// The server of a mount, whatever becomes of the mount.
struct Server {
    pid: u32,
    process: OwnedFd,
    mounted: mounts::Mounted,
    /// None where this user may not know: whether the mount's number is its own still.
    connection: Option<WatchedConnection>,
}

impl Server {
    /// None where it is not to be known: of other users, and in other namespaces.
    fn of(mountpoint: &Path) -> Option<Server> {
        let (pid, _) = client::socket_of(mountpoint)?;
        let process = pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()?;
        let mut here = mounts::list().ok()?.into_iter();
        let mounted = here.rfind(|it| it.mountpoint == mountpoint)?;
        let connection = strandfs_fuse::watch_connection(mountpoint).ok().flatten();
        Some(Server {
            pid,
            process,
            mounted,
            connection,
        })
    }

    /// Returns when it has ended, or why it has not.
    fn wait(self) -> Option<String> {
        if self.has_ended_within(USUAL_END) {
            return None;
        }
        let deadline = Instant::now() + END_PATIENCE;
        while Instant::now() < deadline {
            let used = self.used_elsewhere();
            // Asked afterwards: the number of its device was not another mount's before that.
            let used = used.filter(|_| self.is_there() != Some(false));
            if self.has_ended_within(USUAL_END) {
                return None;
            }
            if let Some(used) = used {
                return Some(format!("its server (pid {}) goes on: {used}", self.pid));
            }
        }
        let why = match self.is_there() {
            Some(true) => {
                "somebody uses the pool still, in a mount that is detached (umount -l) or cannot be seen \
                 from here"
            }
            _ => "a branch may hang (`dmesg` may tell)",
        };
        Some(format!(
            "its server (pid {}) has not ended within {} seconds: {why}; it still holds the branches",
            self.pid,
            END_PATIENCE.as_secs()
        ))
    }

    /// Whether there is a mount of the pool still, anywhere.
    fn is_there(&self) -> Option<bool> {
        self.connection.as_ref()?.is_there().ok()
    }

    fn has_ended_within(&self, patience: Duration) -> bool {
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        let patience = Timespec::try_from(patience).ok();
        poll(&mut ended, patience.as_ref()).is_ok_and(|ready| ready > 0)
    }

    /// Where else the pool is mounted, as a sentence.
    fn used_elsewhere(&self) -> Option<String> {
        let mut here = mounts::list().unwrap_or_default().into_iter();
        if let Some(other) = here.find(|it| it.is_of_the_filesystem_of(&self.mounted)) {
            let place = one_line(&other.mountpoint.to_string_lossy());
            return Some(format!("the pool is mounted at {place}, too"));
        }
        let (pid, name) = mounts::seen_elsewhere(&self.mounted)?;
        let name = one_line(&name);
        Some(format!(
            "process {pid} ({name}) still sees the pool in a mount namespace of its own (a \
             container, a service with mounts of its own), and the server serves it until that ends"
        ))
    }
}

/// Whether this user may unmount it. `fusermount3` says of what others have mounted that it is not
/// there.
fn is_own(mountpoint: &Path) -> bool {
    let user = rustix::process::geteuid();
    let here = |it: &mounts::Mounted| it.mountpoint == mountpoint;
    let mounted = mounts::list()
        .ok()
        .and_then(|all| all.into_iter().rfind(here));
    user.is_root() || mounted.is_none_or(|it| it.owner.is_none_or(|owner| owner == user.as_raw()))
}

/// Whether no pool is mounted there any more.
fn is_gone(mountpoint: &Path) -> bool {
    mounts::find(mountpoint).is_ok_and(|pool| pool.is_none())
}

fn is(error: &std::io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Whether the mount says that its server is dead; a server that lives may take its time to answer.
fn is_dead(mountpoint: &Path) -> bool {
    let asked = probe::filesystem(mountpoint, PATIENCE);
    asked.is_err_and(|error| is(&error, Errno::NOTCONN))
}
