//! Servers that do not answer: those that are stopped, and those that were killed and cannot end,
//! since a thread of theirs waits, inside the kernel, for whoever waits for an answer of the server.
//! Asking their mount anything would wait as well, so what is known of them comes from `/proc`.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, geteuid, pidfd_getfd, pidfd_open};

use super::abort::is_connected;
use crate::read_lossy;

/// The bit of SIGKILL in the masks of `/proc/PID/task/TID/status`.
const KILLED: u64 = 1 << 8;

/// How long a process that was killed may take to end where nothing holds it up, also on a machine with much else to
/// do (a load of 10 took three); and the pause between looks.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// Whether the server of a connection was killed and is held up. False where `/proc` does not tell
/// (other users' servers; kernels that do not show which connection a device belongs to). Waits a moment
/// for one that is no more than about to end.
pub(super) fn server_is_killed(connection: u32) -> bool {
    let begun = Instant::now();
    while is_being_killed(connection) {
        if begun.elapsed() > ENDS_WITHIN {
            return true;
        }
        thread::sleep(LOOK);
    }
    false
}

fn is_being_killed(connection: u32) -> bool {
    // Most tasks were not killed: what those have open is looked at only where it decides.
    tasks().any(|(task, is_killed)| is_killed && serves(&task, connection))
        && !tasks().any(|(task, is_killed)| !is_killed && goes_on_serving(&task, connection))
}

/// The process that serves a connection, if that is stopped (SIGSTOP, a debugger). None where
/// `/proc` does not tell, and where another one serves it: a server may outlive its mount, whose
/// number the next mount has.
pub(super) fn stopped_server(connection: u32) -> Option<u32> {
    let is_stopped_now = |process: &Path| {
        let status = read_lossy(process.join("status")).ok()?;
        Some(is_stopped(&status))
    };
    let server = processes()
        .find(|process| is_stopped_now(process) == Some(true) && serves(process, connection))?;
    let goes_on = processes().any(|process| {
        is_stopped_now(&process) == Some(false) && goes_on_serving(&process, connection)
    });
    match goes_on {
        true => None,
        false => server.file_name()?.to_str()?.parse().ok(),
    }
}

/// Whether this process serves a connection; false where `/proc` does not tell.
pub(super) fn is_served_by(connection: u32, pid: u32) -> bool {
    serves(&Path::new("/proc").join(pid.to_string()), connection)
}

fn numbers(dir: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    })
}

fn processes() -> impl Iterator<Item = PathBuf> {
    numbers(Path::new("/proc")).map(|entry| entry.path())
}

/// All tasks, each with whether it was killed.
fn tasks() -> impl Iterator<Item = (PathBuf, bool)> {
    processes().flat_map(|process| {
        numbers(&process.join("task")).filter_map(|entry| {
            let task = entry.path();
            let status = read_lossy(task.join("status")).ok()?;
            Some((task, is_killed(&status)))
        })
    })
}

fn is_killed(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & KILLED != 0)
}

fn is_stopped(status: &str) -> bool {
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| state.trim_start().starts_with(['T', 't']))
}

/// Whether the task has the connection's device open. By what `fdinfo` says of each descriptor: a link
/// in `fd` cannot be read while the task becomes another program, which may take for ever. Not if the
/// descriptor is seen to be of an earlier connection with this number, whose server takes its time to end.
fn serves(task: &Path, connection: u32) -> bool {
    let infos = fs::read_dir(task.join("fdinfo"));
    let mut infos = infos.into_iter().flatten().flatten();
    infos.any(|info| {
        let text = read_lossy(info.path());
        text.is_ok_and(|text| connection_of(&text) == Some(connection))
            && has_ended(task, &info, connection) != Some(true)
    })
}

/// The same of a task that has the device for longer than one that looks at it, as this program does
/// ([`has_ended`]).
fn goes_on_serving(task: &Path, connection: u32) -> bool {
    serves(task, connection)
        && (0..3).all(|_| {
            thread::sleep(LOOK);
            serves(task, connection)
        })
}

/// Whether a descriptor's connection has ended, asked of the device itself. None where that may not be
/// done: it takes the right to trace the process, and Linux 5.6. Nor of other users' processes: they could
/// have something else there by then, of which it is to wait for them to close it.
fn has_ended(task: &Path, info: &fs::DirEntry, connection: u32) -> Option<bool> {
    let process = task.components().nth(2)?.as_os_str().to_str()?;
    let process = Pid::from_raw(process.parse().ok()?)?;
    let process = pidfd_open(process, PidfdFlags::empty()).ok()?;
    // After that: if the number is another process' by now, the first one is gone.
    let status = read_lossy(task.join("status")).ok()?;
    is_of_user(&status, geteuid().as_raw()).then_some(())?;
    let number = info.file_name().to_str()?.parse().ok()?;
    let device = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
    // A thread with descriptors of its own has something else there than its process.
    is_of(&device, connection).then_some(())?;
    is_connected(device.as_fd())
        .ok()
        .map(|connected| !connected)
}

/// Whether all that a process may do it does as this user.
fn is_of_user(status: &str, user: u32) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| {
        ids.split_whitespace()
            .all(|id| id.parse() == Ok::<u32, _>(user))
    })
}

fn is_of(device: &OwnedFd, connection: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", device.as_raw_fd()));
    info.is_ok_and(|info| connection_of(&info) == Some(connection))
}

fn connection_of(fdinfo: &str) -> Option<u32> {
    let number = fdinfo
        .lines()
        .find_map(|line| line.strip_prefix("fuse_connection:"))?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_understood() {
        let status = "Name:\tx\nState:\tD (disk sleep)\nSigPnd:\t0000000000000100\nShdPnd:\t0\n";
        assert!(is_killed(status));
        assert!(!is_killed(&status.replace("100", "200")));
        assert!(!is_killed("Name:\tx\n"));
        assert!(!is_stopped(status));
        assert!(is_of_user("Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t0\n", 7));
        assert!(!is_of_user("Uid:\t7\t0\t0\t0\n", 0) && !is_of_user("Gid:\t0\n", 0));
        assert!(is_stopped(&status.replace("D (disk sleep)", "T (stopped)")));
        assert_eq!(connection_of("pos:\t0\nfuse_connection:\t52\n"), Some(52));
        assert_eq!(connection_of("pos:\t0\n"), None);
    }
}
