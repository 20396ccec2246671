//! The notifier: the process that runs `notify.command`.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::PidfdFlags;

use super::NAME;
use super::message::{self, Message};
use super::run::Runner;
use crate::deaths;
use crate::logging::one_line;

/// How long it may take until it is known how a dead server has ended.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Longer than any message: a path as numbers, and a reason.
const LINE_MAX_BYTES: usize = 64 << 10;
/// A datagram of facility "daemon", severity "warning".
const SYSLOG: (&str, &str) = ("/dev/log", "<28>strandfs: ");

/// Whether the program was started as a notifier.
pub fn is_called(program: Option<&OsString>) -> bool {
    program.is_some_and(|name| name == NAME)
}

/// What it is started with.
struct Arguments {
    limit: Duration,
    mountpoint: PathBuf,
    words: Vec<OsString>,
}

fn arguments(arguments: Vec<OsString>) -> Option<Arguments> {
    let mut arguments = arguments.into_iter().skip(1);
    let limit = arguments.next()?.to_str()?.parse().ok()?;
    Some(Arguments {
        limit: Duration::from_millis(limit),
        mountpoint: arguments.next()?.into(),
        words: arguments.collect(),
    })
}

/// In the notifier: runs the program for each event, and for the server's end.
pub fn main(given: Vec<OsString>) -> ExitCode {
    let Some(Arguments {
        limit,
        mountpoint,
        words,
    }) = arguments(given)
    else {
        return crate::exit::Exit::Usage.into();
    };
    let _ = strandfs_fuse::close_inherited();
    let server = rustix::process::getppid()
        .and_then(|server| rustix::process::pidfd_open(server, PidfdFlags::empty()).ok());
    outlive_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    let _ = rustix::thread::set_name(c"strandfs-notify");
    let Ok(runner) = Runner::start(words, limit, Arc::new(say)) else {
        return crate::exit::Exit::Failed.into();
    };
    let pool = mountpoint.into_os_string();
    let mut mail = Mail::default();
    while mail.wait() {
        mail.take(|message| tell(&runner, &pool, message));
    }
    if mail.mounted {
        let status = server.and_then(|server| strandfs_fuse::end_of(server.as_fd(), KNOWN_WITHIN));
        let reason = deaths::cause(status);
        runner.run(message::variables(&pool, "ended", &reason));
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
    if let Message::Branch {
        event,
        branch,
        was,
        reason,
        left_out,
    } = message
    {
        let mut variables = message::variables(pool, event, reason);
        variables.extend(message::of_branch(branch, was, *left_out));
        runner.run(variables);
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

/// To the server, which logs it; after its end to the system's log.
fn say(what: &str) {
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
