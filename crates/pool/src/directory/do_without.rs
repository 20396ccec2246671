//! What a look-up can do without while a branch is slow.

use std::ffi::OsStr;
use std::sync::Arc;

use strandfs_fuse::FileKind;
use strandfs_options::{Function, Policy};

use crate::base::error::Result;
use crate::base::policy::same_search;
use crate::base::rights::AllRights;
use crate::directory::Directories;
use crate::directory::copy::Copies;
use crate::directory::lookup::{self, Presentations};
use crate::directory::set::{self, Freshness, SlowBranches};
use crate::state::State;
use crate::state::identity::kind_of;
use crate::state::node::{DirEntry, DirSet, Node};
use crate::state::view::View;

/// A directory's descriptors, without asking slow branches if it is known on another: see
/// [`crate::state::node::DirSet::skipped`].
///
/// # Errors
/// As for [`dir_set_of`](crate::directory::set::dir_set_of).
pub(crate) fn dir_set_quickly(pool: &Directories, node: &Arc<Node>) -> Result<Arc<DirSet>> {
    match set::dir_set_of(pool, node, Freshness::Trusted, SlowBranches::PassOver) {
        Err(_) if pool.view().branches.iter().any(|b| b.health().is_slow()) => {
            set::dir_set_of(pool, node, Freshness::Trusted, SlowBranches::Ask)
        }
        other => other,
    }
}

/// Whether a name leads to a directory as far as is known without the slow branches; they may
/// have what else it leads to.
pub(crate) fn leads_to_dir(
    pool: &Directories,
    view: &View,
    set: &DirSet,
    name: &OsStr,
    presentations: Presentations,
) -> Result<bool> {
    let copies = lookup::find_copies(pool, view, set, name, presentations)?;
    let first = copies.first();
    Ok(first.is_some_and(|copy| kind_of(&copy.stat) == FileKind::Directory))
}

/// Whether slow branches need not be asked for a name: for a directory what was known of them
/// will do; a file must be known not to have another copy there that counts more.
pub(crate) fn can_do_without(
    pool: &State,
    view: &View,
    slow: &[&DirEntry],
    name: &OsStr,
    copies: &Copies<'_>,
) -> bool {
    if slow.is_empty() {
        return true;
    }
    let Some(first) = copies.first() else {
        return false;
    };
    if kind_of(&first.stat) == FileKind::Directory {
        return true;
    }
    if !same_search(view.policy(Function::Getattr), Policy::Ff) {
        return false;
    }
    let found_at = view.position(first.dir.branch.id);
    let ahead = |dir: &&DirEntry| view.position(dir.branch.id) < found_at;
    if !slow.iter().any(ahead) {
        return true;
    }
    // It counted when it was found last.
    let known = lookup::known(pool, first.dir, first.own_stat(), name, first.presented());
    known.is_ok_and(|node| {
        node.is_some_and(|node| node.place().names.iter().any(|n| *n.name == *name))
    })
}

/// Whom the copies of a directory let do what that were not looked at now: those on slow branches.
/// What those let nobody do must not be shown as if somebody could.
pub(super) fn rights_elsewhere(node: &Node, copies: &Copies<'_>) -> AllRights {
    let place = node.place();
    let known = place.dirs.as_ref();
    let unseen = known
        .into_iter()
        .flat_map(|set| &set.entries)
        .filter(|entry| {
            entry.branch.health().is_slow()
                && copies
                    .iter()
                    .all(|copy| copy.dir.branch.id != entry.branch.id)
        });
    unseen.filter_map(|entry| entry.memory.rights()).collect()
}
