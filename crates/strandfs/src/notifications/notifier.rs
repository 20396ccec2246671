//! The notifier: the process that runs `notify.command`.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::NAME;
use super::message::{self, Message};
use super::run::Runner;
use super::spare::{self, Spare};
use crate::deaths;
use crate::exit::Exit;
use crate::logging::one_line;

/// How long it may take until it is known how a dead server has ended.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Longer than any message: a path as numbers, and a reason.
const LINE_MAX_BYTES: usize = 64 << 10;
/// A datagram of facility "daemon", severity "warning".
const SYSLOG: (&str, &str) = ("/dev/log", "<28>strandfs: ");

/// Whether the program was started as a notifier, or as its spare.
pub fn is_called(program: Option<&OsString>) -> bool {
    program.is_some_and(|name| name == NAME || name == spare::NAME)
}

/// What it is started with.
struct Arguments {
    limit: Duration,
    mountpoint: PathBuf,
    words: Vec<OsString>,
}

fn arguments(arguments: Vec<OsString>) -> Option<Arguments> {
    let mut arguments = arguments.into_iter();
    let limit = arguments.next()?.to_str()?.parse().ok()?;
    Some(Arguments {
        limit: Duration::from_millis(limit),
        mountpoint: arguments.next()?.into(),
        words: arguments.collect(),
    })
}

/// The server, whose end is told.
pub struct Server {
    /// Its number, if it lived when this process began.
    pub pid: Option<Pid>,
    handle: Option<OwnedFd>,
}

impl Server {
    /// The server with this number, which is another's once the server has ended.
    pub fn of(pid: Option<Pid>) -> Server {
        let handle = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        let is_it = !wait_for_end(Duration::ZERO);
        Server {
            pid: pid.filter(|_| is_it),
            handle: handle.filter(|_| is_it),
        }
    }

    fn cause_of_end(&self) -> String {
        let handle = self.handle.as_ref();
        let status = handle.and_then(|server| strandfs_fuse::end_of(server.as_fd(), KNOWN_WITHIN));
        deaths::cause(status)
    }
}

/// Waits for the server's end, for so long. Returns whether it has come.
pub fn wait_for_end(limit: Duration) -> bool {
    // An error is no life to wait for.
    super::is_ready_within(std::io::stdout(), limit) != Ok(false)
}

/// In the notifier: runs the program for each event, and for the server's end.
pub fn main(given: Vec<OsString>) -> ExitCode {
    let _ = strandfs_fuse::close_inherited();
    outlive_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    if given.first().is_some_and(|name| name == spare::NAME) {
        let _ = rustix::thread::set_name(c"strandfs-spare");
        let Some(waiting) = spare::arguments(given) else {
            return Exit::Usage.into();
        };
        // There is a spare only once the pool is mounted.
        let mail = Mail {
            mounted: true,
            ..Mail::default()
        };
        let pause = waiting.until_needed();
        return serve(waiting.server, mail, pause, waiting.words);
    }
    let server = Server::of(rustix::process::getppid());
    let words = given.into_iter().skip(1).collect();
    serve(server, Mail::default(), Duration::ZERO, words)
}

/// `pause`: how long this process has waited before it took the place of another.
fn serve(server: Server, mut mail: Mail, pause: Duration, given: Vec<OsString>) -> ExitCode {
    let Some(Arguments {
        limit,
        mountpoint,
        words,
    }) = arguments(given.clone())
    else {
        return Exit::Usage.into();
    };
    let _ = rustix::thread::set_name(c"strandfs-notify");
    let Ok(runner) = Runner::start(words, limit, Arc::new(say)) else {
        return Exit::Failed.into();
    };
    let pool = mountpoint.into_os_string();
    // Ends with this function: until then whatever is left to be told is told by the spare if this
    // process is killed.
    let keep_spare = || Spare::keep(server.pid, pause, given.clone());
    let mut spare = mail.mounted.then(keep_spare);
    while mail.wait() {
        mail.take(|message| tell(&runner, &pool, message));
        if mail.mounted != spare.is_some() {
            spare = mail.mounted.then(keep_spare);
        }
    }
    if mail.mounted {
        let reason = server.cause_of_end();
        runner.run(message::variables(&pool, "ended", &reason), None);
    }
    // Four at once, one of which may have begun just now.
    runner.finish(limit * 2 + KNOWN_WITHIN);
    ExitCode::SUCCESS
}

/// What ends a service or a session ends the server, in order or not: which of both is known only
/// afterwards. Handlers, since the programs that are run would inherit a mask and what is ignored.
fn outlive_signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
    // Nobody reads what is said to a server that hangs.
    let stderr = std::io::stderr();
    let flags = rustix::fs::fcntl_getfl(&stderr).unwrap_or(OFlags::empty());
    let _ = rustix::fs::fcntl_setfl(&stderr, flags | OFlags::NONBLOCK);
}

fn tell(runner: &Runner, pool: &OsString, message: &Message) {
    match message {
        Message::Branch {
            event,
            branch,
            was,
            reason,
            left_out,
        } => {
            let mut variables = message::variables(pool, event, reason);
            variables.extend(message::of_branch(branch, was, *left_out));
            runner.run(variables, None);
        }
        Message::Trial(number) => {
            let number = *number;
            let variables = message::variables(pool, "test", "somebody tries notify.command");
            runner.run(
                variables,
                Some(Box::new(move |outcome| answer(number, outcome))),
            );
        }
        Message::Mounted | Message::Unmounted => {}
    }
}

/// What the server sends.
#[derive(Default)]
struct Mail {
    unread: Vec<u8>,
    /// A pool is mounted: a server that ends now has not been asked to.
    mounted: bool,
}

impl Mail {
    /// Waits for news: false at the server's end, with all that it had sent read.
    fn wait(&mut self) -> bool {
        let (stdin, life) = (std::io::stdin(), std::io::stdout());
        loop {
            let mut fds = [
                PollFd::new(&stdin, PollFlags::IN),
                PollFd::new(&life, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return false,
            }
            let closed = PollFlags::HUP | PollFlags::ERR;
            // A server that cannot end keeps its end of the first open: the second is what counts.
            let ended = fds[1].revents().intersects(closed);
            if ended {
                let flags = rustix::fs::fcntl_getfl(&stdin).unwrap_or(OFlags::empty());
                let _ = rustix::fs::fcntl_setfl(&stdin, flags | OFlags::NONBLOCK);
            }
            if fds[0].revents().contains(PollFlags::IN) {
                self.read();
                return true;
            }
            if ended {
                return false;
            }
            if fds[0].revents().intersects(closed) {
                // Nothing more is sent; the end itself is still to come.
                let _ = poll(&mut [PollFd::new(&life, PollFlags::IN)], None);
            }
        }
    }

    fn read(&mut self) {
        let mut piece = [0; 4096];
        // Past the buffer of the standard library, which `poll` knows nothing of.
        let len = rustix::io::read(std::io::stdin(), &mut piece).unwrap_or_default();
        self.unread
            .extend_from_slice(piece.get(..len).unwrap_or_default());
    }

    /// Takes the messages that are complete.
    fn take(&mut self, mut each: impl FnMut(&Message)) {
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            match Message::read(&line) {
                Ok(Message::Mounted) => self.mounted = true,
                Ok(Message::Unmounted) => self.mounted = false,
                Ok(message) => each(&message),
                Err(error) => say(&format!(
                    "a message of the server is not understood: {error}"
                )),
            }
        }
        if self.unread.len() > LINE_MAX_BYTES {
            self.unread.clear();
        }
    }
}

/// To the server. One that has ended needs none.
fn answer(number: u64, outcome: Result<(), String>) {
    let answer = message::Answer { number, outcome };
    let _ = std::io::stderr().write_all(answer.line().as_bytes());
}

/// To the server, which logs it; after its end to the system's log.
pub fn say(what: &str) {
    let line = format!("{}\n", one_line(what));
    if std::io::stderr().write_all(line.as_bytes()).is_ok() {
        return;
    }
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.set_nonblocking(true);
        let line = format!("{}{}", SYSLOG.1, one_line(what));
        let _ = socket.send_to(line.as_bytes(), SYSLOG.0);
    }
}
