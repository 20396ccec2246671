//! Asking what may never answer: a mount whose server hangs, a dead disk. Who waits for such a thing
//! inside the kernel cannot be killed, and a process ends with its last thread; so it is another
//! process that asks, and is left behind if it has to be.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use strandfs_options::branch::reach;

/// What the process is called.
const NAME: &str = "strandfs-probe";

/// This program, even if its file was replaced or is hidden by a mount.
const PROGRAM: &str = "/proc/self/exe";

/// For looking at one path.
const STACK_BYTES: usize = 256 << 10;

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

/// Looks up a directory so many times, as a user and group that nothing belongs to.
///
/// # Errors
/// Those of `setuid(2)` and `statx(2)`; `TimedOut` after `limit`.
pub fn walks_as_nobody(path: &Path, times: u32, limit: Duration) -> io::Result<()> {
    let times = times.to_string();
    ask(&["walk".as_ref(), path.as_os_str(), times.as_ref()], limit).map(drop)
}

/// Whether a directory holds anything that is a user's.
///
/// # Errors
/// Those of `readdir(3)`; `TimedOut` after `limit`.
pub fn holds_files(path: &Path, limit: Duration) -> io::Result<bool> {
    let held = ask(&["holds".as_ref(), path.as_os_str()], limit)?;
    Ok(!held.is_empty())
}

/// For each word of a branch list, without braces, whether what it names answers in time; all at once.
/// One that was asked before and is at it still does not.
pub fn answering(words: &[String], limit: Duration) -> Vec<bool> {
    let stuck: Vec<bool> = words.iter().map(|word| left::is_asked_for(word)).collect();
    let asked = words.iter().zip(&stuck).filter(|(_, stuck)| !**stuck);
    let asked: Vec<&str> = asked.map(|(word, _)| word.as_str()).collect();
    let mut answered = vec![false; asked.len()];
    if !asked.is_empty() {
        let mut said = Vec::new();
        let arguments: Vec<&OsStr> = ["touch"].iter().chain(&asked).map(OsStr::new).collect();
        let outcome = run(&arguments, Instant::now() + limit, &mut said);
        let numbers = String::from_utf8_lossy(&said);
        for number in numbers
            .lines()
            .filter_map(|line| line.parse::<usize>().ok())
        {
            if let Some(answer) = answered.get_mut(number) {
                *answer = true;
            }
        }
        match outcome {
            Ok(()) => {}
            Err(Unasked::Late(child)) => {
                let silent = asked.iter().zip(&answered).filter(|(_, answer)| !**answer);
                let silent = silent.map(|(word, _)| (*word).to_owned());
                left::keep(child, silent.collect());
            }
            // Nothing speaks against what could not be asked.
            Err(Unasked::Error(_)) => answered.fill(true),
        }
    }
    let mut answers = answered.into_iter();
    stuck
        .iter()
        .map(|stuck| !stuck && answers.next().unwrap_or(true))
        .collect()
}

/// Why there is no answer.
enum Unasked {
    /// It takes longer than it may; the process has been killed, and may not be able to die.
    Late(Child),
    /// There is no such process to be had.
    Error(io::Error),
}

fn ask(words: &[&OsStr], limit: Duration) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    match run(words, Instant::now() + limit, &mut answer) {
        Ok(()) => {}
        Err(Unasked::Late(child)) => {
            left::keep(child, Vec::new());
            return Err(io::ErrorKind::TimedOut.into());
        }
        Err(Unasked::Error(error)) => return Err(error),
    }
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

/// Starts a process that asks, and reads what it says until it ends.
fn run(words: &[&OsStr], deadline: Instant, said: &mut Vec<u8>) -> Result<(), Unasked> {
    let mut child = Command::new(PROGRAM)
        .arg0(NAME)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Unasked::Error)?;
    let read = match child.stdout.take() {
        Some(mut pipe) => read_until(&mut pipe, deadline, said),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    };
    match read {
        Ok(()) => child.wait().map(drop).map_err(Unasked::Error),
        Err(error) => {
            // It goes when what it waits for lets it.
            let _ = child.kill();
            match error.kind() {
                io::ErrorKind::TimedOut => Err(Unasked::Late(child)),
                _ => Err(Unasked::Error(error)),
            }
        }
    }
}

fn read_until(
    pipe: &mut (impl Read + AsFd),
    deadline: Instant,
    said: &mut Vec<u8>,
) -> io::Result<()> {
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
            0 => return Ok(()),
            len => said.extend_from_slice(piece.get(..len).unwrap_or_default()),
        }
    }
}

/// Processes that asked and have not come back.
mod left {
    use std::process::Child;
    use std::sync::{Mutex, PoisonError};

    /// Each with what it has no answer about.
    static LEFT: Mutex<Vec<(Child, Vec<String>)>> = Mutex::new(Vec::new());

    /// Buries it once it has ended, whenever somebody asks again.
    pub(super) fn keep(child: Child, silent: Vec<String>) {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.push((child, silent));
    }

    /// Whether one is at this word still, though it was killed: another would only join it.
    pub(super) fn is_asked_for(word: &str) -> bool {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain_mut(|(child, _)| matches!(child.try_wait(), Ok(None)));
        let mut silent = left.iter().flat_map(|(_, silent)| silent);
        silent.any(|known| known == word)
    }
}

/// Whether the program was started to ask.
pub fn is_called(program: Option<&OsString>) -> bool {
    program.is_some_and(|name| name == NAME)
}

/// In the process that asks: the answer goes to standard output.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let answer = match arguments.get(1..).unwrap_or_default() {
        [what, words @ ..] if what == "touch" => return touch(words),
        [what, path, name] if what == "attribute" => value_of(Path::new(path), name),
        [what, path, times] if what == "walk" => walk(Path::new(path), times),
        [what, path] if what == "filesystem" => state_of(Path::new(path)),
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

/// Touches what each of the words names, all at once, and says the number of each that answered. One that
/// hangs keeps this process from ending, and nobody from the other answers.
fn touch(words: &[OsString]) -> ExitCode {
    let say = |number: usize| {
        // Whoever asked may be gone.
        let _ = writeln!(io::stdout().lock(), "{number}");
    };
    std::thread::scope(|scope| {
        for (number, word) in words.iter().enumerate() {
            let word = word.to_string_lossy();
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let touch = move || {
                for path in reach::touch(&word) {
                    // No cache of the kernel answers this. An error is an answer, too.
                    let _ = state_of(&path);
                }
                say(number);
            };
            if thread.spawn_scoped(scope, touch).is_err() {
                // Not asked: nothing speaks against it.
                say(number);
            }
        }
    });
    ExitCode::SUCCESS
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

/// The kernel's numbers of the user and group that nothing belongs to.
const NOBODY: u32 = 65_534;

fn walk(path: &Path, times: &OsStr) -> io::Result<Vec<u8>> {
    let times: u32 = (times.to_str())
        .and_then(|times| times.parse().ok())
        .ok_or(Errno::INVAL)?;
    rustix::thread::set_thread_groups(&[])?;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    let inside = path.join(".");
    for _ in 0..times {
        std::fs::symlink_metadata(&inside)?;
    }
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
