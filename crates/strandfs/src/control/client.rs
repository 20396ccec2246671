//! Reaching the server of a pool: its control file for reading, its control socket for changes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use strandfs_fuse::read_lossy;
use strandfs_pool::admin::control::request::{Answer, Request};
use strandfs_pool::admin::control::socket::{PREFIX, peer_is, peer_is_trusted};

use strandfs_pool::metrics::{Metrics, Users};

use crate::failure::Failure;

/// A change opens branches and tells the kernel; a network filesystem may take its time.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Servers asked whether this pool is theirs: one that hangs is not to keep us from the others.
const HELLO_LIMIT: Duration = Duration::from_secs(2);
/// The longest answer believed.
const ANSWER_MAX_BYTES: u64 = 16 << 20;

/// The value of a key of the control file.
///
/// # Errors
/// Those of `getxattr(2)`: ENODATA if there is no such key, EOPNOTSUPP if the pool was mounted
/// without extended attributes.
pub fn value(mountpoint: &Path, key: &str) -> io::Result<String> {
    let mut value = vec![0; 65_536];
    let attribute = format!("user.strandfs.{key}");
    let len = rustix::fs::getxattr(mountpoint.join(".strandfs"), attribute, &mut value[..])?;
    value.truncate(len);
    String::from_utf8(value).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Sends a request to the server of a pool.
///
/// # Errors
/// The server cannot be reached, or does not answer.
pub fn ask(mountpoint: &Path, request: &Request) -> Result<Answer, Failure> {
    match value(mountpoint, "socket") {
        Ok(name) => {
            talk(&name, request, ANSWER_LIMIT).map_err(|error| no_answer(mountpoint, &error))
        }
        // `xattr=nosys`: the mount cannot be asked for its socket.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
            search(mountpoint, request)
        }
        Err(error) => Err(no_answer(mountpoint, &error)),
    }
}

fn no_answer(mountpoint: &Path, error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            return Failure::NotPermitted {
                path: mountpoint.to_path_buf(),
                why: "only root and the user who mounted it may change it".to_owned(),
            };
        }
        io::ErrorKind::ConnectionRefused => {
            "its control socket is in another network namespace; use the attributes of its \
             .strandfs file instead"
                .to_owned()
        }
        _ => error.to_string(),
    };
    Failure::NoAnswer {
        mountpoint: mountpoint.to_path_buf(),
        why,
    }
}

/// One request and its answer, each step of it within `limit`.
fn talk(name: &str, request: &Request, limit: Duration) -> io::Result<Answer> {
    let stream = dial(name, limit)?;
    if !peer_is_trusted(&stream)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    // A server that turns us away closes without reading.
    (&stream).write_all(&line).map_err(turned_away)?;
    let mut answer = String::new();
    BufReader::new((&stream).take(ANSWER_MAX_BYTES))
        .read_line(&mut answer)
        .map_err(turned_away)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(serde_json::from_str(&answer)?)
}

/// A connection whose every step is done within `limit`.
fn dial(name: &str, limit: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before connecting: that waits, too, for a server that takes no connections any more.
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(limit))?;
    connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok(UnixStream::from(socket))
}

/// A connection that is there at once, to see who is at its other end. `WouldBlock`: not now.
fn dial_now(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok(UnixStream::from(socket))
}

fn turned_away(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            io::ErrorKind::PermissionDenied.into()
        }
        _ => error,
    }
}

/// The server of a mount and its control socket, if they are to be found without asking the mount:
/// the name has the process id in it. A server may outlive its mount, whose number the next one has:
/// the latest is the one. In another process namespace a server may have the same number: containers
/// that share the network of the machine share the names of sockets, too. And anybody may take any name.
pub fn socket_of(mountpoint: &Path) -> Option<(u32, String)> {
    let pid_of = |name: &str| name.strip_prefix(PREFIX)?.split('/').next()?.parse().ok();
    let mut named: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for name in names().ok()? {
        if let Some(pid) = pid_of(&name) {
            named.entry(pid).or_default().push(name);
        }
    }
    let serving = strandfs_fuse::which_serve(mountpoint, named.keys().copied()).ok()?;
    let server = serving.into_iter().max_by_key(|pid| started(*pid))?;
    let name = match named.remove(&server)? {
        of_server if of_server.len() == 1 => of_server.into_iter().next(),
        of_server => find_by_peer(of_server, |stream| peer_is(stream, server)),
    };
    Some((server, name?))
}

/// The socket at whose other end there is whom we look for; else the first that takes no connections now, where
/// it may be. Waits for nobody: those of others may be as many as they like.
fn find_by_peer(names: Vec<String>, is_wanted: impl Fn(&UnixStream) -> bool) -> Option<String> {
    let mut crowded = None;
    for name in names {
        match dial_now(&name) {
            Ok(stream) if is_wanted(&stream) => return Some(name),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                crowded.get_or_insert(name);
            }
            Ok(_) | Err(_) => {}
        }
    }
    crowded
}

/// When a process was started, in ticks of the clock: `starttime` of proc_pid_stat(5).
fn started(pid: u32) -> Option<u64> {
    let stat = read_lossy(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// What a pool says of itself over its socket; none from a server of another version.
///
/// # Errors
/// `WouldBlock` or `TimedOut` after `limit`; `PermissionDenied` where the server turns us away.
pub fn status(name: &str, limit: Duration) -> io::Result<Option<String>> {
    let answer = talk(name, &Request::Status, limit)?;
    Ok(answer.status.map(|status| status.to_string()))
}

/// What a pool has counted, over its socket; none from a server of another version.
///
/// # Errors
/// As [`status`].
pub fn metrics(name: &str, limit: Duration) -> io::Result<Option<Metrics>> {
    Ok(talk(name, &Request::Metrics, limit)?.metrics)
}

/// Who has files of a pool open, over its socket; none from a server of another version.
///
/// # Errors
/// As [`status`].
pub fn users(name: &str, limit: Duration) -> io::Result<Option<Users>> {
    Ok(talk(name, &Request::Users, limit)?.users)
}

/// The names of all control sockets.
fn names() -> io::Result<Vec<String>> {
    let list = read_lossy("/proc/net/unix")?;
    let mut names: Vec<String> = list
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'))
        .filter(|name| name.starts_with(PREFIX))
        .map(str::to_owned)
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Asks every server whether it serves this mountpoint. Two that say so live in different mount
/// namespaces, and cannot be told apart from here. Those of others are not asked, nor one that takes no
/// connections now.
fn search(mountpoint: &Path, request: &Request) -> Result<Answer, Failure> {
    let names = names().map_err(Failure::system("reading /proc/net/unix"))?;
    let is_trusted = |name: &str| {
        let stream = dial_now(name);
        stream.is_ok_and(|stream| peer_is_trusted(&stream).unwrap_or(false))
    };
    let serves = |name: &&String| {
        is_trusted(name)
            && talk(name, &Request::Hello, HELLO_LIMIT)
                .is_ok_and(|answer| answer.mountpoint.as_deref() == Some(mountpoint))
    };
    let found: Vec<&String> = names.iter().filter(serves).collect();
    match &found[..] {
        [only] => talk(only, request, ANSWER_LIMIT).map_err(|error| no_answer(mountpoint, &error)),
        [] => Err(Failure::NoAnswer {
            mountpoint: mountpoint.to_path_buf(),
            why: "no server with this mountpoint answers".to_owned(),
        }),
        _ => Err(Failure::NoAnswer {
            mountpoint: mountpoint.to_path_buf(),
            why: "several servers have this mountpoint, and with xattr=nosys they cannot be told \
                  apart"
                .to_owned(),
        }),
    }
}
