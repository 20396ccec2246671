//! Threads of this server that wait for a branch, as the kernel sees them.
//!
//! The kernel shows which system call a thread is in and with which descriptor. Looking there,
//! now and then, spares every request the bookkeeping of what it calls and when; and it misses
//! no call for having been forgotten, reads and writes of data included.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// One thread in one system call.
struct Wait {
    /// Number, arguments and stack pointer of the call, and how often the thread has run: as long
    /// as all of them stay, it has been asleep in one place.
    place: String,
    since: Instant,
}

/// The threads at the last looks.
#[derive(Default)]
pub(super) struct Waits {
    threads: HashMap<u32, Wait>,
    said_unseen: bool,
}

/// A thread that has been waiting for long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stuck {
    /// The kernel's name of it.
    pub thread: u32,
    /// The mount it waits for.
    pub mount: u64,
    /// For how long, at least.
    pub time: Duration,
}

/// Parts of the names of the functions in which the kernel takes the lock of a directory or of an inode,
/// of Linux 5.15 to 6.18 (`fs/namei.c`, `fs/readdir.c`, `fs/open.c`, `fs/attr.c`, `fs/xattr.c`): there a
/// thread waits for another one, not for its filesystem.
const LOCK_TAKERS: [&str; 20] = [
    "unlink",
    "rmdir",
    "mkdir",
    "mknod",
    "symlinkat",
    "linkat",
    "filename_create",
    "rename",
    "dirop",
    "lookup_slow",
    "lookup_one",
    "walk_component",
    "last_lookups",
    "path_openat",
    "d_alloc_parallel",
    "iterate_dir",
    "chmod_common",
    "chown_common",
    "do_truncate",
    "setxattr",
];

impl Stuck {
    /// Whether the thread is seen to wait for a FUSE server: also of a mount that is gone.
    pub(super) fn waits_for_a_server(&self) -> bool {
        let place = self.place();
        place == "request_wait_answer" || place.contains("fuse_")
    }

    /// Whether the thread is seen to wait for the lock of a directory or an inode.
    pub(super) fn waits_for_a_lock(&self) -> bool {
        let place = self.place();
        LOCK_TAKERS.iter().any(|part| place.contains(part))
    }

    /// The kernel's function in which the thread waits; empty or `0` if it does not say.
    fn place(&self) -> String {
        let place = format!("/proc/self/task/{}/wchan", self.thread);
        std::fs::read_to_string(place).unwrap_or_default()
    }
}

impl Waits {
    /// Looks at all threads; those that have been in one call for `after` at least, on a
    /// descriptor that is open still.
    pub(super) fn look(&mut self, now: Instant, after: Duration) -> Vec<Stuck> {
        let mut seen = HashMap::new();
        let mut stuck = Vec::new();
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
        for task in tasks.flatten() {
            let name = task.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let read = |file: &str| std::fs::read_to_string(task.path().join(file));
            let call = match read("syscall") {
                Ok(call) => call,
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    self.say_unseen();
                    return Vec::new();
                }
                Err(_) => continue,
            };
            let Some(descriptor) = descriptor(&call) else {
                continue;
            };
            let place = call + &read("schedstat").unwrap_or_default();
            let since = match self.threads.remove(&thread) {
                Some(wait) if wait.place == place => wait.since,
                _ => now,
            };
            let time = now.duration_since(since);
            if time >= after
                && let Some(mount) = mount_of(&task.path(), descriptor)
            {
                stuck.push(Stuck {
                    thread,
                    mount,
                    time,
                });
            }
            seen.insert(thread, Wait { place, since });
        }
        self.threads = seen;
        stuck
    }

    fn say_unseen(&mut self) {
        if !std::mem::replace(&mut self.said_unseen, true) {
            tracing::info!(
                "what the server's threads wait for cannot be seen: a branch that hangs is noticed \
                 by the check every branch-check-interval only (core-dumps=true may help)"
            );
        }
    }
}

/// Calls that may sleep, and whose first argument is a small number but no descriptor: a process, a
/// clock, a count, a status.
const OF_OTHER_NUMBERS: [libc::c_long; 6] = [
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_clock_nanosleep,
    libc::SYS_pselect6,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The first argument of the call a thread is in, if it can be a descriptor: `NUMBER 0xARG …`, or
/// `running`, or `-1 …` outside of calls.
fn descriptor(call: &str) -> Option<u32> {
    let mut words = call.split_ascii_whitespace();
    let number = words.next()?.parse::<u32>().ok()?;
    if OF_OTHER_NUMBERS.contains(&libc::c_long::from(number)) {
        return None;
    }
    let first = words.next()?.strip_prefix("0x")?;
    let first = u64::from_str_radix(first, 16).ok()?;
    i32::try_from(first).ok()?.try_into().ok()
}

/// The mount that a descriptor of this thread is on, without asking its filesystem. Some threads
/// have a table of their own, where the number means another file than in that of the others.
fn mount_of(task: &Path, descriptor: u32) -> Option<u64> {
    let info = std::fs::read_to_string(task.join(format!("fdinfo/{descriptor}"))).ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn calls_are_read() {
        let line = "0 0x3 0x7ffc 0x400 0x0 0x0 0x0 0x7ffc1 0x7f02";
        assert_eq!(descriptor(line), Some(3));
        for none in ["running", "-1 0x7ffc 0x7f", "257 0xffffffffffffff9c 0x0"] {
            assert_eq!(descriptor(none), None, "{none}");
        }
    }

    /// A branch was taken for dead, half a minute after the mount: the guardian had the number of a
    /// descriptor on it, as it easily has in a container, and a thread waits for its end.
    #[test]
    fn who_waits_for_a_process_of_a_descriptors_number_waits_for_no_branch() {
        let line = |call: libc::c_long| format!("{call} 0x19 0x0 0x0 0x0 0x0 0x0 0x7f 0x7f");
        for call in OF_OTHER_NUMBERS {
            assert_eq!(descriptor(&line(call)), None, "{call}");
        }
        assert_eq!(descriptor(&line(libc::SYS_read)), Some(0x19));
    }

    #[test]
    fn a_thread_that_waits_is_found_with_the_mount_it_waits_for() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let number = u32::try_from(reader.as_raw_fd()).unwrap();
        let mount = mount_of(Path::new("/proc/self"), number).unwrap();
        let waiting = std::thread::spawn(move || reader.read(&mut [0; 1]));
        let mut waits = Waits::default();
        let (start, after) = (Instant::now(), Duration::from_millis(100));
        let found = loop {
            let found = waits.look(Instant::now(), after);
            if found.iter().any(|stuck| stuck.mount == mount) {
                break found;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "not found");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(found.iter().all(|stuck| stuck.time >= after));
        drop(writer);
        waiting.join().unwrap().unwrap();
    }

    /// A branch was taken for dead while thousands of files were open: the number of the socket that
    /// the thread waits for was that of a file of the branch.
    #[test]
    fn a_thread_with_descriptors_of_its_own_waits_for_its_own() {
        fn wait(socket: OwnedFd) {
            let _ = File::from(socket).read(&mut [0; 1]);
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        crate::base::sys::spawn_with_own_table("own-table", &theirs, wait).unwrap();
        drop(theirs);
        // Every number there may be is one of these in the table that the others share.
        let files: Vec<File> = (0..64).map(|_| tempfile::tempfile().unwrap()).collect();
        let number = u32::try_from(files[0].as_raw_fd()).unwrap();
        let mount = mount_of(Path::new("/proc/self"), number).unwrap();
        let mut waits = Waits::default();
        // Other tests may be waiting for this filesystem.
        let is_it = |stuck: &Stuck| {
            let name = format!("/proc/self/task/{}/comm", stuck.thread);
            std::fs::read_to_string(name).is_ok_and(|name| name == "own-table\n")
        };
        let start = Instant::now();
        let found = loop {
            let mut stuck = waits.look(Instant::now(), Duration::from_millis(20));
            stuck.retain(is_it);
            if !stuck.is_empty() {
                break stuck;
            }
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(found.iter().all(|stuck| stuck.mount != mount), "{found:?}");
        drop(ours);
    }
}
