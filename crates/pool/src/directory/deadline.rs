//! Branches that may not answer are asked with a deadline.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{StatVfs, Statx};
use rustix::io::Errno;

use crate::base::branch::Branch;
use crate::base::calls::{self, Call};
use crate::base::sys;
use crate::coherence::remembered::CachedLookups;
use crate::state::State;
use crate::state::node::DirEntry;
use crate::state::view::View;

/// What a branch's filesystem says of its space; where that may take for ever, no longer than
/// until the branch counts as slow, and then what it said last.
///
/// # Errors
/// Those of `fstatvfs(2)`; ETIMEDOUT if it has never answered.
pub(crate) fn statvfs(pool: &State, view: &View, branch: &Branch) -> sys::Result<StatVfs> {
    let last = || branch.space().last().ok_or(Errno::TIMEDOUT);
    if branch.health().is_slow() {
        return last();
    }
    let stat = if branch.medium().latency.may_hang() {
        let root = branch.root_shared();
        let health = Arc::clone(branch.health());
        let space = move || (health.calls()).time(Call::Space, || rustix::fs::fstatvfs(root));
        match ask(pool, view, branch, space) {
            Some(answer) => answer.inspect_err(|errno| branch.health().note(*errno))?,
            None => return last(),
        }
    } else {
        branch.call(Call::Space, || rustix::fs::fstatvfs(branch.root()))?
    };
    branch.space().note(&stat);
    Ok(stat)
}

/// The attributes of a directory on a branch that is not necessary to know; none if the
/// branch is slow to tell.
pub(crate) fn stat_if_quick(
    pool: &State,
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
    let health = Arc::clone(dir.branch.health());
    ask(pool, view, &dir.branch, move || {
        (health.calls()).time(Call::Stat, || sys::statx_fd(fd.as_fd()))
    })
}

/// The answer of a call to a branch, unless it takes so long that the branch is slow.
pub(crate) fn ask<T: Send + 'static>(
    pool: &State,
    view: &View,
    branch: &Branch,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let patience = view.settings.health.branch_slow_after;
    calls::waiting(branch.health().calls(), || {
        pool.blocking_pool.ask(patience, call)
    })
}
