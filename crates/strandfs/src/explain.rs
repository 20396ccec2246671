//! `strandfs explain`.

mod show;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rustix::io::Errno;
use serde_json::Value;
use strandfs_pool::status::{InParts, SCHEMA};

use crate::answers::Explained;
use crate::args::ExplainArgs;
use crate::failure::Failure;
use crate::output::make_plain;
use crate::{deaths, mounts, probe};

/// How long the answer may take without a word about what it waits for.
const SOON: Duration = Duration::from_secs(5);

/// How long it may take at all: disks that sleep take their time to wake up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most parts of an answer: more than ten thousand branches need.
const PARTS_MAX: u64 = 1024;

/// Explains one path.
///
/// # Errors
/// The path is not in a pool, or its server does not answer.
pub fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let path = std::path::absolute(&args.path).map_err(Failure::system("finding the path"))?;
    let pool = mounts::around(&path);
    if let Some(why) = pool.as_deref().and_then(mounts::hindrance) {
        return Err(Failure::Unanswered { path, why });
    }
    let (nearest, answer) = patiently(&path, pool.as_deref())?;
    let missing = path.strip_prefix(&nearest).unwrap_or(Path::new(""));
    let explained = Explained {
        schema: SCHEMA,
        asked: path.to_string_lossy().into_owned(),
        answered: nearest.to_string_lossy().into_owned(),
        missing: missing.to_string_lossy().into_owned(),
        answer,
    };
    let misread = Failure::system("reading the server's answer");
    let mut whole = serde_json::to_value(explained).map_err(|error| misread(error.into()))?;
    if args.json {
        println!("{whole:#}");
    } else {
        make_plain(&mut whole);
        let misread = Failure::system("reading the server's answer");
        let explained = serde_json::from_value(whole).map_err(|error| misread(error.into()))?;
        tell!("{}", show::text(&explained).trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// As [`ask`], with a word to the user when it takes long.
fn patiently(path: &Path, pool: Option<&Path>) -> Result<(PathBuf, Value), Failure> {
    let (tell, told) = channel();
    let asked = path.to_owned();
    // Every step of it ends in time.
    std::thread::spawn(move || tell.send(ask(&asked)));
    let waits_for = || pool.map_or_else(String::new, unwell);
    match told.recv_timeout(SOON) {
        Ok(answer) => return answer,
        Err(RecvTimeoutError::Timeout) => {
            say!("no answer yet{}", waits_for());
        }
        Err(RecvTimeoutError::Disconnected) => {}
    }
    told.recv_timeout(PATIENCE)
        .unwrap_or_else(|_| Err(silent(path, &waits_for())))
}

fn silent(path: &Path, waits_for: &str) -> Failure {
    Failure::Unanswered {
        path: path.to_owned(),
        why: format!("no answer within {} seconds{waits_for}", PATIENCE.as_secs()),
    }
}

/// The branches of a pool that are not well, after a colon.
fn unwell(pool: &Path) -> String {
    let status = match mounts::status(pool) {
        Ok(status) => status,
        Err(error) => return format!(": {error}"),
    };
    let unwell = status.branches.iter().filter(|branch| !branch.is_well());
    let said: Vec<String> = unwell
        .map(|branch| {
            let (path, health) = (&branch.path, &branch.health);
            format!("branch {path} is {health} ({})", branch.condition.reason)
        })
        .collect();
    match said.is_empty() {
        true => String::new(),
        false => format!(": {}", said.join(", ")),
    }
}

/// Asks about a path, or the nearest directory above it that exists.
fn ask(path: &Path) -> Result<(PathBuf, Value), Failure> {
    let mut at = path.to_path_buf();
    loop {
        let asked = at.clone();
        let refuse = |why: &str| {
            Err(Failure::Unanswered {
                path: asked.clone(),
                why: why.to_owned(),
            })
        };
        match ask_exactly(&at) {
            Ok(answer) => return Ok((at, answer)),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT) if at.pop() => {}
                Some(Errno::NOTDIR) => {
                    return refuse("something above it is a file, not a directory; name that file");
                }
                Some(Errno::OPNOTSUPP | Errno::NOSYS) if in_a_pool(&at) => {
                    return refuse(
                        "its pool has xattr=nosys, so the kernel does not ask it; mount it with xattr=noattr to have paths explained",
                    );
                }
                Some(Errno::OPNOTSUPP | Errno::NODATA | Errno::NOSYS | Errno::NOENT) => {
                    return Err(Failure::NotInPool(path.to_path_buf()));
                }
                Some(Errno::ACCESS) => {
                    return Err(Failure::NotPermitted {
                        path: asked,
                        why:
                            "only root, the user who mounted the pool and the file's owner may ask"
                                .to_owned(),
                    });
                }
                Some(Errno::NOTCONN) => {
                    let word = mounts::around(&at).and_then(|pool| deaths::word_of(&pool));
                    let word =
                        word.map_or_else(String::new, |word| format!(" ({})", word.join("; ")));
                    return refuse(&format!(
                        "the pool's server is dead{word}; unmount it and mount it again"
                    ));
                }
                None if error.kind() == io::ErrorKind::TimedOut => return Err(silent(&asked, "")),
                // What the branches are like says more than the error.
                _ => {
                    let why = mounts::around(&at).map_or_else(String::new, |pool| unwell(&pool));
                    return refuse(&format!("{error}{why}"));
                }
            },
        }
    }
}

/// Whether a pool is the nearest thing mounted above a path; only for the words of a refusal.
fn in_a_pool(path: &Path) -> bool {
    mounts::around(path).is_some()
}

fn ask_exactly(path: &Path) -> io::Result<Value> {
    let answer = probe::attribute(path, "system.strandfs.explain", PATIENCE)?;
    let Ok(InParts { token, parts }) = serde_json::from_slice(&answer) else {
        return Ok(serde_json::from_slice(&answer)?);
    };
    // Whoever mounted what is asked may not be a friend.
    if parts > PARTS_MAX {
        let why = format!("its answer has {parts} parts, {PARTS_MAX} at most are read");
        return Err(io::Error::other(why));
    }
    let mut whole = Vec::new();
    for number in 0..parts {
        let name = format!("system.strandfs.explain.{token}.{number}");
        whole.append(&mut probe::attribute(path, &name, PATIENCE)?);
    }
    Ok(serde_json::from_slice(&whole)?)
}
