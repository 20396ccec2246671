//! The threads of a process as `/proc` shows them. A thread may end while a test looks at it, so
//! what is asked of one that has gone is nothing, and no failure of the test.

use std::fs;
use std::path::PathBuf;

/// A thread that was there a moment ago.
pub struct Thread {
    pub tid: i32,
    dir: PathBuf,
}

impl Thread {
    /// What a file of the thread's directory holds, unless the thread has ended.
    pub fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(file)).ok()
    }

    /// What the thread calls itself; nothing once it has ended.
    pub fn name(&self) -> String {
        self.read("comm").unwrap_or_default().trim().to_owned()
    }

    /// A field of the thread's `status`, without the colon and the blanks around the value.
    pub fn status(&self, field: &str) -> Option<String> {
        let status = self.read("status")?;
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(value.trim().to_owned())
    }

    /// The fields of the thread's `stat` that follow its name, state first (proc_pid_stat(5)).
    pub fn stat(&self) -> Option<Vec<String>> {
        let stat = self.read("stat")?;
        // The name stands in brackets and may hold both blanks and brackets.
        let (_, fields) = stat.rsplit_once(')')?;
        Some(fields.split_whitespace().map(str::to_owned).collect())
    }

    /// Whether the thread is stopped, or has ended.
    pub fn is_stopped(&self) -> bool {
        self.stat()
            .is_none_or(|fields| fields.first().is_some_and(|state| state == "T"))
    }

    /// The processes that the thread started and that have not been waited for.
    pub fn children(&self) -> Vec<u32> {
        let children = self.read("children").unwrap_or_default();
        children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    }
}

/// The threads of a process, none of a process that has ended.
pub fn threads(process: u32) -> Vec<Thread> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let tid = task.file_name().to_str()?.parse().ok()?;
            Some(Thread {
                tid,
                dir: task.path(),
            })
        })
        .collect()
}

/// The thread that asks.
pub fn own_thread() -> Thread {
    Thread {
        tid: rustix::thread::gettid().as_raw_nonzero().get(),
        dir: PathBuf::from("/proc/thread-self"),
    }
}
