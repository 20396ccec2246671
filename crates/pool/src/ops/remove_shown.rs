//! RMDIR of what is shown as a directory and is a symlink on a branch.

use std::ffi::OsStr;
use std::sync::Arc;
use strandfs_options::Function;

use rustix::fs::Statx;
use smallvec::SmallVec;
use strandfs_fuse::FileKind;

use crate::base::branch::Branch;
use crate::base::error::Result;
use crate::coherence::Coherent;
use crate::directory::follow;
use crate::ops::remove::{self, Doomed, forget_name};
use crate::state::identity::kind_of;
use crate::state::node::{DirSet, Node};
use crate::state::view::View;

/// RMDIR of a directory that is on some branches a symlink to one: the links go, what they
/// lead to stays; real directories beside them must be empty.
pub(crate) fn remove_shown_dir(
    pool: &Coherent,
    view: &View,
    parent: &Arc<Node>,
    set: &DirSet,
    name: &OsStr,
    found: &[(Arc<Branch>, Statx)],
) -> Result<()> {
    let links: SmallVec<[(Arc<Branch>, Statx); 2]> = found
        .iter()
        .filter(|(branch, stat)| follow::is_followed_dir(pool, view, set, name, branch, stat))
        .cloned()
        .collect();
    let nodes = remove::nodes_of_first(pool, set, name, found);
    let is_dir = |(_, stat): &(Arc<Branch>, Statx)| kind_of(stat) == FileKind::Directory;
    let directories = match found.iter().any(is_dir) {
        true => remove::remove_dirs(pool, view, set, name, found),
        false => Ok(()),
    };
    let rule = view.policy(Function::Rmdir);
    let removed = directories
        .and_then(|()| remove::remove_from(pool, view, rule, set, name, &links, Doomed::Others));
    if removed.is_ok() {
        forget_name(&nodes, parent, name);
    }
    pool.coherence.changes.structure_changed();
    removed
}
