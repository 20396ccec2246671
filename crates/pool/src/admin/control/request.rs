//! What is asked for over the control socket, and how it is carried out.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strandfs_options::branch::{BranchMode, BranchSpec, reach};
use strandfs_options::size::MinFreeSpace;
use strandfs_options::{BranchError, Notice, OptionError, Settings};

use crate::admin::control::{Changed, ReconfigureError, reconfigure};
use crate::admin::{Admin, metrics, status, users};
use crate::base::branch::Branch;
use crate::base::metrics::{Metrics, Users};
use crate::state::State;
use crate::state::pool_error::PoolError;

/// How long an answer waits for the kernel to be told of the change.
const TELLING_LIMIT: Duration = Duration::from_secs(10);

/// A request: one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Who is there?
    Hello,
    /// What the pool says of itself.
    Status,
    /// What the pool has counted.
    Metrics,
    /// Who has files open.
    Users,
    /// Set options, all or none.
    Set {
        /// Names and values, in order; without a value it is a bare flag.
        options: Vec<(String, Option<String>)>,
    },
    /// Add a branch.
    BranchAdd {
        /// Absolute path, taken as it is.
        path: PathBuf,
        /// RW, RO or NC; RW if left out.
        mode: Option<String>,
        /// Its own minimum free space.
        minfreespace: Option<String>,
        /// Before the others instead of behind them.
        first: bool,
    },
    /// Remove a branch.
    BranchRemove {
        /// Its path.
        path: PathBuf,
    },
    /// Change a branch in place; what is left out stays.
    BranchSet {
        /// Its path.
        path: PathBuf,
        /// RW, RO or NC.
        mode: Option<String>,
        /// Its own minimum free space, or `default` for the pool's.
        minfreespace: Option<String>,
    },
    /// Read the configuration again.
    Reload,
    /// Have `notify.command` run once, to see whether it does.
    NotifyTest,
}

/// The answer: one line of JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// Why nothing was changed; a sentence.
    pub error: Option<String>,
    /// The same may be taken another time: a branch does not answer now.
    pub may_pass: bool,
    /// What to tell the user besides.
    pub notices: Vec<String>,
    /// The options with a new value, and the value.
    pub changed: Vec<(String, String)>,
    /// Whether the kernel has been told already.
    pub told: bool,
    /// The server.
    pub pid: u32,
    /// Where the pool is mounted.
    pub mountpoint: Option<PathBuf>,
    /// What the pool says of itself, where it was asked for.
    pub status: Option<serde_json::Value>,
    /// What the pool has counted, where it was asked for.
    pub metrics: Option<Metrics>,
    /// Who has files open, where it was asked for.
    pub users: Option<Users>,
    /// How a trial of `notify.command` went, where it was asked for; an error says what failed.
    pub notified: Option<Result<(), String>>,
}

/// Has `notify.command` run for an event that says it is a test, and waits for its end for a bounded
/// time; a clause for people if it did not run or failed.
pub type TryNotify = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Reads the configuration again and applies it; a sentence if it is refused.
pub type Reload = Box<dyn Fn(&Admin) -> Result<Changed, String> + Send + Sync>;

/// Has branches that are to join asked whether they answer, before anything is locked for the change.
fn ask_branches(pool: &State, request: &Request) {
    let patience = pool.view().settings.pool.patience();
    match request {
        Request::BranchAdd { path, .. } => {
            reach::find_silent([path.as_path()], patience);
        }
        Request::Set { options } => {
            let lists = options.iter().filter(|(name, _)| name == "branches");
            let lists = lists.filter_map(|(_, list)| list.as_deref());
            reach::ask_lists(lists, patience);
        }
        _ => {}
    }
}

/// Carries out a request from the control socket.
pub(super) fn carry_out(pool: &Admin, request: &Request) -> Answer {
    ask_branches(pool, request);
    let outcome = match request {
        Request::Hello => return signed(pool, Answer::default()),
        Request::Status => {
            return signed(
                pool,
                Answer {
                    status: serde_json::to_value(status::status(pool)).ok(),
                    ..Answer::default()
                },
            );
        }
        Request::Metrics => {
            return signed(
                pool,
                Answer {
                    metrics: Some(metrics::metrics(pool)),
                    ..Answer::default()
                },
            );
        }
        Request::Users => {
            return signed(
                pool,
                Answer {
                    users: Some(users::users(pool)),
                    ..Answer::default()
                },
            );
        }
        Request::NotifyTest => return signed(pool, try_notify(pool)),
        Request::Reload => reload(pool).map_err(|error| (error, false)),
        Request::Set { options } => {
            reconfigure::reconfigure(pool, |settings| set_all(settings, options)).map_err(said)
        }
        Request::BranchAdd { .. } | Request::BranchRemove { .. } | Request::BranchSet { .. } => {
            reconfigure::reconfigure(pool, |settings| edit_branches(settings, request))
                .map(|changed| with_writers(pool, request, changed))
                .map_err(said)
        }
    };
    match outcome {
        Ok(changed) => {
            let told = changed.recalled.wait(TELLING_LIMIT);
            let view = pool.view();
            let value = |name: &&str| view.settings.get(name).unwrap_or_default();
            signed(
                pool,
                Answer {
                    changed: changed
                        .options
                        .iter()
                        .map(|name| ((*name).to_owned(), value(name)))
                        .collect(),
                    notices: changed.notices,
                    told,
                    ..Answer::default()
                },
            )
        }
        Err((error, may_pass)) => signed(
            pool,
            Answer {
                error: Some(error),
                may_pass,
                ..Answer::default()
            },
        ),
    }
}

/// Why a change is refused, and whether the same may be taken another time.
fn said(refused: ReconfigureError) -> (String, bool) {
    let silent = matches!(
        refused,
        ReconfigureError::Branch(PoolError::Silent { .. })
            | ReconfigureError::Option(OptionError::Branch(BranchError::Silent { .. }))
    );
    (refused.to_string(), silent)
}

fn signed(pool: &State, answer: Answer) -> Answer {
    Answer {
        pid: std::process::id(),
        mountpoint: pool.mountpoint.get().cloned(),
        ..answer
    }
}

/// Says how `notify.command` is tried; once.
pub fn set_try_notify(pool: &Admin, try_notify: TryNotify) {
    let _ = pool.try_notify.set(try_notify);
}

fn try_notify(pool: &Admin) -> Answer {
    match pool.try_notify.get() {
        Some(try_notify) => Answer {
            notified: Some(try_notify()),
            ..Answer::default()
        },
        None => Answer {
            error: Some(
                "this pool has no notify.command: set it, then unmount the pool and mount it again"
                    .to_owned(),
            ),
            ..Answer::default()
        },
    }
}

/// Says how the configuration is read again; once.
pub fn set_reload(pool: &Admin, reload: Reload) {
    let _ = pool.reload.set(reload);
}

/// Reads the configuration again and puts it in force, all of it or nothing.
///
/// # Errors
/// A sentence saying what is wrong with it.
pub fn reload(pool: &Admin) -> Result<Changed, String> {
    match pool.reload.get() {
        Some(reload) => reload(pool),
        None => Err("this pool was not mounted from anything that can be read again".to_owned()),
    }
}

impl From<ReconfigureError> for String {
    fn from(refused: ReconfigureError) -> String {
        refused.to_string()
    }
}

fn set_all(
    settings: &mut Settings,
    options: &[(String, Option<String>)],
) -> Result<Vec<Notice>, OptionError> {
    let mut notices = Vec::new();
    for (name, value) in options {
        let effect = settings.set_at_run_time(name, value.as_deref())?;
        notices.extend(effect.notice);
    }
    Ok(notices)
}

fn edit_branches(settings: &mut Settings, request: &Request) -> Result<Vec<Notice>, OptionError> {
    match request {
        Request::BranchAdd {
            path,
            mode,
            minfreespace,
            first,
        } => {
            let spec = BranchSpec {
                path: path.clone(),
                mode: read_mode(mode)?.unwrap_or(BranchMode::ReadWrite),
                min_free_space: read_size(minfreespace)?,
            };
            let sign = if *first { "+<" } else { "+>" };
            settings.set_at_run_time("branches", Some(&format!("{sign}{spec}")))?;
        }
        Request::BranchRemove { path } => {
            let index = find(settings, path)?;
            let mut branches = settings.pool.branches.clone();
            branches.remove(index);
            settings.set_branches_at_run_time(branches)?;
        }
        Request::BranchSet {
            path,
            mode,
            minfreespace,
        } => {
            let index = find(settings, path)?;
            let (mode, size) = (read_mode(mode)?, read_size(minfreespace)?);
            let mut branches = settings.pool.branches.clone();
            if let Some(branch) = branches.get_mut(index) {
                branch.mode = mode.unwrap_or(branch.mode);
                if minfreespace.is_some() {
                    branch.min_free_space = size;
                }
            }
            settings.set_branches_at_run_time(branches)?;
        }
        Request::Hello
        | Request::Status
        | Request::Metrics
        | Request::Users
        | Request::Set { .. }
        | Request::NotifyTest
        | Request::Reload => {}
    }
    Ok(Vec::new())
}

/// Says how many files are open for writing on a branch that nothing new is written to: what programs
/// write to those still goes there.
fn with_writers(pool: &State, request: &Request, mut changed: Changed) -> Changed {
    let path = match request {
        Request::BranchSet {
            path,
            mode: Some(mode),
            ..
        } if mode.parse() == Ok(BranchMode::ReadOnly) => path,
        Request::BranchRemove { path } => path,
        _ => return changed,
    };
    let is_known = pool
        .view()
        .branches
        .iter()
        .any(|branch| branch.path == *path);
    let real = match is_known {
        true => path.clone(),
        false => reach::canonicalize(path).unwrap_or_else(|| path.clone()),
    };
    let mut files: u64 = 0;
    pool.files.each(|file| {
        let is_there = |branch: &Branch| branch.path == *path || branch.path == real;
        files += u64::from(file.writable && file.branch().is_some_and(|branch| is_there(&branch)));
    });
    if files > 0 {
        let (are, them) = match files {
            1 => ("file is", "it"),
            _ => ("files are", "them"),
        };
        changed.notices.push(format!(
            "{files} {are} still open for writing on {}: what programs write to {them} goes there until \
             they close {them}; do not copy or pull it before",
            path.display()
        ));
    }
    changed
}

/// The branch of this path, or of what the path leads to.
fn find(settings: &Settings, path: &Path) -> Result<usize, OptionError> {
    let by = |wanted: &Path| {
        let mut branches = settings.pool.branches.iter();
        branches.position(|branch| branch.path == wanted)
    };
    by(path)
        .or_else(|| by(&reach::canonicalize(path)?))
        .ok_or_else(|| {
            OptionError::Branch(BranchError::NothingToRemove {
                item: path.to_string_lossy().into_owned(),
            })
        })
}

fn read_mode(mode: &Option<String>) -> Result<Option<BranchMode>, OptionError> {
    let Some(mode) = mode else { return Ok(None) };
    mode.parse().map(Some).map_err(|_| OptionError::BadValue {
        option: "mode".to_owned(),
        value: mode.clone(),
        accepted: "RW, RO or NC",
        suggestion: None,
    })
}

/// `default` means none of its own.
fn read_size(size: &Option<String>) -> Result<Option<MinFreeSpace>, OptionError> {
    match size.as_deref() {
        None | Some("default") => Ok(None),
        Some(size) => size.parse().map(Some).map_err(|_| OptionError::BadValue {
            option: "minfreespace".to_owned(),
            value: size.to_owned(),
            accepted: MinFreeSpace::ACCEPTED,
            suggestion: None,
        }),
    }
}
