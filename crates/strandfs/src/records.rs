//! `strandfs records`: what interrupted moves left that no mount follows.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use strandfs_pool::records::{Listed, accept, discard, list};
use strandfs_pool::status::SCHEMA;

use crate::answers::FoundRecord;
use crate::args::records::RecordsCommand;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::mounts;
use crate::output::print_json;

/// `strandfs records`.
///
/// # Errors
/// A branch cannot be read, or a record cannot be accepted or removed.
pub fn run(command: &RecordsCommand) -> Result<ExitCode, Failure> {
    match command {
        RecordsCommand::List { targets, json } => show(targets, *json),
        RecordsCommand::Accept { branch, name, yes } => take(branch, name, *yes),
        RecordsCommand::Discard { branch, name } => {
            discard(branch, OsStr::new(name)).map_err(|why| refused(branch, why))?;
            println!("removed {name}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn show(targets: &[PathBuf], as_json: bool) -> Result<ExitCode, Failure> {
    let mut found: Vec<(PathBuf, Vec<Listed>)> = Vec::new();
    for branch in branches_of(targets)? {
        let records = list(&branch)
            .map_err(|errno| refused(&branch, format!("{errno}; name a branch or a mountpoint")))?;
        found.push((branch, records));
    }
    let doubtful = found
        .iter()
        .flat_map(|(_, records)| records)
        .any(|record| record.left_alone.is_some());
    if as_json {
        let in_branch = |(branch, records): (PathBuf, Vec<Listed>)| {
            let records = records.into_iter();
            records.map(move |record| answer(&branch, record))
        };
        let all: Vec<FoundRecord> = found.into_iter().flat_map(in_branch).collect();
        print_json(&all)?;
    } else {
        for (branch, records) in &found {
            records.iter().for_each(|record| print(branch, record));
        }
    }
    match doubtful {
        true => Ok(Exit::Degraded.into()),
        false => Ok(ExitCode::SUCCESS),
    }
}

fn answer(branch: &Path, record: Listed) -> FoundRecord {
    FoundRecord {
        schema: SCHEMA,
        branch: branch.to_string_lossy().into_owned(),
        name: record.name.to_string_lossy().into_owned(),
        followed: record.left_alone.is_none(),
        reason: record.left_alone,
        about: record.about,
    }
}

fn print(branch: &Path, record: &Listed) {
    let name = record.name.display();
    tell!("{branch:?} {name}");
    match &record.left_alone {
        None => tell!("  the next mount follows it"),
        Some(why) => tell!("  left alone: {why}"),
    }
    match &record.about {
        Some(about) => tell!("  {about}"),
        None => tell!("  what it is about cannot be read"),
    }
    if record.left_alone.is_some() {
        if record.about.is_some() {
            println!("  to have it followed: strandfs records accept {branch:?} {name}");
        }
        println!("  to be rid of it: strandfs records discard {branch:?} {name}");
    }
}

fn take(branch: &Path, name: &str, yes: bool) -> Result<ExitCode, Failure> {
    let records = list(branch)
        .map_err(|errno| refused(branch, format!("{errno}; name the branch it lies on")))?;
    let record = records.into_iter().find(|record| record.name == name);
    let record = record.ok_or_else(|| {
        refused(
            branch,
            format!("there is no record named {name}, or a server is at work on it; `strandfs records list` shows those that wait"),
        )
    })?;
    let Some(about) = record.about else {
        return Err(refused(branch, "the record cannot be read".to_owned()));
    };
    if record.left_alone.is_none() {
        println!("the next mount follows it as it is: {about}");
        return Ok(ExitCode::SUCCESS);
    }
    if !yes {
        println!("the next mount would follow it: {about}");
        println!("whoever wrote it chose these names; add --yes if they are right");
        return Ok(Exit::Degraded.into());
    }
    let about = accept(branch, OsStr::new(name)).map_err(|why| refused(branch, why))?;
    println!("the next mount follows it: {about}");
    Ok(ExitCode::SUCCESS)
}

/// The branches meant by branches and mountpoints. What another user's server says of branches is
/// not believed: it may name any directory.
fn branches_of(targets: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mounted = mounts::all().map_err(Failure::system("reading /proc/self/mountinfo"))?;
    let own = mounted.iter().filter(|pool| pool.stranger().is_none());
    let own: Vec<&Path> = own.map(|pool| &*pool.mountpoint).collect();
    let all: Vec<&Path> = match targets.is_empty() {
        true => own.clone(),
        false => targets.iter().map(PathBuf::as_path).collect(),
    };
    let mut branches = Vec::new();
    for target in all {
        if let Ok(Some(user)) = mounts::stranger(target) {
            return Err(Failure::NotPermitted {
                path: target.to_owned(),
                why: format!("user {user} mounted it: name the branches themselves"),
            });
        }
        if !own.contains(&target) {
            branches.push(target.to_owned());
            continue;
        }
        let status = mounts::status(target).map_err(Failure::system("asking the pool's server"))?;
        let listed = status.branches.into_iter();
        branches.extend(listed.map(|branch| PathBuf::from(branch.path)));
    }
    Ok(branches)
}

fn refused(branch: &Path, why: String) -> Failure {
    Failure::Records {
        branch: branch.to_owned(),
        why,
    }
}
