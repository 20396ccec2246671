//! The listener of `metrics.listen`: one thread that answers `GET /metrics` over HTTP, and lets nobody
//! take more of it than a little memory for a little time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use strandfs_options::listen::Listen;
use strandfs_pool::metrics::Metrics;

use super::request::{self, Asked, Form, HEAD_MAX_BYTES};
use super::socket::{self, SocketFile};
use super::text;

/// Connections at once; who comes then takes the place of the one that has been there longest.
const CONNECTIONS_MAX: usize = 16;
/// So many are taken before those that are there go on: who asks is answered before others take the place.
const AT_ONCE: usize = 4;
/// How long a request may take to come and its answer to be taken.
const LIMIT: Duration = Duration::from_secs(5);
/// What was counted is added up no more often than this; who asks in between is told the same.
const AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// How often it is tried again where another program listens.
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Pause after accepting failed, for want of descriptors most likely.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Where the counts come from; none once the pool has ended.
pub type Ask = Box<dyn Fn() -> Option<Metrics> + Send>;

/// The file of a Unix socket; none while there is none.
type Kept = Arc<Mutex<Option<SocketFile>>>;

/// Takes the file of a Unix socket away when it goes.
pub struct KeptFile(Kept);

impl Drop for KeptFile {
    fn drop(&mut self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(kept.take());
    }
}

/// Listens where the option says, on a thread of its own that lives as long as the pool. Where another
/// program listens, such as the server of the pool that this one replaces, it waits until that ends.
///
/// # Errors
/// The socket cannot be made for another reason, or the thread.
pub fn start(listen: &Listen, ask: Ask) -> io::Result<KeptFile> {
    let kept = Kept::default();
    if *listen == Listen::Nowhere {
        return Ok(KeptFile(kept));
    }
    let first = match open(listen, &kept) {
        Ok(listening) => Some(listening),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let address = listen.to_string();
            tracing::warn!(
                address,
                "another program listens there: the metrics can be read once it ends"
            );
            None
        }
        Err(error) => return Err(error),
    };
    let (listen, files) = (listen.clone(), Arc::clone(&kept));
    thread::Builder::new()
        .name("strandfs-metrics".to_owned())
        .spawn(move || {
            if let Some(listening) = first.or_else(|| open_at_last(&listen, &files, &ask)) {
                let by_name = matches!(listen, Listen::Loopback(_));
                Server::new(listening, by_name, ask).run();
            }
        })?;
    Ok(KeptFile(kept))
}

fn open(listen: &Listen, kept: &Kept) -> io::Result<OwnedFd> {
    match listen {
        Listen::Nowhere => Err(io::ErrorKind::InvalidInput.into()),
        Listen::Unix(path) => {
            let (listening, file) = socket::at_path(path)?;
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
            Ok(listening)
        }
        Listen::Loopback(address) => socket::at_port(*address),
    }
}

/// Tries until nobody else listens there; none if the pool ends before, or there is another trouble.
fn open_at_last(listen: &Listen, kept: &Kept, ask: &Ask) -> Option<OwnedFd> {
    loop {
        thread::sleep(OPEN_AGAIN_AFTER);
        ask()?;
        match open(listen, kept) {
            Ok(listening) => {
                tracing::info!(address = %listen, "the metrics can be read now");
                return Some(listening);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => {
                tracing::warn!(address = %listen, %error, "the metrics cannot be read");
                return None;
            }
        }
    }
}

/// Text that several connections take.
type Text = Arc<[u8]>;

/// What is told, and was told last in each form.
struct Teller {
    ask: Ask,
    told: [Option<(Instant, Text)>; 2],
}

impl Teller {
    fn tell(&mut self, form: Form) -> Text {
        let Some(told) = self.told.get_mut(form as usize) else {
            return Text::default();
        };
        if let Some((when, text)) = told
            && when.elapsed() < AT_MOST_EVERY
        {
            return Arc::clone(text);
        }
        let pools = (self.ask)().into_iter().collect();
        let made = match form {
            Form::OpenMetrics => text::openmetrics(pools),
            Form::Prometheus => text::prometheus(pools),
        };
        let made: Text = made.unwrap_or_default().into_bytes().into();
        *told = Some((Instant::now(), Arc::clone(&made)));
        made
    }
}

/// Somebody who asks.
struct Connection {
    stream: OwnedFd,
    until: Instant,
    request: Vec<u8>,
    answer: Option<Sending>,
}

/// An answer on its way.
struct Sending {
    head: Vec<u8>,
    body: Text,
    sent: usize,
}

/// Whether a connection goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Wait,
    Close,
}

impl Connection {
    fn new(stream: OwnedFd) -> Self {
        Self {
            stream,
            until: Instant::now() + LIMIT,
            request: Vec::new(),
            answer: None,
        }
    }

    /// What it waits for.
    fn awaits(&self) -> PollFlags {
        match self.answer {
            None => PollFlags::IN,
            Some(_) => PollFlags::OUT,
        }
    }

    /// Reads and answers as far as that does not mean to wait.
    fn go_on(&mut self, by_name: bool, teller: &mut Teller) -> Next {
        match self.progress(by_name, teller) {
            Ok(next) => next,
            Err(Errno::AGAIN | Errno::INTR) => Next::Wait,
            Err(_) => Next::Close,
        }
    }

    fn progress(&mut self, by_name: bool, teller: &mut Teller) -> Result<Next, Errno> {
        while self.answer.is_none() {
            let mut piece = [0; 1024];
            let len = rustix::io::read(&self.stream, &mut piece)?;
            if len == 0 {
                return Ok(Next::Close);
            }
            self.request
                .extend_from_slice(piece.get(..len).unwrap_or_default());
            self.request.truncate(HEAD_MAX_BYTES);
            if let Some(asked) = request::read(&self.request, by_name) {
                self.answer = Some(Sending::of(asked, teller));
            }
        }
        match &mut self.answer {
            Some(answer) => answer.send(&self.stream),
            None => Ok(Next::Wait),
        }
    }
}

impl Sending {
    fn of(asked: Asked, teller: &mut Teller) -> Self {
        let body: Text = match asked {
            Asked::Metrics { form, .. } => teller.tell(form),
            Asked::Refused(_, why) => format!("{why}\n").into_bytes().into(),
        };
        let head = request::head(asked, body.len());
        let body = match asked {
            Asked::Metrics { body: false, .. } => Text::default(),
            _ => body,
        };
        Self {
            head,
            body,
            sent: 0,
        }
    }

    /// Sends as much as is taken.
    fn send(&mut self, stream: &OwnedFd) -> Result<Next, Errno> {
        loop {
            let rest = match self.head.get(self.sent..).filter(|rest| !rest.is_empty()) {
                Some(rest) => rest,
                None => {
                    let at = self.sent.saturating_sub(self.head.len());
                    self.body.get(at..).unwrap_or_default()
                }
            };
            if rest.is_empty() {
                return Ok(Next::Close);
            }
            self.sent += send(stream, rest, SendFlags::NOSIGNAL)?;
        }
    }
}

struct Server {
    listening: OwnedFd,
    by_name: bool,
    teller: Teller,
    /// Those that came first, first.
    connections: Vec<Connection>,
}

impl Server {
    fn new(listening: OwnedFd, by_name: bool, ask: Ask) -> Self {
        Self {
            listening,
            by_name,
            teller: Teller {
                ask,
                told: [None, None],
            },
            connections: Vec::new(),
        }
    }

    fn run(mut self) {
        loop {
            let news = self.wait();
            if news {
                self.accept();
            }
            let now = Instant::now();
            let (by_name, teller) = (self.by_name, &mut self.teller);
            self.connections.retain_mut(|connection| {
                connection.until > now && connection.go_on(by_name, teller) == Next::Wait
            });
        }
    }

    /// Whether somebody wants to connect, once anything is to be done.
    fn wait(&self) -> bool {
        let mut fds = vec![PollFd::new(&self.listening, PollFlags::IN)];
        let own = self.connections.iter();
        fds.extend(own.map(|own| PollFd::from_borrowed_fd(own.stream.as_fd(), own.awaits())));
        let soonest = self.connections.iter().map(|own| own.until).min();
        let pause = soonest.map(|until| {
            // Rounded up: not to find that it is still to come.
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match poll(&mut fds, pause.as_ref()) {
            Ok(_) => fds.first().is_some_and(|fd| !fd.revents().is_empty()),
            Err(Errno::INTR) => false,
            Err(_) => {
                thread::sleep(RETRY_AFTER);
                false
            }
        }
    }

    /// Takes those who want to connect.
    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listening, flags) {
                Ok(stream) => {
                    if self.connections.len() >= CONNECTIONS_MAX {
                        self.connections.remove(0);
                    }
                    self.connections.push(Connection::new(stream));
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(errno) => {
                    tracing::debug!(%errno, "a connection to the metrics cannot be taken");
                    thread::sleep(RETRY_AFTER);
                    return;
                }
            }
        }
    }
}
