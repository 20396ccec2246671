//! Branches that vanish, are replaced, turn read-only or do not answer.
//!
//! A thread (`monitor`) looks after the branches; requests only read what it found. A branch that
//! is not what it was is *fenced*: it leaves the view, so that requests reach it no more than one
//! that was taken out of the pool, its descriptors are let go, and what `on-missing` says applies
//! until it is back. Nothing here costs a request a system call or a lock.

pub(crate) mod dead_server;
pub mod events;
pub(crate) mod membership;
mod monitor;
mod stuck;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use strandfs_options::branch::reach;
use strandfs_options::{BranchSpec, OnMissing, Settings};

use crate::base::branch::{
    Branch, BranchHealth, BranchId, BranchState, Mark, Missing, Place, is_dead_server, is_marked,
    state_gone, why_gone,
};
use crate::base::error::{Error, Result};
use crate::base::rank;
use crate::coherence::watched;
use crate::directory::recall::{self, Reason};
use crate::health::membership::Changes;
use crate::mover::{Mover, recover};
use crate::state::pool_error::PoolError;
use crate::state::view::View;
use crate::state::{State, passthrough};
pub use monitor::start;

/// The branches that the pool has, and how they are.
pub struct Health {
    mover: Arc<Mover>,
    pub(crate) health_monitor: HealthMonitor,
    pub(crate) changes: rank::Mutex<Changes, { rank::CHANGES }>,
}

impl Health {
    /// Of a pool with so many branches, whether they are there or not.
    pub(crate) fn new(mover: Arc<Mover>, branches: usize) -> Arc<Health> {
        Arc::new(Health {
            mover,
            health_monitor: HealthMonitor::default(),
            changes: rank::Mutex::new(Changes::after(branches)),
        })
    }
}

impl Health {
    /// What moves files between these branches.
    pub(crate) fn mover(&self) -> &Arc<Mover> {
        &self.mover
    }
}

impl Deref for Health {
    type Target = Mover;

    fn deref(&self) -> &Mover {
        &self.mover
    }
}

/// How long a change of the pool may hold up the fencing of a branch before it is tried again.
const PATIENCE: Duration = Duration::from_millis(100);

/// What all of a pool's branches share for their health.
#[derive(Default)]
pub struct HealthMonitor {
    stop: monitor::Stop,
    pub(crate) ended: AtomicBool,
    notifier: OnceLock<events::Notifier>,
}

impl HealthMonitor {
    /// Says who is told of events; once.
    pub(crate) fn set_notifier(&self, notifier: events::Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// Whether the mount has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends the monitor.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.stop.stop();
    }
}

/// Has all branches asked whether they answer, before one is opened; what does not is waited for once.
pub(crate) fn ask_at_mount(settings: &Settings) {
    let branches = settings.pool.branches.iter();
    let paths = branches.map(|branch| branch.path.as_path());
    reach::find_silent(paths, settings.pool.patience());
}

/// Opens a branch as the pool is mounted, or finds it missing where `on-missing` lets a pool start
/// without it. One that did not answer is not touched ([`ask_at_mount`]).
///
/// # Errors
/// It does not answer, cannot be opened or has no mark, and the pool is not to start without it.
pub(crate) fn open_at_mount(
    id: BranchId,
    spec: &BranchSpec,
    settings: &Settings,
) -> Result<Result<Branch, Missing>, PoolError> {
    let path = || spec.path.clone();
    let mut place = None;
    let opened = match reach::is_silent(&spec.path) {
        true => None,
        false => Some(Branch::open(id, spec)),
    };
    let reason = match (opened, &settings.health.branch_marker) {
        (None, _) => {
            place = Some(Place::by_name(&spec.path));
            PoolError::Silent { path: path() }
        }
        (Some(Ok(branch)), Some(marker)) if !is_marked(branch.root(), marker) => {
            let marker = marker.clone();
            PoolError::Unmarked {
                path: path(),
                marker,
            }
        }
        (Some(Ok(branch)), _) => return Ok(Ok(branch)),
        (Some(Err(errno)), _) => {
            // What is beneath its mount must not be taken for it later.
            place = is_dead_server(errno).then(|| Place::of(&spec.path));
            PoolError::Branch {
                path: path(),
                errno,
            }
        }
    };
    if settings.health.on_missing == OnMissing::Fail {
        return Err(reason);
    }
    let health = Arc::new(BranchHealth::new(&spec.path));
    health.change(BranchState::Missing, &reason.to_string());
    Ok(Err(Missing {
        id,
        spec: spec.clone(),
        health,
        mark: None,
        place,
    }))
}

impl View {
    /// Whether every branch is there, or the pool is to be what the others hold.
    ///
    /// # Errors
    /// EIO: a missing branch may have a say in what is asked for.
    pub(crate) fn complete(&self) -> Result<()> {
        match self.missing.first() {
            Some(missing) if self.settings.health.on_missing != OnMissing::Degrade => {
                let error = Error::from(Errno::IO).of(missing.id);
                Err(error.until_after(self.generation))
            }
            _ => Ok(()),
        }
    }

    /// Whether changes are allowed at all.
    ///
    /// # Errors
    /// EROFS while a branch is missing and `on-missing=readonly`.
    pub(crate) fn changeable(&self) -> Result<()> {
        match self.settings.health.on_missing {
            OnMissing::ReadOnly if !self.missing.is_empty() => Err(Errno::ROFS.into()),
            _ => Ok(()),
        }
    }

    /// What it means that something was not found: no more than that, if a branch is missing.
    pub(crate) fn absent(&self, error: Error) -> Error {
        match error.errno {
            Errno::NOENT | Errno::STALE => self.complete().err().unwrap_or(error),
            _ => error,
        }
    }
}

/// Fences a branch. False if something else is being changed: to be tried again.
pub(crate) fn fence(pool: &Health, id: BranchId, state: BranchState, reason: &str) -> bool {
    let Some(changes) = pool.changes.try_lock_for(PATIENCE) else {
        return false;
    };
    let old = Arc::clone(&pool.view());
    let Some(branch) = old.branch(id) else {
        return true;
    };
    let branches: Vec<Arc<Branch>> = old
        .branches
        .iter()
        .filter(|b| b.id != id)
        .cloned()
        .collect();
    let mut missing = old.missing.clone();
    missing.push(Arc::new(branch.as_missing()));
    if let Err(error) = membership::replace_branches(pool, &changes, &old, branches, missing) {
        tracing::debug!(%error, "a branch is not fenced yet");
        return false;
    }
    branch.health().change(state, reason);
    watched::unwatch(pool, id);
    pool.volumes.close(id);
    let _ = recall::recall(pool, Reason::branch_vanished());
    true
}

/// Takes a branch back, if its path leads to what it was.
///
/// # Errors
/// Why it cannot be taken back.
pub(crate) fn take_back(pool: &Health, missing: &Missing) -> Result<(), (BranchState, String)> {
    // A thread that hangs there would keep the server from ending.
    let path = missing.spec.path.as_path();
    if !reach::find_silent([path], reach::PATIENCE).is_empty() {
        let reason = "it does not answer".to_owned();
        return Err((BranchState::Missing, reason));
    }
    let branch = Branch::open_as(missing.id, &missing.spec, &missing.health)
        .map_err(|errno| (state_gone(errno), why_gone(errno)))?;
    if let Some(was) = &missing.mark
        && !was.same(branch.mark())
    {
        let (state, reason) = was.difference(branch.mark());
        let owner = owner_of(pool, branch.mark(), missing.id);
        let owner = owner.map(|path| format!(": that of {}", path.display()));
        return Err((state, reason + &owner.unwrap_or_default()));
    }
    if let Some(place) = &missing.place
        && let Some(other) = place.difference(branch.mark())
    {
        return Err(other);
    }
    let marker = pool.view().settings.health.branch_marker.clone();
    if let Some(marker) = marker
        && !is_marked(branch.root(), &marker)
    {
        return Err((BranchState::Missing, format!("it has no {marker}")));
    }
    if let Some(was) = &missing.mark {
        pool.volumes
            .renumber(missing.id, was.device, branch.mark().device);
    }
    let branch = Arc::new(branch);
    let Some(changes) = pool.changes.try_lock_for(PATIENCE) else {
        return Err(missing.health.state());
    };
    let old = Arc::clone(&pool.view());
    if old.missing.iter().all(|other| other.id != missing.id) {
        return Ok(());
    }
    let mut members: Vec<Arc<Branch>> = old.branches.clone();
    members.push(Arc::clone(&branch));
    let order = |branch: &Arc<Branch>| {
        let specs = &old.settings.pool.branches;
        specs.iter().position(|spec| spec.path == branch.path)
    };
    members.sort_by_key(order);
    let left = old.missing.iter().filter(|other| other.id != missing.id);
    let left = left.cloned().collect();
    recover::recover_joining(pool, &branch, &members);
    passthrough::welcome(pool, std::slice::from_ref(&branch));
    watched::watch_branches(pool, &members);
    if let Err(error) = membership::replace_branches(pool, &changes, &old, members, left) {
        watched::unwatch(pool, missing.id);
        pool.volumes.close(missing.id);
        return Err((BranchState::Missing, error.to_string()));
    }
    drop(changes);
    missing.health.change(BranchState::Ok, "");
    let _ = recall::recall(pool, Reason::branch_returned(missing.id));
    Ok(())
}

/// Where the branch belongs whose root this is, if it is another than `id`.
fn owner_of(pool: &State, root: &Mark, id: BranchId) -> Option<PathBuf> {
    let view = pool.view();
    let here = view.branches.iter().map(|b| (b.id, &b.path, b.mark()));
    let gone = view
        .missing
        .iter()
        .filter_map(|m| Some((m.id, &m.spec.path, m.mark.as_ref()?)));
    here.chain(gone)
        .find(|(other, _, mark)| *other != id && mark.same(root))
        .map(|(_, path, _)| path.clone())
}
