//! The guardian: a small process that outlives the server, frees whoever waits for it, and with
//! `auto-unmount` unmounts what it left behind.
//!
//! A killed server does not always close `/dev/fuse` (see [`strandfs_fuse::hold_until_death`]), and
//! until then the kernel lets its clients wait for an answer, for ever. The guardian holds the file
//! that aborts the connection and the reading end of a pipe that ends with the server.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::{deaths, last_words};

/// What the process is called, by `ps` too: not `strandfs`, so that what is aimed at all servers
/// does not hit what guards against it.
const NAME: &str = "strandfs-guard";

/// Before the mountpoint: unmount as well.
const UNMOUNTS: &str = "--unmount";

/// Before the mountpoint: the standard error has the server's last words.
const LAST_WORDS: &str = "--last-words";

/// This program, even if its file was replaced or is hidden by a mount.
const PROGRAM: &str = "/proc/self/exe";

/// For waiting, starting a process and a line in the log.
const STACK_BYTES: usize = 256 << 10;

/// How long a dead server's mount may take to say so.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take until it is known how a dead server has ended.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// One that lived for less is not followed by another at once.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// Between two short-lived ones: from the first to the second, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What the server knows of its guardian.
struct State {
    /// Its process id, or why there is none.
    outcome: Result<u32, String>,
    process: Option<OwnedFd>,
    /// The mount is gone, and the server is not: no other guardian follows.
    is_dismissed: bool,
}

type GuardianState = Arc<Mutex<State>>;

/// A guardian as the server sees it.
pub struct Guard(GuardianState);

/// What a guardian is started with, again if it has to be.
struct Post {
    mountpoint: PathBuf,
    /// What it writes to once the server is dead.
    abort_file: Option<OwnedFd>,
    /// The reading end of the pipe that ends with the server.
    end_of_server: OwnedFd,
    unmounts: bool,
    /// Why it does no more than unmount.
    why_no_file: Option<String>,
}

/// In the server, before it serves: starts the guardian, and another whenever it ends. `abort_file`
/// is what it writes to once the server is dead.
///
/// # Errors
/// `auto-unmount` asks for it and it cannot be started.
pub fn start(
    mountpoint: &Path,
    abort_file: Result<OwnedFd, Errno>,
    unmounts: bool,
) -> Result<Guard, Failure> {
    let why_no_file = abort_file.as_ref().err().map(|errno| explain(*errno));
    if let (Some(why), false) = (&why_no_file, unmounts || last_words::memory().is_some()) {
        return Ok(Guard::none(why.clone()));
    }
    let started = Post::new(mountpoint, abort_file.ok(), unmounts, why_no_file)
        .and_then(|post| Ok((post.spawn()?, post)));
    let (child, post) = match started {
        Ok(started) => started,
        Err(error) if unmounts => {
            return Err(Failure::system("starting the process for auto-unmount")(
                error,
            ));
        }
        Err(error) => return Ok(Guard::none(format!("it cannot be started: {error}"))),
    };
    let state = Arc::new(Mutex::new(post.state(&child)));
    let kept = Arc::clone(&state);
    let watching = std::thread::Builder::new()
        .name("strandfs-guards".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || post.keep(child, &kept));
    if let Err(error) = watching {
        tracing::warn!(%error, "the guardian cannot be watched: if it ends, nothing takes its place");
    }
    Ok(Guard(state))
}

impl Post {
    fn new(
        mountpoint: &Path,
        abort_file: Option<OwnedFd>,
        unmounts: bool,
        why_no_file: Option<String>,
    ) -> std::io::Result<Post> {
        let (end_of_server, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        strandfs_fuse::hold_until_death(ours.as_fd())?;
        Ok(Post {
            mountpoint: mountpoint.to_owned(),
            abort_file,
            end_of_server,
            unmounts,
            why_no_file,
        })
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let abort_file = self.abort_file.as_ref().map(OwnedFd::try_clone);
        let words = last_words::memory();
        let stderr = match words {
            Some(memory) => Stdio::from(memory.try_clone_to_owned()?),
            // Not ours: whoever waits for the end of that must not wait for the guardian.
            None => Stdio::null(),
        };
        Command::new(PROGRAM)
            .arg0(NAME)
            .args(self.unmounts.then_some(UNMOUNTS))
            .args(words.map(|_| LAST_WORDS))
            .arg(&self.mountpoint)
            .stdin(Stdio::from(self.end_of_server.try_clone()?))
            .stdout(
                abort_file
                    .transpose()?
                    .map_or_else(Stdio::null, Stdio::from),
            )
            .stderr(stderr)
            .spawn()
    }

    /// What is to be known of a running one.
    fn state(&self, child: &Child) -> State {
        let process = Pid::from_raw(child.id().cast_signed())
            .and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        State {
            outcome: match &self.why_no_file {
                None => Ok(child.id()),
                Some(why) => Err(why.clone()),
            },
            process,
            is_dismissed: false,
        }
    }

    /// Sees to it that there always is one.
    fn keep(self, mut child: Child, state: &GuardianState) {
        let mut pause = Duration::ZERO;
        loop {
            let begun = Instant::now();
            let why = match child.wait() {
                Ok(status) => format!("it has ended ({status})"),
                Err(error) => format!("it cannot be asked after: {error}"),
            };
            if !set_none(state, &why) {
                return;
            }
            tracing::error!(
                "nobody guards the mount: {why}; if the server is killed now, its clients may wait for ever"
            );
            pause = match begun.elapsed() > LONG_LIFE {
                true => Duration::ZERO,
                false => longer(pause),
            };
            std::thread::sleep(pause);
            child = loop {
                let mut known = lock(state);
                if known.is_dismissed {
                    return;
                }
                match self.spawn() {
                    Ok(child) => {
                        *known = self.state(&child);
                        break child;
                    }
                    Err(error) => {
                        drop(known);
                        let why = format!("it cannot be started again: {error}");
                        tracing::error!("nobody guards the mount: {why}");
                        set_none(state, &why);
                        pause = longer(pause);
                        std::thread::sleep(pause);
                    }
                }
            };
            tracing::warn!(pid = child.id(), "the mount is guarded again");
        }
    }
}

fn longer(pause: Duration) -> Duration {
    let (first, most) = PAUSES;
    (pause * 2).clamp(first, most)
}

fn lock(state: &GuardianState) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// There is none, and why. False if there is to be none.
fn set_none(state: &GuardianState, why: &str) -> bool {
    let mut state = lock(state);
    state.outcome = Err(why.to_owned());
    state.process = None;
    !state.is_dismissed
}

fn explain(errno: Errno) -> String {
    let control = "/sys/fs/fuse/connections";
    match errno {
        Errno::NOENT | Errno::PERM | Errno::ACCESS => format!(
            "the connection cannot be aborted by this user ({errno}): have the control filesystem \
             mounted (mount -t fusectl none {control})"
        ),
        errno => format!("the connection's file in {control} cannot be opened: {errno}"),
    }
}

impl Guard {
    fn none(why: String) -> Guard {
        Guard(Arc::new(Mutex::new(State {
            outcome: Err(why),
            process: None,
            is_dismissed: false,
        })))
    }

    /// The guardian's process id.
    ///
    /// # Errors
    /// There is none (any more), and why.
    pub fn pid(&self) -> Result<u32, String> {
        lock(&self.0).outcome.clone()
    }

    /// The mount did not come to be served, and is gone: ends the guardian before another one is made.
    pub fn dismiss(self) {
        let mut state = lock(&self.0);
        state.is_dismissed = true;
        if let Some(process) = state.process.take() {
            // One that has ended already is waited for by the thread that started it.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

/// Whether the program was started as a guardian.
pub fn is_called(program: Option<&std::ffi::OsString>) -> bool {
    program.is_some_and(|name| name == NAME)
}

/// In the guardian: waits for the end of the server and does what is left to do.
pub fn main(arguments: Vec<std::ffi::OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().skip(1).peekable();
    let unmounts = arguments.next_if(|word| word == UNMOUNTS).is_some();
    let has_words = arguments.next_if(|word| word == LAST_WORDS).is_some();
    let Some(mountpoint) = arguments.next().map(PathBuf::from) else {
        return Exit::Usage.into();
    };
    // The server may have been started with more than it knows of.
    let _ = strandfs_fuse::close_inherited();
    let server = rustix::process::getppid()
        .filter(|_| has_words)
        .and_then(|server| pidfd_open(server, PidfdFlags::empty()).ok());
    // A service manager asks all processes of a service to end, and a terminal those of its
    // session: the server is to end in order then, and the guardian with it.
    let _signals = strandfs_fuse::Signals::block();
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    let _ = rustix::thread::set_name(c"strandfs-guard");
    if !unmounts {
        give_up_everything();
    }
    // Nothing is ever sent; an error ends the wait as well.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    // After a server that has ended in order the connection is gone, and this without effect.
    let _ = rustix::io::write(rustix::stdio::stdout(), b"1");
    let unmounted =
        !unmounts || strandfs_fuse::recover_dying_mountpoint(&mountpoint, PATIENCE).is_ok();
    let told = !has_words || leave_word(&mountpoint, server.as_ref()).is_ok();
    match unmounted && told {
        true => ExitCode::SUCCESS,
        false => Exit::Failed.into(),
    }
}

/// How the server ended and what it said last, for the next command to tell, unless it ended in
/// order.
fn leave_word(mountpoint: &Path, server: Option<&OwnedFd>) -> std::io::Result<()> {
    let memory = std::io::stderr().as_fd().try_clone_to_owned()?;
    let Some(words) = last_words::read(&memory.into()) else {
        return Ok(());
    };
    let status = server.and_then(|server| strandfs_fuse::end_of(server.as_fd(), KNOWN_WITHIN));
    deaths::leave_word(mountpoint, &deaths::cause(status), &words)
}

/// Writing to a file that is open already takes no right at all.
fn give_up_everything() {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    let _ = rustix::thread::set_capabilities(None, none);
    let _ = rustix::thread::set_no_new_privs(true);
}
