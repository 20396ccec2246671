//! Changing options and branches of a mounted pool: all of it or nothing, in one step.

use std::path::Path;
use std::sync::Arc;

use strandfs_options::branch::nested;
use strandfs_options::table::Status;
use strandfs_options::{ConfigErrors, ConfigFile, Notice, OptionError, Settings, TABLE};

use crate::admin::{Admin, features, readahead};
use crate::coherence::watched;
use crate::directory::recall::{self, Reason, Recalled};
use crate::health::membership;
use crate::mover::recover;
use crate::state::pool_error::PoolError;
use crate::state::view::View;

/// A change was refused; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReconfigureError {
    /// An option or the branch list is at fault.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A branch cannot join.
    #[error(transparent)]
    Branch(#[from] PoolError),
    /// A configuration file is at fault.
    #[error("{0}")]
    Config(String),
}

/// A change that was made.
#[derive(Debug)]
pub struct Changed {
    /// What to tell the user.
    pub notices: Vec<String>,
    /// The options with a new value.
    pub options: Vec<&'static str>,
    /// Resolves when the kernel has been told.
    pub recalled: Recalled,
}

/// Changes the settings as `change` says, in one step: a request sees all of it or nothing.
/// Open files go on where they are, on branches that leave the pool, too.
///
/// The kernel is told to look again at what it knows by a thread of its own; see
/// [`Changed::recalled`].
///
/// # Errors
/// What `change` refuses, an option fixed at mount, options that exclude each other, a
/// branch that cannot be opened, that is there twice or lies in the pool. Nothing is changed
/// then.
pub fn reconfigure(
    pool: &Admin,
    change: impl FnOnce(&mut Settings) -> Result<Vec<Notice>, OptionError>,
) -> Result<Changed, ReconfigureError> {
    apply(pool, |settings| Ok(change(settings)?))
}

/// Applies the options of a file, all of them or none, over those in force.
///
/// # Errors
/// As [`reconfigure`], and what is wrong with the file.
pub(super) fn apply_file(pool: &Admin, path: &Path) -> Result<Changed, ReconfigureError> {
    let refused = |errors: ConfigErrors| ReconfigureError::Config(errors.to_string());
    let file = ConfigFile::read(path).map_err(refused)?;
    apply(pool, |settings| {
        let mounted_from = settings.pool.config.clone();
        let applied = file.apply(settings).map_err(refused)?;
        settings.pool.config = mounted_from;
        Ok(applied.notices)
    })
}

fn apply(
    pool: &Admin,
    change: impl FnOnce(&mut Settings) -> Result<Vec<Notice>, ReconfigureError>,
) -> Result<Changed, ReconfigureError> {
    let mut changes = pool.changes.lock();
    let old = Arc::clone(&pool.view());
    let mut settings = old.settings.clone();
    let mut notices: Vec<String> = Vec::new();
    let said = change(&mut settings)?;
    let options = changed_options(&old.settings, &settings);
    notices.extend(features::settle(&mut settings));
    refuse_fixed(&old.settings, &settings)?;
    // What clashes anyway was said at mount.
    let before = old.settings.check().unwrap_or_default();
    let now = settings.check()?;
    let news = now.into_iter().filter(|notice| !before.contains(notice));
    notices.extend(
        said.into_iter()
            .chain(news)
            .map(|notice| notice.to_string()),
    );
    let known = nested(&old.settings.pool.branches);
    let nested = nested(&settings.pool.branches).into_iter();
    notices.extend(nested.filter(|sentence| !known.contains(sentence)));
    let (branches, missing) = match settings.pool.branches == old.settings.pool.branches {
        true => (old.branches.clone(), old.missing.clone()),
        false => membership::next_branches(pool, &old, &settings.pool.branches, &mut changes)?,
    };
    let generation = old.generation + 1;
    let branches_since = match settings.pool.branches == old.settings.pool.branches {
        true => old.branches_since,
        false => generation,
    };
    let root = membership::next_root(pool, &old, &branches, generation)?;
    let reason = Reason::between(&old, &settings, &branches);
    // Last, because what it does is not undone.
    if let Some(watcher) = pool.watcher.get() {
        watcher(&old.settings, &settings)?;
    }
    for branch in branches
        .iter()
        .filter(|branch| old.branch(branch.id).is_none())
    {
        recover::recover_joining(pool, branch, &branches);
    }
    watched::watch_branches(pool, &branches);
    if !options.is_empty() {
        tracing::info!(options = options.join(","), "options changed");
    }
    membership::put_in_force(
        pool,
        View {
            generation,
            branches_since,
            root,
            settings,
            branches,
            missing,
        },
    );
    membership::welcome_and_retire(pool, &old, &mut changes);
    notices.extend(readahead::change_readahead(pool, &old));
    Ok(Changed {
        notices,
        options,
        recalled: recall::recall(pool, reason),
    })
}

/// Has `watcher` asked before options of the mounted pool change; for what lies outside the
/// pool, such as the log. Once.
pub fn watch(pool: &Admin, watcher: Watcher) {
    let _ = pool.watcher.set(watcher);
}

fn changed_options(old: &Settings, new: &Settings) -> Vec<&'static str> {
    TABLE
        .iter()
        .filter(|option| option.status == Status::Active)
        .filter(|option| (option.value.get)(old) != (option.value.get)(new))
        .map(|option| option.name)
        .collect()
}

/// Options fixed at mount may not even change as the consequence of another.
fn refuse_fixed(old: &Settings, new: &Settings) -> Result<(), OptionError> {
    let fixed = changed_options(old, new).into_iter().find(|name| {
        strandfs_options::table::find(name).is_some_and(|(option, _)| !option.run_time)
    });
    match fixed {
        Some(option) => Err(OptionError::NotAtRunTime { option }),
        None => Ok(()),
    }
}

/// Told of the options before and after a change, which it may refuse.
pub type Watcher = Box<dyn Fn(&Settings, &Settings) -> Result<(), OptionError> + Send + Sync>;

#[cfg(test)]
mod tests;
