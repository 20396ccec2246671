//! Which branches may have a new name, as far as the directories there expose it to others than the one that
//! users see does.

use std::os::fd::AsFd;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use strandfs_fuse::NodeId;

use crate::base::access_list;
use crate::base::error::{Error, Result};
use crate::base::exposure::{Exposure, Exposures, Tolerance};
use crate::base::rights::{AllRights, Rights, strictest};
use crate::base::sys;
use crate::directory::Directories;
use crate::directory::choose::Picked;
use crate::directory::set::{self, Freshness, SlowBranches};
use crate::state::judged::Moment;
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
    let barred_by =
        |found: &Found, tolerance| barred(view, set, &found.exposures, maker, tolerance);
    let mut found = exposures(pool, view, (node, set), SlowBranches::PassOver);
    let mut barred = barred_by(&found, Tolerance::Nothing);
    let mut outcome = attempt(&barred);
    if !is_done(&outcome) && !found.is_whole {
        // One that was passed over may be fit, and the only one that is.
        found = exposures(pool, view, (node, set), SlowBranches::Ask);
        barred = barred_by(&found, Tolerance::Nothing);
        outcome = attempt(&barred);
    }
    for tolerance in [Tolerance::Readers, Tolerance::FirstCopy] {
        if is_done(&outcome) || has_fit_copy(view, set, &barred) {
            break;
        }
        barred = barred_by(&found, tolerance);
        outcome = attempt(&barred);
    }
    outcome
}

/// Nothing can be made in a directory (EROFS): says why, if there is a branch that would have it but for whom
/// the directory there lets in. Not oftener than once a minute.
#[cold]
pub(crate) fn tell_refusal(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    pick_of_all: impl FnOnce() -> Result<Picked>,
) {
    if !may_matter(view) {
        return;
    }
    let Ok(picked) = pick_of_all() else {
        return;
    };
    if let Some(branch) = picked.first()
        && pool.refusal_told.again(sys::mono_coarse_ms())
    {
        let directory = paths::shown_path(pool, Some(node), None);
        let branch = branch.path.display();
        tracing::warn!(
            directory,
            %branch,
            advice = "give the directory there, and those above it, the owner and mode of the copies that are RO or NC (chown and chmod through the pool), or make one of these RW: see strandfs explain",
            "nothing can be made in a directory: where it may be it has another owner or lets others in"
        );
    }
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

/// What was found out about exposure.
struct Found {
    exposures: Exposures,
    /// Every branch was asked for every directory. What is not known counts as exposed.
    is_whole: bool,
}

/// To whom a new name in the directory of `node` would be exposed. Kept with each directory's descriptors
/// for a moment; else it takes a `statx` for each copy, and where a group may do more than others on several
/// branches a look at their access lists.
fn exposures(
    pool: &Directories,
    view: &View,
    (node, set): (&Arc<Node>, &DirSet),
    slow: SlowBranches,
) -> Found {
    let now = Moment {
        now_ms: sys::mono_coarse_ms(),
        generation: view.generation,
        structure: pool.coherence.changes.structure(),
    };
    let whole = |exposures| Found {
        exposures,
        is_whole: true,
    };
    if let Some(known) = set.judged.get(now) {
        return whole(known);
    }
    let mut above: Vec<Arc<DirSet>> = Vec::new();
    let mut at = Arc::clone(node);
    let all = |exposure| smallvec![exposure; view.branches.len()];
    let mut found = loop {
        if at.id == NodeId::ROOT {
            break whole(all(Exposure::default()));
        }
        let parent = paths::parent_of(pool, &at).filter(|_| above.len() < DEPTH_MAX);
        let upper = parent.map(|parent| {
            let upper = set::dir_set_of(pool, &parent, Freshness::Trusted, slow)?;
            Ok::<_, Error>((parent, upper))
        });
        let Some(Ok((parent, upper))) = upper else {
            break Found {
                exposures: all(Exposure::UNKNOWN),
                is_whole: false,
            };
        };
        if let Some(known) = upper.judged.get(now) {
            break whole(known);
        }
        above.push(upper);
        at = parent;
    };
    for set in above.iter().rev().map(|set| &**set).chain([set]) {
        found.is_whole &= add_those_of(view, set, slow, &mut found.exposures);
        if found.is_whole {
            set.judged.note(now, &found.exposures);
        }
    }
    found
}

/// Adds what the copies of one directory let others do; whether all branches had a say.
fn add_those_of(view: &View, set: &DirSet, slow: SlowBranches, exposures: &mut Exposures) -> bool {
    // A copy on one of the others may be anybody's.
    let is_whole = !set.skipped && set.probe_error.is_none();
    if set.entries.len() < 2 && is_whole {
        return true;
    }
    let asked = |entry: &DirEntry| slow == SlowBranches::Ask || !entry.branch.health().is_slow();
    let copies: AllRights = set
        .entries
        .iter()
        .map(|entry| rights(entry, asked(entry)))
        .collect();
    let Some(shown) = strictest(&copies) else {
        exposures.fill(Exposure::UNKNOWN);
        return false;
    };
    let lists = lists_that_differ(set, &copies, asked);
    let of = |index: usize| {
        let copy = copies.get(index).unwrap_or(&shown);
        Exposure::of(copy, &shown, lists.get(index).copied().unwrap_or(false))
    };
    // Where it lacks it would be made like the first.
    let made = match is_whole {
        true => of(0),
        false => Exposure::UNKNOWN,
    };
    for (place, exposure) in exposures.iter_mut().enumerate() {
        let branch = view.branches.get(place).map(|branch| branch.id);
        let copy = (set.entries.iter()).position(|entry| Some(entry.branch.id) == branch);
        *exposure = exposure.with(copy.map_or(made, of));
    }
    let is_known =
        |entry: &DirEntry| asked(entry) || lists.is_empty() && entry.memory.rights().is_some();
    is_whole && set.entries.iter().all(is_known)
}

/// What a copy lets whom do: of a branch that may take its time, as it was last seen. What cannot be seen
/// lets all do all.
fn rights(entry: &DirEntry, is_asked: bool) -> Rights {
    let seen = || {
        let stat = is_asked.then(|| sys::statx_fd(entry.fd.as_fd()).ok())??;
        Some(Rights::of(&stat))
    };
    let last_seen = || entry.memory.rights();
    let rights = match entry.branch.medium().latency.may_hang() {
        true => last_seen().or_else(seen),
        // Owner or mode may have changed since, on the branch too.
        false => seen().or_else(last_seen),
    };
    rights.unwrap_or(Rights {
        uid: u32::MAX,
        gid: u32::MAX,
        mode: 0o777,
    })
}

/// Which copies have an access list that others have not, or may have one as they were not `asked`. None is
/// looked for where a list could grant nobody more than the mode says.
fn lists_that_differ(
    set: &DirSet,
    copies: &AllRights,
    asked: impl Fn(&DirEntry) -> bool,
) -> SmallVec<[bool; 4]> {
    let may_matter = |copy: &Rights| {
        let (_, group, others) = copy.classes();
        group & !others != 0
    };
    if !copies.iter().any(may_matter) {
        return SmallVec::new();
    }
    let list = |entry: &DirEntry| asked(entry).then(|| access_list::of(entry.fd.as_fd()));
    let lists: SmallVec<[_; 4]> = set.entries.iter().map(list).collect();
    let mut known = lists.iter().flatten();
    let first = known.next();
    let is_one =
        first.is_none_or(Result::is_ok) && known.all(|list| list.is_ok() && Some(list) == first);
    let has_own = |list: &Option<_>| match list {
        None => true,
        Some(list) => !is_one && !matches!(list, Ok(None)),
    };
    lists.iter().map(has_own).collect()
}

#[cfg(test)]
mod tests;
