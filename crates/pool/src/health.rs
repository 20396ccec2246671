//! Branches that vanish, are replaced, turn read-only or do not answer.
//!
//! A thread (`monitor`) looks after the branches; requests only read what it found. A branch that
//! is not what it was is *fenced*: it leaves the view, so that requests reach it no more than one
//! that was taken out of the pool, its descriptors are let go, and what `on-missing` says applies
//! until it is back. Nothing here costs a request a system call or a lock.

mod dead_server;
mod drive;
mod mark;
mod monitor;
mod state;
mod stuck;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{StatVfs, Statx};
use rustix::io::Errno;
use strandfs_fuse::Context;
use strandfs_options::{BranchSpec, OnMissing, Settings};

use crate::admin::control::{Changes, Reason};
use crate::base::blocking_pool::BlockingPool;
use crate::base::branch::{Branch, BranchId};
use crate::base::error::{Error, Result};
use crate::base::sys;
use crate::directory::set::{Freshness, SlowBranches};
use crate::pool::{Pool, PoolError, View};
use crate::state::node::{DirEntry, DirSet, Node};
use crate::watch::CachedLookups;

pub use dead_server::DEAD_SERVER;
use dead_server::why_gone;
pub use mark::{Mark, is_marked, open};
pub use monitor::start;
pub use state::{Health, State, is_dead_server, is_failure};

/// How long a change of the pool may hold up the fencing of a branch before it is tried again.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often a waiting request looks whether the branch is back or it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// A branch that is fenced: nothing of it is held open.
#[derive(Debug)]
pub struct Missing {
    /// Its name inside the pool, which it keeps.
    pub id: BranchId,
    /// Where it should be, and its rules.
    pub spec: BranchSpec,
    /// How it is.
    pub health: Arc<Health>,
    /// Who it was; none if it was not there at mount.
    pub mark: Option<Mark>,
}

impl Missing {
    /// The same, with the mode and minimum free space of `spec`.
    pub fn with_rules_of(&self, spec: &BranchSpec) -> Missing {
        Missing {
            id: self.id,
            spec: spec.clone(),
            health: Arc::clone(&self.health),
            mark: self.mark.clone(),
        }
    }
}

/// What all of a pool's branches share for their health.
#[derive(Default)]
pub struct HealthMonitor {
    pub(crate) blocking_pool: BlockingPool,
    stop: monitor::Stop,
    ended: AtomicBool,
}

impl HealthMonitor {
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

/// Opens a branch as the pool is mounted, or finds it missing where `on-missing` lets a pool start
/// without it.
///
/// # Errors
/// It cannot be opened or has no mark, and the pool is not to start without it.
pub(crate) fn open_at_mount(
    id: BranchId,
    spec: &BranchSpec,
    settings: &Settings,
) -> Result<Result<Branch, Missing>, PoolError> {
    let path = || spec.path.clone();
    let reason = match (Branch::open(id, spec), &settings.branch_marker) {
        (Ok(branch), Some(marker)) if !is_marked(branch.root(), marker) => {
            let marker = marker.clone();
            PoolError::Unmarked {
                path: path(),
                marker,
            }
        }
        (Ok(branch), _) => return Ok(Ok(branch)),
        (Err(errno), _) => PoolError::Branch {
            path: path(),
            errno,
        },
    };
    if settings.on_missing == OnMissing::Fail {
        return Err(reason);
    }
    let health = Arc::new(Health::new(&spec.path));
    health.change(State::Missing, &reason.to_string());
    Ok(Err(Missing {
        id,
        spec: spec.clone(),
        health,
        mark: None,
    }))
}

impl View {
    /// Whether every branch is there, or the pool is to be what the others hold.
    ///
    /// # Errors
    /// EIO: a missing branch may have a say in what is asked for.
    pub(crate) fn complete(&self) -> Result<()> {
        match self.missing.first() {
            Some(missing) if self.settings.on_missing != OnMissing::Degrade => {
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
        match self.settings.on_missing {
            OnMissing::ReadOnly if !self.missing.is_empty() => Err(Errno::ROFS.into()),
            _ => Ok(()),
        }
    }

    /// What it means that something was not found: no more than that, if a branch is missing.
    fn absent(&self, error: Error) -> Error {
        match error.errno {
            Errno::NOENT | Errno::STALE => self.complete().err().unwrap_or(error),
            _ => error,
        }
    }
}

impl Pool {
    /// A directory's descriptors, without asking slow branches if it is known on another: see
    /// [`crate::state::node::DirSet::skipped`].
    ///
    /// # Errors
    /// As for [`Pool::dir_set_of`].
    pub(crate) fn dir_set_quickly(&self, node: &Arc<Node>) -> Result<Arc<DirSet>> {
        match self.dir_set_of(node, Freshness::Trusted, SlowBranches::PassOver) {
            Err(_) if self.view().branches.iter().any(|b| b.health().is_slow()) => {
                self.dir_set_of(node, Freshness::Trusted, SlowBranches::Ask)
            }
            other => other,
        }
    }

    /// Carries a request out that finds things by name or node. A name that may be on a missing
    /// branch is not absent: programs delete what they know of files that are.
    pub(crate) fn finding<T>(
        &self,
        cx: &Context<'_>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        self.unless_lacking(cx, || {
            let outcome = self.steady(&mut attempt);
            outcome.map_err(|error| self.view().absent(error))
        })
    }

    /// Carries a request out that changes what it finds.
    pub(crate) fn changing<T>(
        &self,
        cx: &Context<'_>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        self.finding(cx, || {
            self.view().changeable()?;
            attempt()
        })
    }

    /// Carries a request out that makes or removes names, of which a missing branch may have the
    /// same.
    pub(crate) fn changing_names<T>(
        &self,
        cx: &Context<'_>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        self.changing(cx, || {
            self.view().complete()?;
            attempt()
        })
    }

    /// Carries a request out again, with `on-missing=wait`, when the branch is back that it
    /// failed for.
    fn unless_lacking<T>(
        &self,
        cx: &Context<'_>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        // Another thread may put a branch out of use while this one meets it.
        let mut tried_again = false;
        loop {
            let outcome = attempt();
            if let Err(error) = &outcome
                && is_dead_server(error.errno)
                && (self.fence_dead_servers() || !std::mem::replace(&mut tried_again, true))
            {
                continue;
            }
            let Some(generation) = outcome.as_ref().err().and_then(|error| error.retry) else {
                return outcome;
            };
            if self.view().settings.on_missing != OnMissing::Wait {
                return outcome;
            }
            cx.may_block();
            while self.view().generation == generation {
                if cx.interrupted() {
                    return Err(Errno::INTR.into());
                }
                if self.health_monitor.ended.load(Ordering::Acquire) {
                    return outcome;
                }
                thread::sleep(WAIT_STEP);
            }
        }
    }

    /// What a branch's filesystem says of its space; where that may take for ever, no longer than
    /// until the branch counts as slow, and then what it said last.
    ///
    /// # Errors
    /// Those of `fstatvfs(2)`; ETIMEDOUT if it has never answered.
    pub(crate) fn statvfs(&self, view: &View, branch: &Branch) -> sys::Result<StatVfs> {
        let last = || branch.space().last().ok_or(Errno::TIMEDOUT);
        if branch.health().is_slow() {
            return last();
        }
        let stat = if branch.medium().latency.may_hang() {
            let root = branch.root_shared();
            match self.ask(view, move || rustix::fs::fstatvfs(root)) {
                Some(answer) => answer.inspect_err(|errno| branch.health().note(*errno))?,
                None => return last(),
            }
        } else {
            rustix::fs::fstatvfs(branch.root())?
        };
        branch.space().note(&stat);
        Ok(stat)
    }

    /// The attributes of a directory on a branch that is not necessary to know; none if the
    /// branch is slow to tell.
    pub(crate) fn stat_if_quick(
        &self,
        view: &View,
        dir: &DirEntry,
        remembered: &CachedLookups<'_>,
    ) -> Option<sys::Result<Statx>> {
        if dir.branch.health().is_slow() {
            return None;
        }
        if !dir.branch.medium().latency.may_hang() {
            return Some(remembered.attributes(dir));
        }
        let fd = Arc::clone(&dir.fd);
        self.ask(view, move || sys::statx_fd(fd.as_fd()))
    }

    /// The answer of a call to a branch, unless it takes so long that the branch is slow.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        view: &View,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let patience = view.settings.branch_slow_after;
        self.health_monitor.blocking_pool.ask(patience, call)
    }

    /// Fences a branch. False if something else is being changed: to be tried again.
    pub(crate) fn fence(&self, id: BranchId, state: State, reason: &str) -> bool {
        let Some(changes) = self.changes.try_lock_for(PATIENCE) else {
            return false;
        };
        let old = Arc::clone(&self.view());
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
        if let Err(error) = self.replace_branches(&changes, &old, branches, missing) {
            tracing::debug!(%error, "a branch is not fenced yet");
            return false;
        }
        branch.health().change(state, reason);
        self.unwatch(id);
        self.volumes.close(id);
        let _ = self.recall(Reason::branch_vanished());
        true
    }

    /// Takes a branch back, if its path leads to what it was.
    ///
    /// # Errors
    /// Why it cannot be taken back.
    pub(crate) fn take_back(&self, missing: &Missing) -> Result<(), (State, String)> {
        let branch = Branch::open_as(missing.id, &missing.spec, &missing.health)
            .map_err(|errno| (State::Missing, why_gone(errno)))?;
        if let Some(was) = &missing.mark
            && !was.same(branch.mark())
        {
            let (state, reason) = was.difference(branch.mark());
            let owner = self.owner_of(branch.mark(), missing.id);
            let owner = owner.map(|path| format!(": that of {}", path.display()));
            return Err((state, reason + &owner.unwrap_or_default()));
        }
        let marker = self.view().settings.branch_marker.clone();
        if let Some(marker) = marker
            && !is_marked(branch.root(), &marker)
        {
            return Err((State::Missing, format!("it has no {marker}")));
        }
        if let Some(was) = &missing.mark {
            self.volumes
                .renumber(missing.id, was.device, branch.mark().device);
        }
        let branch = Arc::new(branch);
        let Some(changes) = self.changes.try_lock_for(PATIENCE) else {
            return Err(missing.health.state());
        };
        let old = Arc::clone(&self.view());
        if old.missing.iter().all(|other| other.id != missing.id) {
            return Ok(());
        }
        let mut pool: Vec<Arc<Branch>> = old.branches.clone();
        pool.push(Arc::clone(&branch));
        let order = |branch: &Arc<Branch>| {
            let specs = &old.settings.branches;
            specs.iter().position(|spec| spec.path == branch.path)
        };
        pool.sort_by_key(order);
        let left = old.missing.iter().filter(|other| other.id != missing.id);
        let left = left.cloned().collect();
        self.mend_joining(&branch, &pool);
        self.welcome(std::slice::from_ref(&branch));
        self.watch_branches(&pool);
        if let Err(error) = self.replace_branches(&changes, &old, pool, left) {
            self.unwatch(missing.id);
            self.volumes.close(missing.id);
            return Err((State::Missing, error.to_string()));
        }
        drop(changes);
        missing.health.change(State::Ok, "");
        let _ = self.recall(Reason::branch_returned(missing.id));
        Ok(())
    }

    /// Where the branch belongs whose root this is, if it is another than `id`.
    fn owner_of(&self, root: &Mark, id: BranchId) -> Option<PathBuf> {
        let view = self.view();
        let here = view.branches.iter().map(|b| (b.id, &b.path, b.mark()));
        let gone = view
            .missing
            .iter()
            .filter_map(|m| Some((m.id, &m.spec.path, m.mark.as_ref()?)));
        here.chain(gone)
            .find(|(other, _, mark)| *other != id && mark.same(root))
            .map(|(_, path, _)| path.clone())
    }

    /// Puts a view with other branches in force; who holds the lock of changes may.
    fn replace_branches(
        &self,
        _changes: &Changes,
        old: &View,
        branches: Vec<Arc<Branch>>,
        missing: Vec<Arc<Missing>>,
    ) -> Result<(), PoolError> {
        let generation = old.generation + 1;
        let root = self.next_root(old, &branches, generation)?;
        self.put_in_force(View {
            generation,
            branches_since: generation,
            root,
            settings: old.settings.clone(),
            branches,
            missing,
        });
        Ok(())
    }
}
