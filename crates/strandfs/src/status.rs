//! `strandfs status`.

mod outdated;
mod show;

use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use strandfs_pool::status::{Branch, SCHEMA, Status};

use crate::args::StatusArgs;
use crate::deaths;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::logging::one_line;
use crate::mounts::{self, Mounted};
use crate::output::make_plain;

/// Shows one pool or all; the exit code says whether all answer and all branches are well.
///
/// # Errors
/// No pool is mounted where one was asked for.
pub fn run(args: &StatusArgs) -> Result<ExitCode, Failure> {
    let mut found = mounts::all().map_err(Failure::system("reading /proc/self/mountinfo"))?;
    if let Some(wanted) = &args.mountpoint {
        // A dead mount cannot be resolved; its name is taken as it is.
        let real = std::fs::canonicalize(wanted)
            .or_else(|_| std::path::absolute(wanted))
            .unwrap_or_else(|_| wanted.clone());
        deaths::tell(&real);
        found.retain(|pool| pool.mountpoint == real);
        if found.is_empty() {
            return Err(Failure::NotMounted(wanted.clone()));
        }
    }
    if args.outdated {
        outdated::print(&found);
        return Ok(ExitCode::SUCCESS);
    }
    let named = args.mountpoint.is_some();
    let shown: Vec<Shown> = found.iter().map(|pool| look(pool, named, args)).collect();
    let all_well = shown.iter().all(Shown::is_well);
    let all_answer = !shown.iter().any(|it| matches!(it, Shown::Silent { .. }));
    if args.json {
        println!("{:#}", serde_json::to_value(&shown).unwrap_or_default());
    } else if shown.is_empty() {
        println!("no strandfs pool is mounted");
    } else {
        shown.iter().for_each(show::print);
    }
    Ok(match (all_answer, all_well) {
        (false, _) => Exit::Failed.into(),
        (true, false) => Exit::Degraded.into(),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// What is shown of one mount.
#[derive(Serialize)]
#[serde(untagged)]
enum Shown {
    /// Its server's answer.
    Pool {
        /// As it came: a newer server says more than this program knows.
        #[serde(flatten)]
        answer: Value,
        #[serde(skip)]
        status: Box<Status>,
    },
    /// Its server has not answered.
    Silent {
        schema: u32,
        mountpoint: String,
        error: String,
        death: Option<Vec<String>>,
    },
    /// Its server was not asked.
    NotAsked {
        schema: u32,
        mountpoint: String,
        owner_uid: u32,
        not_asked: String,
    },
}

impl Shown {
    fn is_well(&self) -> bool {
        match self {
            Self::Pool { status, .. } => status.branches.iter().all(Branch::is_well),
            Self::Silent { .. } | Self::NotAsked { .. } => true,
        }
    }
}

/// What is to be shown of a pool. One of another user is asked only if it was named: there may be
/// any number of them, each of which lets whoever asks wait.
fn look(pool: &Mounted, named: bool, args: &StatusArgs) -> Shown {
    let plain = |text: String| match args.json {
        true => text,
        false => one_line(&text),
    };
    let mountpoint = plain(pool.mountpoint.to_string_lossy().into_owned());
    match pool.stranger() {
        Some(owner_uid) if !named => Shown::NotAsked {
            schema: SCHEMA,
            mountpoint,
            owner_uid,
            not_asked: format!("mounted by user {owner_uid}; name it to have it asked"),
        },
        _ => ask(&pool.mountpoint, args).unwrap_or_else(|error| Shown::Silent {
            schema: SCHEMA,
            mountpoint,
            error: plain(error.to_string()),
            death: deaths::word_of(&pool.mountpoint),
        }),
    }
}

fn ask(mountpoint: &Path, args: &StatusArgs) -> std::io::Result<Shown> {
    let mut answer: Value = serde_json::from_str(&mounts::ask(mountpoint)?)?;
    if !args.json {
        make_plain(&mut answer);
    }
    let status = Box::new(Status::deserialize(&answer)?);
    Ok(Shown::Pool { answer, status })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn programs_get_also_what_only_a_newer_server_says() {
        let answer = json!({ "pid": 7, "moon": "full", "branches": [{ "path": "/a", "red": 9 }] });
        let status = Box::new(Status::deserialize(&answer).unwrap());
        let shown = [
            Shown::Pool {
                answer: answer.clone(),
                status,
            },
            Shown::Silent {
                schema: SCHEMA,
                mountpoint: "/m".to_owned(),
                error: "dead".to_owned(),
                death: None,
            },
        ];
        assert_eq!(
            serde_json::to_value(&shown).unwrap(),
            json!([answer, { "schema": 1, "mountpoint": "/m", "error": "dead", "death": null }])
        );
    }
}
