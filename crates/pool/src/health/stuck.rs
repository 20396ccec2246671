//! Threads of this server that wait for a branch, as the kernel sees them.
//!
//! The kernel shows which system call a thread is in and with which descriptor. Looking there,
//! now and then, spares every request the bookkeeping of what it calls and when; and it misses
//! no call for having been forgotten, reads and writes of data included.

use std::collections::HashMap;
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
                && let Some(mount) = mount_of(descriptor)
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

/// The mount that a descriptor of this process is on, without asking its filesystem.
fn mount_of(descriptor: u32) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

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
        let mount = mount_of(u32::try_from(reader.as_raw_fd()).unwrap()).unwrap();
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
}
