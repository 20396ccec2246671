//! Copies of a directory that are closed to whoever has it open, or is looking into it, since before they came.
//! The kernel has judged by the copies that there were.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::base::error::{Error, Result};
use crate::base::rights::{AllRights, Rights};
use crate::base::sys;
use crate::directory::{Directories, forget};
use crate::ops::hidden_copies::is_granted;
use crate::ops::privilege;
use crate::state::State;
use crate::state::node::{DirSet, Node};
use strandfs_fuse::{Context, Entry, NodeId};

const READ: u32 = 0o4;
const SEARCH: u32 = 0o1;
/// After this long the kernel has asked for the permissions anew, and judged by them.
const JUDGED_ANEW_MS: u64 = 1000;

/// Whether the copies of a directory let different people list it: then no listing of it is for all.
pub(crate) fn are_listed_by_others(set: &DirSet) -> bool {
    set.entries.len() > 1 && differ_in(READ, &set.last_rights())
}

/// Whether one of the copies grants this to others than another does.
fn differ_in(wanted: u32, copies: &AllRights) -> bool {
    let to_all = |copy: &Rights| {
        let (owner, group, others) = copy.classes();
        owner & group & others & wanted != 0
    };
    let all = wanted << 6 | wanted << 3 | wanted;
    let to_whom = |copy: &Rights| (copy.uid, copy.gid, copy.mode & all);
    let alike = copies.windows(2).all(|two| match two {
        [one, another] => to_whom(one) == to_whom(another),
        _ => true,
    });
    !alike && !copies.iter().all(to_all)
}

/// Whether the caller may list every copy: a listing with names missing would be taken for the whole.
///
/// # Errors
/// EACCES.
pub(crate) fn check_lister(pool: &State, cx: &Context<'_>, set: &DirSet) -> Result<()> {
    check(pool, cx, set, READ)
}

/// Takes back what was looked up in a directory where the caller may not: by the copies that have come during
/// the look-up or a moment before. Costs a load where none has.
///
/// # Errors
/// EACCES.
pub(crate) fn refuse_if_closed(
    pool: &Directories,
    cx: &Context<'_>,
    parent: NodeId,
    found: &Entry,
) -> Result<()> {
    check_looker(pool, cx, || Some(parent)).inspect_err(|_| forget::take_back(pool, found))
}

/// The same of a file that is opened: somebody else may have looked it up for the kernel.
///
/// # Errors
/// EACCES.
pub(crate) fn check_opener(pool: &Directories, cx: &Context<'_>, node: &Node) -> Result<()> {
    check_looker(pool, cx, || Some(node.name()?.parent))
}

fn check_looker(
    pool: &Directories,
    cx: &Context<'_>,
    parent: impl FnOnce() -> Option<NodeId>,
) -> Result<()> {
    let is_recent =
        |at_ms: u64| at_ms != 0 && sys::mono_coarse_ms().saturating_sub(at_ms) < JUDGED_ANEW_MS;
    if !is_recent(pool.narrowed_ms()) {
        return Ok(());
    }
    let set = parent().and_then(|parent| current_set(pool, parent));
    match set.filter(|set| is_recent(set.narrowed_ms)) {
        Some(set) if differ_in(SEARCH, &set.last_rights()) => check(pool, cx, &set, SEARCH),
        _ => Ok(()),
    }
}

/// The copies of a directory as they are known, of which some may have just come.
pub(crate) fn current_set(pool: &Directories, id: NodeId) -> Option<Arc<DirSet>> {
    match id {
        NodeId::ROOT => Some(Arc::clone(&pool.view().root)),
        _ => pool.nodes.get(id)?.place().dirs.clone(),
    }
}

fn check(pool: &State, cx: &Context<'_>, set: &DirSet, wanted: u32) -> Result<()> {
    for entry in &set.entries {
        let Some(rights) = entry.memory.rights() else {
            continue;
        };
        if !is_granted(cx, entry.fd.as_fd(), &rights, wanted) && privilege::is_known(pool, cx) {
            return Err(Error::at(&entry.branch, Errno::ACCESS));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_differ_where_one_lets_in_others_and_not_all_let_in_all() {
        let rights = |uid, mode| Rights { uid, gid: 0, mode };
        for (copies, differ) in [
            ([rights(0, 0o755), rights(0, 0o755)], false),
            ([rights(0, 0o700), rights(0, 0o700)], false),
            ([rights(0, 0o755), rights(7, 0o775)], false),
            ([rights(0, 0o755), rights(0, 0o711)], true),
            ([rights(7, 0o700), rights(0, 0o755)], true),
            ([rights(7, 0o750), rights(8, 0o750)], true),
        ] {
            let copies = AllRights::from_slice(&copies);
            assert_eq!(differ_in(READ, &copies), differ, "{copies:?}");
        }
    }
}
