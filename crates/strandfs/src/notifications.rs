//! `notify.command`: a program that is run when a branch is in trouble, or the server has ended.
//!
//! A process of its own runs it, started before the server gives anything up: so the server never
//! forks, the program has the rights, limits and priority that the mount was started with, and there
//! is somebody to tell of the server's end. Requests have no part in it: the health monitor hands an
//! event to a bounded queue, a thread writes it to the notifier.

mod message;
mod notifier;
mod program;
mod run;
mod spare;
mod trial;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use strandfs_options::{OptionError, Settings};
use strandfs_pool::Pool;
use strandfs_pool::health::events::Event;

use crate::failure::Failure;
use crate::logging::one_line;
use message::{Answer, Message};
pub use notifier::{is_called, main};
use trial::Trials;

/// What the process is called, by `ps` too.
const NAME: &str = "strandfs-notify";
/// This program, even if its file was replaced or is hidden by a mount.
const PROGRAM: &str = "/proc/self/exe";
/// Events that wait for the notifier to read them.
const QUEUED_MAX: usize = 64;
/// How long the end of the mount waits for the notifier to hear of it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Waits until a descriptor has something to be read, or its other end is gone; for so long.
///
/// # Errors
/// As of `poll(2)`, but never EINTR.
fn is_ready_within(descriptor: impl AsFd, limit: Duration) -> Result<bool, Errno> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            outcome => return outcome.map(|ready| ready > 0),
        }
    }
}

/// A notifier that was started and knows of no mount yet.
pub struct Started {
    child: Child,
    to: ChildStdin,
    says: ChildStderr,
    /// The end of this is the server's end.
    life: OwnedFd,
}

/// A notifier that watches over a mount.
pub struct Notifications(SyncSender<Task>);

enum Task {
    Tell(Message),
    /// The message, and who waits until it is sent.
    Last(Message, SyncSender<()>),
}

/// Starts the notifier, if `notify.command` asks for one: before the first thread, and before
/// anything is given up that the program may need.
///
/// # Errors
/// The program is not fit to be run, or the process cannot be started.
pub fn start(settings: &Settings, mountpoint: &Path) -> Result<Option<Started>, Failure> {
    let Some(command) = &settings.notify.command else {
        return Ok(None);
    };
    let words: Vec<&str> = command.split_ascii_whitespace().collect();
    let path = words.first().copied().unwrap_or_default();
    program::check(Path::new(path), Some(mountpoint)).map_err(|why| OptionError::Program {
        option: "notify.command",
        path: path.to_owned(),
        why,
    })?;
    let started = spawn(&words, settings.notify.timeout, mountpoint);
    Ok(Some(started.map_err(Failure::system(
        "starting the process for notify.command",
    ))?))
}

fn spawn(words: &[&str], limit: Duration, mountpoint: &Path) -> std::io::Result<Started> {
    let (end_of_server, life) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut child = Command::new(PROGRAM)
        .arg0(NAME)
        .arg(limit.as_millis().to_string())
        .arg(mountpoint)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::from(end_of_server))
        .stderr(Stdio::piped())
        .spawn()?;
    match (child.stdin.take(), child.stderr.take()) {
        (Some(to), Some(says)) => Ok(Started {
            child,
            to,
            says,
            life,
        }),
        _ => Err(std::io::ErrorKind::BrokenPipe.into()),
    }
}

/// Has the notifier, if there is one, told of what happens to the pool from now on.
///
/// # Errors
/// Those of starting threads.
pub fn attach(notifier: Option<Started>, pool: &Pool) -> Result<Option<Notifications>, Failure> {
    let attached = notifier.map(|notifier| notifier.attach(pool)).transpose();
    attached.map_err(Failure::system("starting notifications"))
}

impl Started {
    fn attach(self, pool: &Pool) -> std::io::Result<Notifications> {
        strandfs_fuse::hold_until_death(self.life.as_fd())?;
        drop(self.life);
        let (give, take) = mpsc::sync_channel(QUEUED_MAX);
        let (to, says, child) = (self.to, self.says, self.child);
        let trials = Arc::new(Trials::default());
        let answers = Arc::clone(&trials);
        thread("strandfs-events", move || send(to, &take))?;
        thread("strandfs-notices", move || listen(says, child, &answers))?;
        let tell = give.clone();
        pool.set_try_notify(Box::new(move || {
            trials.run(|number| tell.try_send(Task::Tell(Message::Trial(number))).is_ok())
        }));
        let _ = give.try_send(Task::Tell(Message::Mounted));
        let events = give.clone();
        pool.set_notifier(Box::new(move |event: Event| {
            tracing::info!(
                event = event.name,
                branch = %event.branch.display(),
                "an event for notify.command"
            );
            if events.try_send(Task::Tell(Message::of(event))).is_err() {
                tracing::error!(
                    "an event is not told: the process that runs notify.command does not read"
                );
            }
        }));
        Ok(Notifications(give))
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(body).map(drop)
}

/// May wait for a notifier that is stopped; nobody waits for this thread.
fn send(to: ChildStdin, tasks: &Receiver<Task>) {
    let mut to = File::from(OwnedFd::from(to));
    for task in tasks {
        let (message, waits) = match task {
            Task::Tell(message) => (message, None),
            Task::Last(message, waits) => (message, Some(waits)),
        };
        let sent = message.line().and_then(|line| to.write_all(&line));
        if let Err(error) = sent {
            tracing::error!(%error, "an event is not told");
        }
        if let Some(waits) = waits {
            let _ = waits.send(());
        }
    }
}

/// Logs what the notifier says, and whoever takes its place: that the last of them ends before the
/// server does is an error.
fn listen(says: ChildStderr, mut child: Child, trials: &Trials) {
    let lines = BufReader::new(says).lines();
    for line in lines.map_while(Result::ok) {
        match Answer::read(&line) {
            Some(answer) => trials.note(answer),
            None => tracing::warn!("{}", one_line(&line)),
        }
        // It may have been killed, and nobody else takes note of that.
        let _ = child.try_wait();
    }
    let status = child.wait().map(|status| status.to_string());
    tracing::error!(
        status = status.unwrap_or_default(),
        "nobody is notified any more: the process that runs notify.command has ended, and its spare; mount again"
    );
}

impl Notifications {
    /// The server ends because it was asked to: nobody is told of that.
    pub fn end_in_order(&self) {
        let (done, wait) = mpsc::sync_channel(1);
        if self
            .0
            .try_send(Task::Last(Message::Unmounted, done))
            .is_ok()
        {
            let _ = wait.recv_timeout(FAREWELL);
        }
    }
}
