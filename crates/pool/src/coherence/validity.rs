//! How long the kernel may keep an answer.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use strandfs_fuse::FileKind;
use strandfs_options::{FollowSymlinks, Function, Policy};

use crate::base::branch::BranchId;
use crate::base::policy::same_search;
use crate::coherence::changes::Key;
use crate::coherence::watched::volume_watched;
use crate::coherence::{Coherent, Epoch};
use crate::state::attr::has_set_id;
use crate::state::identity::Identity;
use crate::state::node::{DirSet, Node};
use crate::state::view::View;

/// Where nothing is watched.
const UNWATCHED_VALID: Duration = Duration::from_secs(1);
/// Where changes are reported. Long enough that renewing costs nothing, short enough that what
/// no report tells of (see docs/coherence.md) does not stay for a day.
const WATCHED_VALID: Duration = Duration::from_secs(3600);
/// A missing name: the kernel cannot be asked which ones it holds, so that after an overflow of
/// the event queue they can only run out.
const WATCHED_NEGATIVE_VALID: Duration = Duration::from_secs(60);

/// Whether changes on all branches and in these directories are reported.
fn dirs_watched(pool: &Coherent, set: &DirSet) -> bool {
    pool.coherence.watched.all()
        && as_they_are(&pool.view())
        && set
            .entries
            .iter()
            .all(|entry| volume_watched(pool, entry.identity.volume))
}

/// Whether every change of a directory's branches is reported.
pub(crate) fn dirs_reported(pool: &Coherent, view: &View) -> bool {
    pool.coherence.watched.all() && as_they_are(view)
}

/// Whether the directory's branches are known without looking: every change would have been
/// reported.
pub(crate) fn dirs_known(pool: &Coherent, set: &DirSet) -> bool {
    set.structure.load(Ordering::Acquire) == pool.coherence.changes.structure()
        && dirs_watched(pool, set)
}

/// Whether changes of the copies are reported.
pub(crate) fn copies_watched(pool: &Coherent, copies: &[Identity]) -> bool {
    copies.iter().all(|copy| volume_watched(pool, copy.volume))
}

/// Whether reports of changes of the copies lead to the node. A file that moved to another
/// branch has its id from the inode it was before.
fn reports_find(pool: &Coherent, node: &Node, copies: &[Identity]) -> bool {
    let own = |copy: &Identity| copy.derived_id() == Some(node.id);
    (node.is_dir() || copies.iter().all(own)) && copies_watched(pool, copies)
}

/// Whether a name that leads to `copies` leads there until a change is reported: an unwatched
/// branch may only come after the one that counts.
fn name_watched(pool: &Coherent, view: &View, node: &Node, copies: &[Identity]) -> bool {
    if pool.coherence.watched.all() {
        return true;
    }
    let rule = view.policy(Function::Getattr);
    let first = copies.first().map(|copy| view.position(copy.branch));
    !node.is_dir()
        && same_search(rule, Policy::Ff)
        && first.is_some_and(|at| pool.coherence.watched.all_up_to(at))
}

/// Whether the kernel is told of all that matters.
pub(crate) fn vouches(pool: &Coherent, view: &View) -> bool {
    let watched = &pool.coherence.watched;
    let is_told = watched.any() && !watched.unheard.load(Ordering::Acquire);
    is_told && as_they_are(view) && view.missing.is_empty()
}

/// How long to trust a name and attributes that are on no branch.
pub(crate) fn made_up_valid(pool: &Coherent, view: &View) -> Duration {
    if pool.coherence.strict() {
        return Duration::ZERO;
    }
    pool.unless_outdated(view, view.settings.caching.attr.unwrap_or(UNWATCHED_VALID))
}

/// How long the name that was just found may be trusted; `place` where it is known.
pub(crate) fn entry_valid(
    pool: &Coherent,
    view: &View,
    node: &Node,
    place: Option<(&Arc<Node>, &OsStr)>,
    since: Epoch,
) -> Duration {
    let given = view.settings.caching.entry;
    if pool.coherence.strict() {
        return Duration::ZERO;
    }
    if !vouches(pool, view) {
        return pool.unless_outdated(view, given.unwrap_or(UNWATCHED_VALID));
    }
    {
        let copies = &node.place().copies;
        if !name_watched(pool, view, node, copies) || !reports_find(pool, node, copies) {
            return pool.unless_outdated(view, given.unwrap_or(UNWATCHED_VALID));
        }
    }
    if place.is_some_and(|(parent, name)| name_changed_since(pool, parent, name, since)) {
        return Duration::ZERO;
    }
    pool.unless_outdated(view, given.unwrap_or(WATCHED_VALID))
}

/// How long attributes of a node of this mode, learnt after `since`, may be trusted.
pub(crate) fn attr_valid(
    pool: &Coherent,
    view: &View,
    node: &Node,
    mode: u32,
    since: Epoch,
) -> Duration {
    let given = view.settings.caching.attr;
    // A write takes set-id bits away where nobody is told (in passthrough), and the file must
    // not run by a mode it had: whoever runs it asks.
    if node.kind == FileKind::Regular && has_set_id(mode) {
        return Duration::ZERO;
    }
    // What is stored through a mapping changes times, and nobody is told.
    if pool.coherence.strict() || node.mapped_perhaps.load(Ordering::Acquire) {
        return Duration::ZERO;
    }
    if !vouches(pool, view) {
        return pool.unless_outdated(view, given.unwrap_or(UNWATCHED_VALID));
    }
    // Before the check: whoever changes the inode from here on finds the mark and tells the
    // kernel; whoever did before is seen by the check.
    node.kernel_cache.give_attributes();
    let place = node.place();
    if node.is_dir() && !pool.coherence.watched.all() || !reports_find(pool, node, &place.copies) {
        return pool.unless_outdated(view, given.unwrap_or(UNWATCHED_VALID));
    }
    let written = place
        .copies
        .first()
        .is_some_and(|copy| pool.coherence.hot.holds(copy.volume, copy.ino));
    let keys = place.copies.iter().map(|copy| Key::inode(copy.ino));
    if written || pool.coherence.changes.since(since, keys) {
        return Duration::ZERO;
    }
    pool.unless_outdated(view, given.unwrap_or(WATCHED_VALID))
}

/// For how long the kernel may go on taking names for missing that it was told of while all
/// branches were watched, where no option says how long it may.
pub(crate) fn misses_outlast_a_join(pool: &Coherent) -> Duration {
    let given = pool.view().settings.caching.negative_entry;
    match given.is_none() && pool.coherence.watched.any() {
        true => WATCHED_NEGATIVE_VALID,
        false => Duration::ZERO,
    }
}

/// Whether nobody is told of changes of a branch.
pub(crate) fn is_unwatched(pool: &Coherent, branch: BranchId) -> bool {
    pool.coherence.watched.reason(branch).is_some()
}

/// How long it may be trusted that `name` is missing; zero if not at all.
pub(crate) fn negative_valid(
    pool: &Coherent,
    view: &View,
    parent: &Arc<Node>,
    set: &DirSet,
    name: &OsStr,
    since: Epoch,
) -> Duration {
    let given = view.settings.caching.negative_entry;
    // A missing branch may be back at any moment.
    if pool.coherence.strict() || !view.missing.is_empty() {
        return Duration::ZERO;
    }
    if !vouches(pool, view) || !dirs_watched(pool, set) {
        return pool.unless_outdated(view, given.unwrap_or(Duration::ZERO));
    }
    if name_changed_since(pool, parent, name, since) {
        return Duration::ZERO;
    }
    pool.unless_outdated(view, given.unwrap_or(WATCHED_NEGATIVE_VALID))
}

/// Whether a change of the name was reported since.
pub(crate) fn name_changed_since(
    pool: &Coherent,
    parent: &Arc<Node>,
    name: &OsStr,
    since: Epoch,
) -> bool {
    if pool.coherence.changes.now() == since {
        return false;
    }
    let place = parent.place();
    let keys = place.copies.iter().map(|copy| Key::name(copy.ino, name));
    pool.coherence.changes.since(since, keys)
}

/// Whether files are shown as what they are. A link that is followed may lead to where nothing
/// is watched, and a file at rest becomes a link by the mere passing of time.
fn as_they_are(view: &View) -> bool {
    let shown = &view.settings.presentation;
    !shown.symlinkify && shown.follow_symlinks == FollowSymlinks::Never
}
