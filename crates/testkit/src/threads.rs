//! The threads of a process as `/proc` shows them. A thread may end while a test looks at it, so
//! what is asked of one that has gone is nothing, and no failure of the test.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

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

/// A process that stands still until this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops the process. One of its threads is told at first and tells the others; each stops when it
    /// next looks, and may still answer until then.
    #[track_caller]
    pub fn new(process: u32) -> Stopped {
        let pid = Pid::from_raw(process.cast_signed()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let stopped = Stopped(pid);
        eventually("the process to stop", Duration::from_secs(10), || {
            threads(process).iter().all(Thread::is_stopped)
        });
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).ok();
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
