//! Who has files of the pool open.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use crate::base::metrics::{User, Users};
use crate::base::status::count;
use crate::state::State;
use crate::state::open_file::Opener;

/// So many are told of.
const TOLD_MAX: usize = 64;
/// Of so many threads it is asked whose they are.
const ASKED_MAX: usize = 512;
/// What is needed of a process's status is at its beginning.
const STATUS_MAX_BYTES: u64 = 4096;
/// The user whom the kernel does not name.
const UNNAMED: u32 = u32::MAX;

/// Files open, and those among them for writing.
#[derive(Clone, Copy, Default)]
struct Open {
    files: u64,
    for_writing: u64,
}

impl Open {
    fn add(&mut self, other: Open) {
        self.files += other.files;
        self.for_writing += other.for_writing;
    }
}

/// A process, as far as it can be seen.
#[derive(PartialEq, Eq, Hash)]
struct Process {
    pid: u32,
    uid: u32,
    command: Option<String>,
}

/// Those with most files open. Looks at all open files, and into `/proc`.
pub(crate) fn users(pool: &State) -> Users {
    let mut by_thread: HashMap<Opener, Open> = HashMap::new();
    pool.files.each(|file| {
        by_thread.entry(file.opener).or_default().add(Open {
            files: 1,
            for_writing: u64::from(file.writable),
        });
    });
    let mut threads: Vec<(Opener, Open)> = by_thread.into_iter().collect();
    threads.sort_unstable_by_key(|(_, open)| std::cmp::Reverse(open.files));
    let not_asked = threads.len().saturating_sub(ASKED_MAX);
    let mut by_process: HashMap<Process, Open> = HashMap::new();
    for (opener, open) in threads.into_iter().take(ASKED_MAX) {
        by_process.entry(process_of(opener)).or_default().add(open);
    }
    let mut processes: Vec<User> = by_process
        .into_iter()
        .map(|(process, open)| User {
            pid: process.pid,
            uid: Some(process.uid).filter(|uid| *uid != UNNAMED),
            command: process.command,
            open_files: open.files,
            open_for_writing: open.for_writing,
        })
        .collect();
    processes.sort_unstable_by_key(|user| (std::cmp::Reverse(user.open_files), user.pid));
    let left_out = count(processes.len().saturating_sub(TOLD_MAX) + not_asked);
    processes.truncate(TOLD_MAX);
    Users {
        processes,
        left_out,
    }
}

fn process_of(opener: Opener) -> Process {
    let known = status_of(opener.thread);
    Process {
        pid: known.as_ref().map_or(opener.thread, |(pid, _)| *pid),
        uid: opener.uid,
        command: known.map(|(_, command)| command),
    }
}

/// The process of a thread, and its name.
fn status_of(thread: u32) -> Option<(u32, String)> {
    let file = File::open(format!("/proc/{thread}/status")).ok()?;
    let mut status = Vec::new();
    file.take(STATUS_MAX_BYTES).read_to_end(&mut status).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name))
    };
    // Newlines in a name are escaped there.
    let pid = line("Tgid:")?.trim().parse().ok()?;
    Some((pid, line("Name:")?.trim_start_matches('\t').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_by_its_process_and_one_that_has_ended_by_itself() {
        let own = rustix::thread::gettid();
        let own = own.as_raw_nonzero().get().cast_unsigned();
        let process = process_of(Opener {
            thread: own,
            uid: 5,
        });
        assert_eq!((process.pid, process.uid), (std::process::id(), 5));
        assert!(process.command.is_some());
        let ended = process_of(Opener {
            thread: u32::MAX,
            uid: 5,
        });
        assert_eq!((ended.pid, ended.command), (u32::MAX, None));
    }
}
