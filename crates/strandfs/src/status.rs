//! `strandfs status`.

mod show;

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::args::StatusArgs;
use crate::deaths;
use crate::failure::{DEGRADED, FAILED, Failure};
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
    let named = args.mountpoint.is_some();
    let pools: Vec<Value> = found.iter().map(|pool| look(pool, named)).collect();
    let well = |pool: &Value| {
        let mut branches = pool
            .get("branches")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        branches.all(|branch| text(branch, "health") == "ok")
    };
    let all_well = pools.iter().all(well);
    let all_answer = pools.iter().all(|pool| pool.get("error").is_none());
    if args.json {
        println!("{:#}", Value::Array(pools));
    } else if pools.is_empty() {
        println!("no strandfs pool is mounted");
    } else {
        pools.into_iter().for_each(|mut pool| {
            make_plain(&mut pool);
            show::print(&pool);
        });
    }
    Ok(match (all_answer, all_well) {
        (false, _) => ExitCode::from(FAILED),
        (true, false) => ExitCode::from(DEGRADED),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// What is to be shown of a pool. One of another user is asked only if it was named: there may be
/// any number of them, each of which lets whoever asks wait.
fn look(pool: &Mounted, named: bool) -> Value {
    match pool.stranger() {
        Some(owner) if !named => json!({
            "mountpoint": pool.mountpoint.to_string_lossy(),
            "owner_uid": owner,
            "not_asked": format!("mounted by user {owner}; name it to have it asked"),
        }),
        _ => ask(&pool.mountpoint),
    }
}

fn ask(mountpoint: &Path) -> Value {
    let answer = mounts::ask(mountpoint)
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str::<Value>(&text).map_err(|error| error.to_string()));
    answer.unwrap_or_else(|error| {
        json!({
            "mountpoint": mountpoint.to_string_lossy(),
            "error": error,
            "death": deaths::word_of(mountpoint),
        })
    })
}

/// A text of an answer.
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("?")
}

/// A number of an answer.
pub fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

/// "on", or "off: reason".
fn switch(value: &Value, key: &str) -> String {
    let state = value.get(key).cloned().unwrap_or_default();
    let on = state.get("on").and_then(Value::as_bool);
    let reason = state.get("reason").and_then(Value::as_str);
    match (on, reason) {
        (Some(true), _) => "on".to_owned(),
        (Some(false), Some(reason)) => format!("off: {reason}"),
        (_, reason) => reason.unwrap_or("unknown").to_owned(),
    }
}
