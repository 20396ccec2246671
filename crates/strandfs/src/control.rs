//! `strandfs get`, `set`, `branch`, `reload` and `notify-test`: acting on a mounted pool.

pub mod client;
mod save;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::io::Errno;
use serde::Deserialize;
use serde_json::Value;
use strandfs_options::branch::reach;
use strandfs_options::table::{Status as OptionStatus, TABLE, find};
use strandfs_options::{OptionError, table};
use strandfs_pool::admin::control::request::{Answer, Request};
use strandfs_pool::status::{SCHEMA, Status};

use crate::answers::{Values, typed};
use crate::args::control::{
    BranchArgs, BranchCommand, GetArgs, NotifyTestArgs, ReloadArgs, SetArgs,
};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::logging::one_line;
use crate::output::print_json;
use crate::{mounts, probe};

/// How long a directory that was a branch may take to be looked at.
const PATIENCE: Duration = Duration::from_secs(3);

/// `strandfs get`.
///
/// # Errors
/// No pool is mounted there, its server cannot be asked, or an option does not exist.
pub fn get(args: &GetArgs) -> Result<ExitCode, Failure> {
    let mountpoint = mounted(&args.mountpoint)?;
    let mut values = BTreeMap::new();
    if args.keys.is_empty() {
        let active = TABLE
            .iter()
            .filter(|option| option.status == OptionStatus::Active);
        for option in active {
            // A server of another version may lack it.
            if let Ok(value) = client::value(&mountpoint, option.name) {
                values.insert(option.name.to_owned(), value);
            }
        }
    }
    for key in &args.keys {
        let value = client::value(&mountpoint, key).map_err(|error| match error {
            // What the pool says of itself has keys that are no options: only it knows.
            error if Errno::from_io_error(&error) == Some(Errno::NODATA) => match key.contains('=')
            {
                true => Failure::Refused(format!(
                    "get shows values: to change one, `strandfs set {} {key}`",
                    args.mountpoint.display()
                )),
                false => OptionError::unknown(key).into(),
            },
            error => Failure::system("asking the pool's server for an option")(error),
        })?;
        values.insert(key.clone(), value);
    }
    match (args.json, args.keys.len()) {
        (true, _) => print_json(&as_values(mountpoint, values))?,
        (false, 1) => values
            .values()
            .for_each(|value| println!("{}", one_line(value))),
        (false, _) => values
            .iter()
            .for_each(|(key, value)| println!("{key}={}", one_line(value))),
    }
    Ok(ExitCode::SUCCESS)
}

fn as_values(mountpoint: PathBuf, texts: BTreeMap<String, String>) -> Values {
    let (mut values, mut units) = (BTreeMap::new(), BTreeMap::new());
    for (key, text) in texts {
        let (value, unit) = typed(&key, &text);
        units.extend(unit.map(|unit| (key.clone(), unit.to_owned())));
        values.insert(key, value);
    }
    Values {
        schema: SCHEMA,
        mountpoint,
        values,
        units,
    }
}

/// `strandfs set`.
///
/// # Errors
/// No pool is mounted there, or an option is refused: nothing is changed then.
pub fn set(args: &SetArgs) -> Result<ExitCode, Failure> {
    let options = args.options.iter().map(|item| match item.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (item.clone(), None),
    });
    let options: Vec<_> = options.collect();
    let first = args.mountpoint.to_string_lossy();
    if first
        .split_once('=')
        .is_some_and(|(name, _)| find(name).is_some())
    {
        return Err(Failure::Refused(format!(
            "the mountpoint comes first: write `strandfs set MOUNTPOINT {}`",
            one_line(&first)
        )));
    }
    if let Some(pair) = options.windows(2).find_map(apart) {
        return Err(Failure::Refused(format!(
            "an option and its value are one word: write KEY=VALUE, here {pair}"
        )));
    }
    if let Some((name, _)) = options.iter().find(|(name, _)| find(name).is_none()) {
        return Err(OptionError::unknown(name).into());
    }
    ask(&args.mountpoint, &Request::Set { options }, args.save)
}

/// `KEY VALUE` for `KEY=VALUE`: the word behind an option without a value is none itself.
fn apart(words: &[(String, Option<String>)]) -> Option<String> {
    match words {
        [(key, None), (value, None)] if find(key).is_some() && find(value).is_none() => {
            Some(format!("{}={}", one_line(key), one_line(value)))
        }
        _ => None,
    }
}

/// `strandfs reload`.
///
/// # Errors
/// No pool is mounted there, or its configuration is refused: nothing is changed then.
pub fn reload(args: &ReloadArgs) -> Result<ExitCode, Failure> {
    ask(&args.mountpoint, &Request::Reload, false)
}

/// `strandfs branch`.
///
/// # Errors
/// No pool is mounted there, or the change is refused: nothing is changed then.
pub fn branch(args: &BranchArgs) -> Result<ExitCode, Failure> {
    match &args.command {
        BranchCommand::List { mountpoint, json } => list(mountpoint, *json),
        BranchCommand::Add {
            mountpoint,
            path,
            mode,
            minfreespace,
            first,
            save,
        } => {
            let path = absolute(path)?;
            let request = Request::BranchAdd {
                path: path.clone(),
                mode: mode.clone(),
                minfreespace: minfreespace.clone(),
                first: *first,
            };
            let exit = ask(mountpoint, &request, *save)?;
            if let Some(said) = without_its_disk(mountpoint, &path) {
                say!("{}", one_line(&said));
            }
            Ok(exit)
        }
        BranchCommand::Remove {
            mountpoint,
            path,
            save,
        } => {
            let path = absolute(path)?;
            let request = Request::BranchRemove { path: path.clone() };
            let exit = ask(mountpoint, &request, *save)?;
            // A branch that does not answer may be why it is removed.
            if probe::holds_files(&path, PATIENCE).unwrap_or(false) {
                say!(
                    "{} still holds files: they stay there and are no longer seen in the pool; \
                     copy them into the pool, or take the branch back with `strandfs branch add`",
                    one_line(&path.to_string_lossy())
                );
            }
            Ok(exit)
        }
        BranchCommand::Set {
            mountpoint,
            path,
            mode,
            minfreespace,
            save,
        } => ask(
            mountpoint,
            &Request::BranchSet {
                path: absolute(path)?,
                mode: mode.clone(),
                minfreespace: minfreespace.clone(),
            },
            *save,
        ),
    }
}

/// What is said of a branch on the root filesystem, to one who has all others on disks of their own.
fn without_its_disk(mountpoint: &Path, path: &Path) -> Option<String> {
    let added = reach::canonicalize(path)?;
    let branches = mounts::status(&mounted(mountpoint).ok()?).ok()?.branches;
    let all = mounts::list().ok()?;
    let is_on_root = |path: &Path| {
        mounts::that_holds(path, &all).is_some_and(|it| it.mountpoint == Path::new("/"))
    };
    let others = branches.iter().map(|branch| Path::new(&branch.path));
    let mut others = others.filter(|other| *other != added).peekable();
    let is_alone = others.peek().is_some() && !others.any(is_on_root);
    (is_alone && is_on_root(&added)).then(|| {
        format!(
            "branch {} lies on the root filesystem, as no other branch does: if a disk belongs there, remove \
             the branch, mount the disk and add the branch again",
            added.display()
        )
    })
}

fn list(mountpoint: &Path, json: bool) -> Result<ExitCode, Failure> {
    let status =
        mounts::ask(&mounted(mountpoint)?).map_err(Failure::system("asking the pool's server"))?;
    let misread =
        |error: serde_json::Error| Failure::system("asking the pool's server")(error.into());
    if json {
        /// As they came: a newer server says more than this program knows.
        #[derive(Deserialize)]
        struct Whole {
            branches: Value,
        }
        let mut whole: Whole = serde_json::from_str(&status).map_err(misread)?;
        for branch in whole.branches.as_array_mut().into_iter().flatten() {
            branch["schema"] = SCHEMA.into();
        }
        print_json(&whole.branches)?;
    } else {
        let status: Status = serde_json::from_str(&status).map_err(misread)?;
        for branch in status.branches {
            let own = branch.minfreespace.map(|own| format!(",{own}"));
            let line = format!("{}={}{}", branch.path, branch.mode, own.unwrap_or_default());
            println!("{}", one_line(&line));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends a change, says what came of it, and saves it.
fn ask(mountpoint: &Path, request: &Request, save: bool) -> Result<ExitCode, Failure> {
    let mountpoint = trusted(mountpoint)?;
    let target = match save {
        true => Some(save::Target::of(&mountpoint, request)?),
        false => None,
    };
    let overridden = match save {
        true => overridden(&mountpoint, request),
        false => Vec::new(),
    };
    let Answer {
        error,
        may_pass,
        notices,
        told,
        ..
    } = client::ask(&mountpoint, request)?;
    if let Some(error) = error {
        return Err(match may_pass {
            true => Failure::NotNow(error),
            false => Failure::Refused(error),
        });
    }
    for notice in notices {
        say!("{}", one_line(&notice));
    }
    if let Some(target) = target {
        target.save()?;
    }
    if !told {
        say!(
            "the change is made, but the kernel is still being told to forget what it cached before"
        );
    }
    for (name, place) in &overridden {
        say!(
            "{name} is saved, but the pool was mounted with another value in {place}, which counts more at the next mount: change it there, too"
        );
    }
    Ok(match overridden.is_empty() {
        true => ExitCode::SUCCESS,
        false => Exit::Degraded.into(),
    })
}

/// Options that the file sets in vain, and where else they are set.
fn overridden(mountpoint: &Path, request: &Request) -> Vec<(String, &'static str)> {
    let names: Vec<&str> = match request {
        Request::Set { options } => options.iter().map(|(name, _)| canonical(name)).collect(),
        _ => vec!["branches"],
    };
    let status = mounts::ask(mountpoint).ok();
    let status: Option<Status> = status.and_then(|text| serde_json::from_str(&text).ok());
    let origins = status.map(|status| status.origins).unwrap_or_default();
    let place = |name: &str| match origins.get(name)?.as_str() {
        "fstab" => Some((name.to_owned(), "/etc/fstab or the options of mount")),
        "command-line" => Some((name.to_owned(), "the command line")),
        _ => None,
    };
    names.into_iter().filter_map(place).collect()
}

/// `strandfs notify-test`.
///
/// # Errors
/// No pool is mounted there, it has no `notify.command`, or that did not run or failed.
pub fn notify_test(args: &NotifyTestArgs) -> Result<ExitCode, Failure> {
    let mountpoint = trusted(&args.mountpoint)?;
    let answer = client::ask(&mountpoint, &Request::NotifyTest)?;
    if let Some(error) = answer.error {
        return Err(Failure::Refused(error));
    }
    match answer.notified {
        Some(Ok(())) => {
            tell!("notify.command ran and ended with exit code 0");
            Ok(ExitCode::SUCCESS)
        }
        Some(Err(why)) => Err(Failure::Tool {
            program: "notify.command".to_owned(),
            why: one_line(&why),
        }),
        None => Err(Failure::NoAnswer {
            mountpoint,
            why: "its server is of another version".to_owned(),
        }),
    }
}

/// The pool mounted exactly here, if its server is not one of another user, who could answer anything.
fn trusted(given: &Path) -> Result<PathBuf, Failure> {
    let mountpoint = mounted(given)?;
    let stranger = mounts::stranger(&mountpoint);
    match stranger.map_err(Failure::system("reading /proc/self/mountinfo"))? {
        None => Ok(mountpoint),
        Some(user) => Err(Failure::NotPermitted {
            path: mountpoint,
            why: format!(
                "it was mounted by user {user}, whose server is not trusted with changes: run this as \
                 that user"
            ),
        }),
    }
}

/// The pool mounted exactly here.
fn mounted(given: &Path) -> Result<PathBuf, Failure> {
    let real = std::fs::canonicalize(given).unwrap_or_else(|_| given.to_path_buf());
    let found = mounts::find(&real)
        .map_err(Failure::system("reading /proc/self/mountinfo"))?
        .ok_or_else(|| Failure::NotMounted(given.to_path_buf()))?;
    match mounts::hindrance(&found) {
        None => Ok(found),
        Some(why) => Err(Failure::NoAnswer {
            mountpoint: found,
            why,
        }),
    }
}

/// The server stands in another directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(Failure::system("finding the present directory"))
}

/// The name of the option that is set by this one.
fn canonical(name: &str) -> &'static str {
    let target = |name| table::find(name).map(|(option, _)| option);
    match target(name).map(|option| (option.name, option.status)) {
        Some((_, OptionStatus::Renamed { to })) => target(to).map_or(to, |option| option.name),
        Some((name, _)) => name,
        None => "",
    }
}
