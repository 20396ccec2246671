//! Changing options and branches of a mounted pool: all of it or nothing, in one step.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_options::table::Status;
use strandfs_options::{
    BranchSpec, ConfigErrors, ConfigFile, Notice, OptionError, Settings, TABLE,
};

use super::recall::{Reason, Recalled};
use crate::admin::features;
use crate::base::branch::{Branch, BranchId};
use crate::base::sys;
use crate::health::{Mark, Missing, is_marked};
use crate::pool::{PassthroughVerdict, Pool, PoolError, View, Watcher, root_set};
use crate::state::node::{DirEntry, DirSet};

/// Attempts at a request while options and branches keep changing under it.
const ATTEMPTS: usize = 16;

/// Branches in use, and out of use.
type Members = (Vec<Arc<Branch>>, Vec<Arc<Missing>>);

/// What changes need to remember. Locked while one is made: they follow each other.
pub(crate) struct Changes {
    next_id: usize,
    retired: Vec<Retired>,
}

impl Changes {
    /// The pool was mounted with this many branches.
    pub fn after(branches: usize) -> Self {
        Changes {
            next_id: branches,
            retired: Vec::new(),
        }
    }
}

/// A branch that left the pool. If it comes back it is the same branch, so that numbers, handles
/// and what is still open go on.
struct Retired {
    id: BranchId,
    path: PathBuf,
    root: Mark,
}

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

impl Pool {
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
        &self,
        change: impl FnOnce(&mut Settings) -> Result<Vec<Notice>, OptionError>,
    ) -> Result<Changed, ReconfigureError> {
        self.apply(|settings| Ok(change(settings)?))
    }

    /// Applies the options of a file, all of them or none, over those in force.
    ///
    /// # Errors
    /// As [`Pool::reconfigure`], and what is wrong with the file.
    pub(super) fn apply_file(&self, path: &Path) -> Result<Changed, ReconfigureError> {
        let refused = |errors: ConfigErrors| ReconfigureError::Config(errors.to_string());
        let file = ConfigFile::read(path).map_err(refused)?;
        self.apply(|settings| {
            let mounted_from = settings.config.clone();
            let applied = file.apply(settings).map_err(refused)?;
            settings.config = mounted_from;
            Ok(applied.notices)
        })
    }

    fn apply(
        &self,
        change: impl FnOnce(&mut Settings) -> Result<Vec<Notice>, ReconfigureError>,
    ) -> Result<Changed, ReconfigureError> {
        let mut changes = self.changes.lock();
        let old = Arc::clone(&self.view());
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
        let (branches, missing) = match settings.branches == old.settings.branches {
            true => (old.branches.clone(), old.missing.clone()),
            false => self.next_branches(&old, &settings.branches, &mut changes)?,
        };
        let generation = old.generation + 1;
        let branches_since = match settings.branches == old.settings.branches {
            true => old.branches_since,
            false => generation,
        };
        let root = self.next_root(&old, &branches, generation)?;
        let reason = Reason::between(&old, &settings, &branches);
        // Last, because what it does is not undone.
        if let Some(watcher) = self.watcher.get() {
            watcher(&old.settings, &settings)?;
        }
        for branch in branches
            .iter()
            .filter(|branch| old.branch(branch.id).is_none())
        {
            self.mend_joining(branch, &branches);
        }
        self.watch_branches(&branches);
        if !options.is_empty() {
            tracing::info!(options = options.join(","), "options changed");
        }
        self.put_in_force(View {
            generation,
            branches_since,
            root,
            settings,
            branches,
            missing,
        });
        self.welcome_and_retire(&old, &mut changes);
        notices.extend(self.change_readahead(&old));
        Ok(Changed {
            notices,
            options,
            recalled: self.recall(reason),
        })
    }

    /// Has `watcher` asked before options of the mounted pool change; for what lies outside the
    /// pool, such as the log. Once.
    pub fn watch(&self, watcher: Watcher) {
        let _ = self.watcher.set(watcher);
    }

    /// The branches of the new list: the ones there are, with their new rules, and new ones.
    fn next_branches(
        &self,
        old: &View,
        specs: &[BranchSpec],
        changes: &mut Changes,
    ) -> Result<Members, PoolError> {
        let mut next: Vec<Arc<Branch>> = Vec::with_capacity(specs.len());
        let mut missing = Vec::new();
        for spec in specs {
            if let Some(known) = old.missing.iter().find(|m| m.spec.path == spec.path) {
                missing.push(Arc::new(known.with_rules_of(spec)));
                continue;
            }
            let stays = old.branches.iter().find(|known| known.path == spec.path);
            let branch = match stays {
                Some(known) if known.follows(spec) => Arc::clone(known),
                Some(known) => Arc::new(known.with_rules_of(spec)),
                None => Arc::new(self.open_new(spec, changes)?),
            };
            let twin = |other: &&Arc<Branch>| other.mark().same_directory(branch.mark());
            if let Some(other) = next.iter().find(twin) {
                return Err(PoolError::SameDirectory {
                    path: spec.path.clone(),
                    other: other.path.clone(),
                });
            }
            next.push(branch);
        }
        Ok((next, missing))
    }

    fn open_new(&self, spec: &BranchSpec, changes: &mut Changes) -> Result<Branch, PoolError> {
        let path = &spec.path;
        if let Some(mountpoint) = self.mountpoint.get()
            && (path.starts_with(mountpoint) || mountpoint.starts_with(path))
        {
            return Err(PoolError::Loop {
                path: path.clone(),
                mountpoint: mountpoint.clone(),
            });
        }
        let failed = |errno| PoolError::Branch {
            path: path.clone(),
            errno,
        };
        let branch = Branch::open(BranchId(u16::MAX), spec).map_err(failed)?;
        if let Some(marker) = &self.view().settings.branch_marker
            && !is_marked(branch.root(), marker)
        {
            let (path, marker) = (path.clone(), marker.clone());
            return Err(PoolError::Unmarked { path, marker });
        }
        let back = changes
            .retired
            .iter()
            .find(|gone| gone.path == *path && gone.root.never_left(branch.mark()));
        if let Some(gone) = back {
            return Ok(branch.with_id(gone.id));
        }
        let id = u16::try_from(changes.next_id).map_err(|_| PoolError::TooManyBranches)?;
        if id == u16::MAX {
            return Err(PoolError::TooManyBranches);
        }
        changes.next_id += 1;
        Ok(branch.with_id(BranchId(id)))
    }

    /// The root on the new branches; those that stay are not asked again.
    pub(crate) fn next_root(
        &self,
        old: &View,
        branches: &[Arc<Branch>],
        generation: u64,
    ) -> Result<Arc<DirSet>, PoolError> {
        let new: Vec<Arc<Branch>> = branches
            .iter()
            .filter(|branch| old.root.on(branch.id).is_none())
            .cloned()
            .collect();
        let new = root_set(&self.volumes, &self.coherence.dir_caches, &new, generation)?;
        let entries: SmallVec<[DirEntry; 2]> = branches
            .iter()
            .filter_map(|branch| {
                let known = old.root.on(branch.id).or_else(|| new.on(branch.id))?;
                Some(known.under(branch))
            })
            .collect();
        Ok(Arc::new(DirSet::new(
            entries,
            sys::mono_coarse_ms(),
            generation,
            self.coherence.structure(),
        )))
    }

    /// After the change: passthrough is tried on branches that joined, and those that left are
    /// let go.
    fn welcome_and_retire(&self, old: &View, changes: &mut Changes) {
        let view = Arc::clone(&self.view());
        let joined: Vec<Arc<Branch>> = view
            .branches
            .iter()
            .filter(|branch| old.branch(branch.id).is_none())
            .cloned()
            .collect();
        self.welcome(&joined);
        changes
            .retired
            .retain(|gone| joined.iter().all(|branch| branch.id != gone.id));
        for branch in &old.branches {
            if view.branch(branch.id).is_some() {
                continue;
            }
            self.unwatch(branch.id);
            self.volumes.close(branch.id);
            changes.retired.push(Retired {
                id: branch.id,
                path: branch.path.clone(),
                root: branch.mark().clone(),
            });
        }
    }

    /// Tries passthrough on branches that joined.
    pub(crate) fn welcome(&self, joined: &[Arc<Branch>]) {
        if let (PassthroughVerdict::On, Some(connection)) =
            (self.passthrough_verdict(), self.connection.get())
        {
            self.probe_passthrough(connection, joined);
        }
    }

    /// Runs a request again that failed while options or branches changed under it, or a file
    /// moved: it may have seen half of the old and half of the new.
    pub(crate) fn steady<T>(
        &self,
        mut attempt: impl FnMut() -> crate::base::error::Result<T>,
    ) -> crate::base::error::Result<T> {
        let mut outcome = Err(Errno::STALE.into());
        for _ in 0..ATTEMPTS {
            let before = (self.view().generation, self.moves());
            outcome = attempt();
            if outcome.is_ok() || (self.view().generation, self.moves()) == before {
                break;
            }
        }
        outcome
    }
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

#[cfg(test)]
mod tests;
