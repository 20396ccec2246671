//! `strandfs explain`.

mod show;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::io::Errno;
use serde_json::Value;

use crate::args::ExplainArgs;
use crate::failure::Failure;
use crate::logging::one_line;
use crate::mounts;

/// The kernel's limit for an attribute's value.
const ANSWER_MAX_BYTES: usize = 65_536;

/// Explains one path.
///
/// # Errors
/// The path is not in a pool, or its server does not answer.
pub fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let path = std::path::absolute(&args.path).map_err(Failure::system("finding the path"))?;
    let (nearest, mut answer) = ask(&path)?;
    let missing = path.strip_prefix(&nearest).unwrap_or(Path::new(""));
    if let Some(answer) = answer.as_object_mut() {
        let asked = path.to_string_lossy().into_owned();
        answer.insert("asked".to_owned(), Value::from(asked));
        let answered = nearest.to_string_lossy().into_owned();
        answer.insert("answered".to_owned(), Value::from(answered));
        let missing = missing.to_string_lossy().into_owned();
        answer.insert("missing".to_owned(), Value::from(missing));
    }
    if args.json {
        println!("{answer:#}");
    } else {
        make_plain(&mut answer);
        print!("{}", show::text(&answer));
    }
    Ok(ExitCode::SUCCESS)
}

/// Names are others' to choose: none may command the terminal or pass for a line of ours.
fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) => *text = one_line(text),
        Value::Array(items) => items.iter_mut().for_each(make_plain),
        Value::Object(fields) => fields.values_mut().for_each(make_plain),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
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
                    return refuse("something above it is a file, not a directory");
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
                    return refuse(
                        "only root, the user who mounted the pool and the file's owner may ask",
                    );
                }
                Some(Errno::NOTCONN) => {
                    return refuse("the pool's server is dead; unmount it and mount it again");
                }
                _ => return refuse(&error.to_string()),
            },
        }
    }
}

/// Whether a pool is the nearest thing mounted above a path; only for the words of a refusal.
fn in_a_pool(path: &Path) -> bool {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    mounts::all().is_ok_and(|pools| pools.iter().any(|pool| real.starts_with(pool)))
}

fn ask_exactly(path: &Path) -> io::Result<Value> {
    let answer = attribute(path, "system.strandfs.explain")?;
    let answer: Value = serde_json::from_slice(&answer)?;
    let (Some(token), Some(parts)) = (answer["token"].as_str(), answer["parts"].as_u64()) else {
        return Ok(answer);
    };
    let mut whole = Vec::new();
    for number in 0..parts {
        let name = format!("system.strandfs.explain.{token}.{number}");
        whole.append(&mut attribute(path, &name)?);
    }
    Ok(serde_json::from_slice(&whole)?)
}

fn attribute(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; ANSWER_MAX_BYTES];
    let len = rustix::fs::lgetxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}
