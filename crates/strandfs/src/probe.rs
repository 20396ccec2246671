//! Asking what may never answer: a mount whose server hangs, a dead disk. Who waits for such a thing
//! inside the kernel cannot be killed, and a process ends with its last thread; so it is another
//! process that asks, and is left behind if it has to be.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// What the process is called.
const NAME: &str = "strandfs-probe";

/// This program, even if its file was replaced or is hidden by a mount.
const PROGRAM: &str = "/proc/self/exe";

/// The kernel's limit for an attribute's value.
const VALUE_MAX_BYTES: usize = 65_536;

/// The first byte of an answer: what follows is a value, or the number of an error.
const VALUE: u8 = b'=';
const ERROR: u8 = b'!';

/// The value of an extended attribute of what a path leads to, which is not followed if it is a
/// symbolic link.
///
/// # Errors
/// Those of `lgetxattr(2)`; `TimedOut` after `limit`.
pub fn attribute(path: &Path, name: &str, limit: Duration) -> io::Result<Vec<u8>> {
    ask(
        &["attribute".as_ref(), path.as_os_str(), name.as_ref()],
        limit,
    )
}

/// Whether a filesystem says that it is there.
///
/// # Errors
/// Those of `statfs(2)`; `TimedOut` after `limit`.
pub fn filesystem(path: &Path, limit: Duration) -> io::Result<()> {
    ask(&["filesystem".as_ref(), path.as_os_str()], limit).map(drop)
}

/// Whether a directory can be looked at and its filesystem be asked for its state.
///
/// # Errors
/// Those of `stat(2)`, `statfs(2)` and `readdir(3)`; `TimedOut` after `limit`.
pub fn look(path: &Path, limit: Duration) -> io::Result<()> {
    ask(&["look".as_ref(), path.as_os_str()], limit).map(drop)
}

/// Whether a directory holds anything that is a user's.
///
/// # Errors
/// Those of `readdir(3)`; `TimedOut` after `limit`.
pub fn holds_files(path: &Path, limit: Duration) -> io::Result<bool> {
    let held = ask(&["holds".as_ref(), path.as_os_str()], limit)?;
    Ok(!held.is_empty())
}

fn ask(words: &[&OsStr], limit: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + limit;
    let mut child = Command::new(PROGRAM)
        .arg0(NAME)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let answer = match child.stdout.take() {
        Some(mut pipe) => read_until(&mut pipe, deadline),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    };
    match &answer {
        // It goes when what it waits for lets it; nobody waits for it.
        Err(_) => drop(child.kill()),
        Ok(_) => drop(child.wait()?),
    }
    let answer = answer?;
    match answer.split_first() {
        Some((&VALUE, value)) => Ok(value.to_vec()),
        Some((&ERROR, number)) => {
            let number = std::str::from_utf8(number).ok();
            let number = number.and_then(|number| number.parse().ok());
            Err(number.map_or(
                io::ErrorKind::InvalidData.into(),
                io::Error::from_raw_os_error,
            ))
        }
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn read_until(pipe: &mut (impl Read + AsFd), deadline: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let wait = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut asked = [PollFd::new(&*pipe, PollFlags::IN)];
        match poll(&mut asked, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => continue,
            other => other?,
        };
        match pipe.read(&mut piece)? {
            0 => return Ok(answer),
            len => answer.extend_from_slice(piece.get(..len).unwrap_or_default()),
        }
    }
}

/// Whether the program was started to ask.
pub fn is_called(program: Option<&OsString>) -> bool {
    program.is_some_and(|name| name == NAME)
}

/// In the process that asks: the answer goes to standard output.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let answer = match arguments.get(1..).unwrap_or_default() {
        [what, path, name] if what == "attribute" => value_of(Path::new(path), name),
        [what, path] if what == "filesystem" => state_of(Path::new(path)),
        [what, path] if what == "look" => look_at(Path::new(path)),
        [what, path] if what == "holds" => something_in(Path::new(path)),
        _ => return crate::exit::Exit::Usage.into(),
    };
    let bytes = match answer {
        Ok(value) => [&[VALUE], value.as_slice()].concat(),
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            [&[ERROR], number.to_string().as_bytes()].concat()
        }
    };
    match io::stdout().lock().write_all(&bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => crate::exit::Exit::Failed.into(),
    }
}

fn value_of(path: &Path, name: &OsStr) -> io::Result<Vec<u8>> {
    let mut value = vec![0; VALUE_MAX_BYTES];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

fn state_of(path: &Path) -> io::Result<Vec<u8>> {
    rustix::fs::statfs(path)?;
    Ok(Vec::new())
}

/// A byte if there is something besides our own files and what `mkfs` makes.
fn something_in(path: &Path) -> io::Result<Vec<u8>> {
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        if name != "lost+found" && !name.as_encoded_bytes().starts_with(b".strandfs") {
            return Ok(vec![b'1']);
        }
    }
    Ok(Vec::new())
}

fn look_at(path: &Path) -> io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.is_dir() {
        std::fs::read_dir(path)?.next();
    }
    state_of(path)
}
