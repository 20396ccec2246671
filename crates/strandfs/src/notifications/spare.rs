//! The spare of the notifier: a process that does nothing until the notifier is killed, then takes
//! its place. The server itself could not start one with the rights that the mount was started with.
//! The spare has the same pipes, so that nothing that the server sends meanwhile is lost. The
//! notifier in turn starts another spare when its spare is killed.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::PROGRAM;
use super::notifier::{self, Server, say};

/// What a spare is called until it takes over: what is aimed at the notifier does not hit both.
pub const NAME: &str = "strandfs-spare";

/// One that lived for less is not followed by another at once.
const LONG_LIFE: Duration = Duration::from_secs(10);
/// Between two that lived shortly: from the first to the second, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How long to wait before somebody takes the place of one that has lived for `life`.
fn pause_after(life: Duration, before: Duration) -> Duration {
    let (first, most) = PAUSES;
    match life > LONG_LIFE {
        true => Duration::ZERO,
        false => (before * 2).clamp(first, most),
    }
}

/// In the notifier: its spare, of which there is one at any time.
pub struct Spare(Arc<Mutex<Post>>);

enum Post {
    /// There is one; between two there is none.
    Kept(Option<OwnedFd>),
    Given,
}

fn lock(post: &Mutex<Post>) -> MutexGuard<'_, Post> {
    post.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Spare {
    /// Keeps a spare from now on. `pause` is how long this notifier waited itself.
    pub fn keep(server: Option<Pid>, pause: Duration, words: Vec<OsString>) -> Spare {
        let post = Arc::new(Mutex::new(Post::Kept(None)));
        let kept = Arc::clone(&post);
        let keeper = std::thread::Builder::new().name("strandfs-spare".to_owned());
        let started = keeper.spawn(move || keep(&kept, server, pause, &words));
        if let Err(error) = started {
            say(&format!("{WITHOUT}: {error}"));
        }
        Spare(post)
    }
}

/// Whoever ends is not followed.
impl Drop for Spare {
    fn drop(&mut self) {
        if let Post::Kept(Some(spare)) = std::mem::replace(&mut *lock(&self.0), Post::Given) {
            let _ = pidfd_send_signal(spare, Signal::KILL);
        }
    }
}

const WITHOUT: &str = "nobody would follow the process that runs notify.command";

fn keep(post: &Mutex<Post>, server: Option<Pid>, mut pause: Duration, words: &[OsString]) {
    loop {
        let begun = Instant::now();
        let mut guarded = lock(post);
        if matches!(*guarded, Post::Given) {
            return;
        }
        let ended = match spawn(server, pause, words) {
            Ok(mut child) => {
                let handle = Pid::from_raw(child.id().cast_signed())
                    .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                *guarded = Post::Kept(handle);
                drop(guarded);
                let ended = child.wait();
                ended.map_or_else(|error| error.to_string(), |status| status.to_string())
            }
            Err(error) => {
                drop(guarded);
                error.to_string()
            }
        };
        if matches!(*lock(post), Post::Given) {
            return;
        }
        pause = pause_after(begun.elapsed(), pause);
        say(&format!(
            "the spare of the process that runs notify.command has ended ({ended}): another is started in {} s",
            pause.as_secs()
        ));
        std::thread::sleep(pause);
    }
}

fn spawn(server: Option<Pid>, pause: Duration, words: &[OsString]) -> std::io::Result<Child> {
    let server = server.map_or(0, |pid| pid.as_raw_nonzero().get());
    Command::new(PROGRAM)
        .arg0(NAME)
        .arg(server.to_string())
        .arg(std::process::id().to_string())
        .arg(pause.as_millis().to_string())
        .args(words)
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit())
        .spawn()
}

/// What a spare is started with.
pub struct Waiting {
    /// Whose end is told.
    pub server: Server,
    notifier: Option<OwnedFd>,
    began: Instant,
    pause: Duration,
    /// What the notifier was started with.
    pub words: Vec<OsString>,
}

/// In the spare: what it was started with; none if that is not understood.
pub fn arguments(given: Vec<OsString>) -> Option<Waiting> {
    let mut given = given.into_iter().skip(1);
    let mut number = || given.next()?.to_str()?.parse::<u32>().ok();
    let pid = |number: u32| Pid::from_raw(number.cast_signed());
    let (server, notifier, pause) = (pid(number()?), pid(number()?), number()?);
    Some(Waiting {
        server: Server::of(server),
        notifier: notifier.and_then(parent),
        began: Instant::now(),
        pause: Duration::from_millis(pause.into()),
        words: given.collect(),
    })
}

/// A handle of the parent, if this is it: none if it has died meanwhile.
fn parent(notifier: Pid) -> Option<OwnedFd> {
    let handle = pidfd_open(notifier, PidfdFlags::empty()).ok()?;
    (rustix::process::getppid() == Some(notifier)).then_some(handle)
}

impl Waiting {
    /// Waits until the notifier has been killed. Returns how long that has made this one wait.
    pub fn until_needed(&self) -> Duration {
        if let Some(notifier) = &self.notifier {
            while let Err(Errno::INTR) = poll(&mut [PollFd::new(notifier, PollFlags::IN)], None) {}
        }
        let pause = pause_after(self.began.elapsed(), self.pause);
        say(&format!(
            "the process that runs notify.command was killed: another takes its place in {} s",
            pause.as_secs()
        ));
        notifier::wait_for_end(pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_live_shortly_are_followed_later_and_later() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(11));
        assert_eq!(pause_after(long, Duration::from_secs(60)), Duration::ZERO);
        let mut pause = Duration::ZERO;
        let seen: Vec<u64> = (0..8)
            .map(|_| {
                pause = pause_after(short, pause);
                pause.as_secs()
            })
            .collect();
        assert_eq!(seen, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
