//! The control socket: an abstract Unix socket with a name nobody can guess, told by the mount
//! itself (`user.strandfs.socket` of the control file). So it needs no directory, leaves nothing
//! behind, and cannot be mistaken for that of another mount, whatever numbers the kernel reuses.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::admin::Admin;
use crate::admin::control::request::{self, Answer, Request};
use crate::base::sys::peer;

/// What every name begins with.
pub const PREFIX: &str = "strandfs/control/";
/// The longest request, and the longest time it may take to arrive.
const REQUEST_MAX_BYTES: usize = 64 << 10;
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Connections served at once.
const CONNECTIONS_MAX: usize = 8;
/// Pause after accepting failed, for want of descriptors most likely.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Listens for control requests of root and the server's user, on a thread of its own that
/// lives as long as the pool. A pool without a socket still has its control file.
///
/// # Errors
/// Those of making the socket or the thread.
pub fn listen(pool: &Arc<Admin>) -> io::Result<()> {
    let name = format!("{PREFIX}{}/{}", std::process::id(), token()?);
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let asked = Arc::downgrade(pool);
    std::thread::Builder::new()
        .name("strandfs-control".to_owned())
        .spawn(move || accept(&listener, &asked))?;
    let _ = pool.socket.set(name);
    Ok(())
}

/// 128 random bits.
fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether the peer is root or this user, as the kernel says. Its process may be of another namespace.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn peer_is_trusted(stream: &UnixStream) -> io::Result<bool> {
    let peer = peer(stream)?.user;
    Ok(peer.is_root() || peer == rustix::process::geteuid())
}

/// Whether the peer is this process of the caller's own process namespace.
pub fn peer_is(stream: &UnixStream, process: u32) -> bool {
    let number = |process: Pid| process.as_raw_nonzero().get().cast_unsigned();
    peer(stream).is_ok_and(|peer| peer.process.map(number) == Some(process))
}

fn accept(listener: &UnixListener, pool: &Weak<Admin>) {
    let serving = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(RETRY_AFTER);
            continue;
        };
        // Strangers are turned away before a byte of theirs is read.
        if !peer_is_trusted(&stream).unwrap_or(false)
            || serving.load(Ordering::Relaxed) >= CONNECTIONS_MAX
        {
            continue;
        }
        let Some(pool) = pool.upgrade() else { return };
        serving.fetch_add(1, Ordering::Relaxed);
        let done = Arc::clone(&serving);
        let serve = move || {
            if let Err(error) = serve(&pool, stream) {
                tracing::debug!(%error, "a control connection broke");
            }
            done.fetch_sub(1, Ordering::Relaxed);
        };
        let spawned = std::thread::Builder::new()
            .name("strandfs-request".to_owned())
            .spawn(serve);
        if spawned.is_err() {
            serving.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn serve(pool: &Admin, mut stream: UnixStream) -> io::Result<()> {
    let connection = pool.connection.get();
    if connection.is_some_and(|connection| !connection.is_alive()) {
        // Who asks means the next mount, which may have the kernel's number of this one.
        return Ok(());
    }
    let answer = match read_line(&mut stream)? {
        Some(line) => match serde_json::from_slice::<Request>(&line) {
            Ok(request) => request::carry_out(pool, &request),
            Err(error) => refusal(format!("this is no control request: {error}")),
        },
        None => refusal(format!(
            "a control request has at most {REQUEST_MAX_BYTES} bytes"
        )),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.set_write_timeout(Some(REQUEST_LIMIT))?;
    stream.write_all(&text)
}

fn refusal(error: String) -> Answer {
    Answer {
        error: Some(error),
        ..Answer::default()
    }
}

/// One line, or what came before the end; none if it is too long.
///
/// # Errors
/// Those of reading; it took too long.
fn read_line(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + REQUEST_LIMIT;
    let mut line = Vec::new();
    let mut piece = [0; 4096];
    while !line.contains(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let len = stream.read(&mut piece)?;
        if len == 0 {
            break;
        }
        line.extend_from_slice(piece.get(..len).unwrap_or_default());
        if line.len() > REQUEST_MAX_BYTES {
            return Ok(None);
        }
    }
    Ok(Some(line))
}
