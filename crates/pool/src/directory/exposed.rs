//! Which branches may have a new name, as far as the directories there expose it to others than the one that
//! users see does.

use std::os::fd::AsFd;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use strandfs_fuse::NodeId;

use crate::base::access_list;
use crate::base::exposure::{Exposure, Exposures, Tolerance};
use crate::base::rights::{AllRights, Rights, strictest};
use crate::base::sys;
use crate::directory::Directories;
use crate::directory::set::{self, Freshness, SlowBranches};
use crate::state::node::{DirEntry, DirSet, Node};
use crate::state::paths::{self, DEPTH_MAX};
use crate::state::view::View;

/// Branches that may not have a new name, by their places in the view.
pub(crate) type Barred = SmallVec<[usize; 4]>;

/// Whether owners and modes of directories tell branches apart: with `uid=` all are shown as one user's, and
/// are meant to be.
fn may_matter(view: &View) -> bool {
    view.branches.len() > 1 && view.settings.presentation.uid.is_none()
}

/// What comes of `attempt` with the branches that may not have what `maker` makes in a directory. More are
/// let have it only where it is not `done` with fewer, and no copy of the directory is fit: no more exposure
/// is borne for the sake of space.
pub(crate) fn with_least<T>(
    pool: &Directories,
    view: &View,
    (node, set): (&Arc<Node>, &DirSet),
    maker: u32,
    attempt: impl Fn(&Barred) -> T,
    is_done: impl Fn(&T) -> bool,
) -> T {
    if !may_matter(view) {
        return attempt(&Barred::new());
    }
    let exposures = exposures(pool, view, node, set);
    for tolerance in [Tolerance::Nothing, Tolerance::Readers] {
        let barred = barred(view, set, &exposures, maker, tolerance);
        let outcome = attempt(&barred);
        if is_done(&outcome) || has_fit_copy(view, set, &barred) {
            return outcome;
        }
    }
    attempt(&barred(view, set, &exposures, maker, Tolerance::FirstCopy))
}

/// The branches that may not have what `maker` makes in the directory of `set`.
fn barred(
    view: &View,
    set: &DirSet,
    exposures: &Exposures,
    maker: u32,
    tolerance: Tolerance,
) -> Barred {
    let bears_all = |place: usize| {
        let first = set.entries.first().map(|entry| entry.branch.id);
        tolerance == Tolerance::FirstCopy
            && first.is_some_and(|first| view.position(first) == place)
    };
    let all = exposures.iter().enumerate();
    all.filter(|(place, exposure)| !exposure.is_borne(maker, tolerance) && !bears_all(*place))
        .map(|(place, _)| place)
        .collect()
}

/// Whether a copy of the directory will do.
fn has_fit_copy(view: &View, set: &DirSet, barred: &Barred) -> bool {
    let is_fit = |entry: &DirEntry| !barred.contains(&view.position(entry.branch.id));
    set.entries.iter().any(is_fit)
}

/// To whom a new name in the directory of `node` would be exposed. Kept with each directory's descriptors
/// for a moment; else it takes no system call but where a group may do more than others on several branches,
/// whose access lists are read.
fn exposures(pool: &Directories, view: &View, node: &Arc<Node>, set: &DirSet) -> Exposures {
    let now_ms = sys::mono_coarse_ms();
    if let Some(known) = set.judged.get(now_ms, view.generation) {
        return known;
    }
    let mut above: Vec<Arc<DirSet>> = Vec::new();
    let mut at = Arc::clone(node);
    let mut known = None;
    while at.id != NodeId::ROOT && above.len() < DEPTH_MAX && known.is_none() {
        let Some(parent) = paths::parent_of(pool, &at) else {
            break;
        };
        let slow = SlowBranches::PassOver;
        let Ok(upper) = set::dir_set_of(pool, &parent, Freshness::Trusted, slow) else {
            break;
        };
        known = upper.judged.get(now_ms, view.generation);
        if known.is_none() {
            above.push(upper);
        }
        at = parent;
    }
    let none = || smallvec![Exposure::default(); view.branches.len()];
    let mut exposures = known.unwrap_or_else(none);
    for set in above.iter().rev().map(|set| &**set).chain([set]) {
        add_those_of(view, set, &mut exposures);
        set.judged.note(now_ms, view.generation, &exposures);
    }
    exposures
}

/// Adds what the copies of one directory let others do.
fn add_those_of(view: &View, set: &DirSet, exposures: &mut Exposures) {
    if set.entries.len() < 2 {
        return;
    }
    let copies: AllRights = set.entries.iter().map(rights).collect();
    let Some(shown) = strictest(&copies) else {
        return;
    };
    let lists = lists_that_differ(set, &copies);
    let of = |index: usize| {
        let copy = copies.get(index).unwrap_or(&shown);
        Exposure::of(copy, &shown, lists.get(index).copied().unwrap_or(false))
    };
    // Where it lacks it would be made like the first.
    let made = of(0);
    for (place, exposure) in exposures.iter_mut().enumerate() {
        let branch = view.branches.get(place).map(|branch| branch.id);
        let copy = (set.entries.iter()).position(|entry| Some(entry.branch.id) == branch);
        *exposure = exposure.with(copy.map_or(made, of));
    }
}

/// What a copy lets whom do, as it was last seen. What cannot be seen lets all do all.
fn rights(entry: &DirEntry) -> Rights {
    let seen = || {
        sys::statx_fd(entry.fd.as_fd())
            .ok()
            .map(|stat| Rights::of(&stat))
    };
    entry.memory.rights().or_else(seen).unwrap_or(Rights {
        uid: u32::MAX,
        gid: u32::MAX,
        mode: 0o777,
    })
}

/// Which copies have an access list that others have not. None is looked for where a list could grant nobody
/// more than the mode says.
fn lists_that_differ(set: &DirSet, copies: &AllRights) -> SmallVec<[bool; 4]> {
    let may_matter = |copy: &Rights| {
        let (_, group, others) = copy.classes();
        group & !others != 0
    };
    if !copies.iter().any(may_matter) {
        return SmallVec::new();
    }
    let lists: SmallVec<[_; 4]> = (set.entries.iter())
        .map(|entry| access_list::of(entry.fd.as_fd()))
        .collect();
    let first = lists.first();
    let is_one = lists.iter().all(|list| list.is_ok() && Some(list) == first);
    let has_own = |list: &sys::Result<_>| !is_one && !matches!(list, Ok(None));
    lists.iter().map(has_own).collect()
}
