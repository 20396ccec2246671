//! Runs the program: a few at once, each for a bounded time.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};

use super::message::Variables;
use super::program;

/// So many run at once.
const AT_ONCE: usize = 4;
/// So many wait for those.
const QUEUED_MAX: usize = 64;
/// What the program finds programs by.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where what goes wrong is said.
pub type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// Told how the run for an event went.
pub type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// What the program is to run for.
struct Event {
    variables: Variables,
    done: Option<Done>,
}

/// Runs a program for each event.
pub struct Runner {
    queue: Arc<Queue>,
    say: Say,
}

struct Queue {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    busy: usize,
    /// Events that found no room since one did.
    left_out: u64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runner {
    /// Starts the threads.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(words: Vec<OsString>, limit: Duration, say: Say) -> std::io::Result<Runner> {
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            news: Condvar::new(),
        });
        let words = Arc::new(words);
        for _ in 0..AT_ONCE {
            let (queue, words, say) = (queue.clone(), words.clone(), say.clone());
            std::thread::Builder::new()
                .name("strandfs-run".to_owned())
                .spawn(move || work(&queue, &words, limit, &say))?;
        }
        Ok(Runner { queue, say })
    }

    /// Has the program run for an event; one too many is left out.
    pub fn run(&self, variables: Variables, done: Option<Done>) {
        let mut state = self.queue.lock();
        if state.events.len() >= QUEUED_MAX {
            state.left_out += 1;
            if state.left_out == 1 {
                (self.say)("events are left out: notify.command does not come to its end");
            }
            drop(state);
            if let Some(done) = done {
                done(Err("too many events wait for it".to_owned()));
            }
            return;
        }
        state.left_out = 0;
        state.events.push_back(Event { variables, done });
        self.queue.news.notify_all();
    }

    /// Waits until all have run.
    pub fn finish(&self, patience: Duration) {
        let state = self.queue.lock();
        let busy = |state: &mut State| !state.events.is_empty() || state.busy > 0;
        let _ = self.queue.news.wait_timeout_while(state, patience, busy);
    }
}

fn work(queue: &Queue, words: &[OsString], limit: Duration, say: &Say) {
    let mut state = queue.lock();
    loop {
        let Some(event) = state.events.pop_front() else {
            state = queue
                .news
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.busy += 1;
        drop(state);
        let outcome = run(words, event.variables, limit);
        if let Err(why) = &outcome {
            say(&format!("notify.command: {why}"));
        }
        if let Some(done) = event.done {
            done(outcome);
        }
        state = queue.lock();
        state.busy -= 1;
        queue.news.notify_all();
    }
}

/// Runs it to its end.
///
/// # Errors
/// It cannot be run, took too long or failed; a clause for people.
fn run(words: &[OsString], variables: Variables, limit: Duration) -> Result<(), String> {
    let (path, arguments) = words.split_first().ok_or("there is no program")?;
    // It may have been replaced since the mount.
    program::check(path.as_ref(), None)?;
    let begun = Instant::now();
    let mut child = Command::new(path)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .envs(variables)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("it cannot be started: {error}"))?;
    let on_time = wait(&child, limit.saturating_sub(begun.elapsed()));
    if !on_time {
        kill_group(&child);
    }
    let status = child.wait();
    match (on_time, status) {
        (false, _) => Err(format!("killed after {} s", limit.as_secs_f64())),
        (true, Ok(status)) if status.success() => Ok(()),
        (true, Ok(status)) => Err(format!("it ended with {status}")),
        (true, Err(error)) => Err(format!("it cannot be waited for: {error}")),
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    Pid::from_raw(child.id().cast_signed())
}

/// Whether it ends in this time.
fn wait(child: &Child, limit: Duration) -> bool {
    let Some(Ok(handle)) = pid_of(child).map(|pid| {
        // Nobody else waits for it: the number stays its own.
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
    }) else {
        return false;
    };
    super::is_ready_within(&handle, limit) == Ok(true)
}

/// It leads a group of its own.
fn kill_group(child: &Child) {
    if let Some(pid) = pid_of(child) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_event_too_many_is_left_out_and_that_is_said_once_until_there_is_room() {
        let (says, said) = mpsc::channel();
        // Nobody runs anything.
        let runner = Runner {
            queue: Arc::new(Queue {
                state: Mutex::default(),
                news: Condvar::new(),
            }),
            say: Arc::new(move |what| says.send(what.to_owned()).unwrap()),
        };
        let is_taken = || {
            let (tell, told) = mpsc::channel();
            let done = move |outcome: Result<(), String>| tell.send(outcome).unwrap();
            runner.run(Variables::new(), Some(Box::new(done)));
            match told.try_recv() {
                Ok(outcome) => {
                    assert_eq!(outcome, Err("too many events wait for it".to_owned()));
                    false
                }
                Err(_) => true,
            }
        };
        assert!((0..QUEUED_MAX).all(|_| is_taken()));
        assert_eq!(said.try_iter().count(), 0);
        assert!((0..3).all(|_| !is_taken()));
        assert_eq!(said.try_iter().count(), 1);
        runner.queue.lock().events.pop_front();
        assert!(is_taken() && !is_taken());
        assert_eq!(said.try_iter().count(), 1);
    }
}
