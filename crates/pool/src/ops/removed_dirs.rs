//! Directories that lose their last name while somebody has them open or stands in them.
//!
//! The kernel does not tell who does. Their descriptors, which the server may not have needed so far,
//! are opened before the name goes, and held until the kernel forgets the node.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::Statx;
use smallvec::SmallVec;
use strandfs_fuse::{Context, FileKind};

use crate::base::branch::Branch;
use crate::base::open::open_dir;
use crate::base::sys;
use crate::coherence::Coherent;
use crate::directory::{Directories, set};
use crate::ops::account;
use crate::ops::remove::PresentedAs;
use crate::state::identity::{Presented, kind_of};
use crate::state::node::{DirEntry, DirSet, Node};
use crate::state::view::View;

/// Nodes with the descriptors that are to be theirs.
pub(super) type Opened = SmallVec<[(Arc<Node>, DirSet); 1]>;

/// Opens the directory that a name leads to, as `found`, for those of its nodes that have no
/// descriptors. What cannot be opened is done without.
pub(super) fn open_before_removal(
    pool: &Coherent,
    view: &View,
    set: &DirSet,
    name: &OsStr,
    found: &[(Arc<Branch>, Statx)],
    nodes: &PresentedAs,
) -> Opened {
    let structure = pool.coherence.changes.structure();
    let mut opened = Opened::new();
    for node in nodes.iter().filter(|node| node.is_dir()) {
        let copies = {
            let place = node.place();
            if place.dirs.is_some() {
                continue;
            }
            place.copies.clone()
        };
        let entries: SmallVec<[DirEntry; 2]> = found
            .iter()
            .filter(|(_, stat)| kind_of(stat) == FileKind::Directory)
            .filter_map(|(branch, stat)| {
                let own = (branch.id, Presented::Own);
                let identity = pool.volumes.recognise(&copies, own, stat)?;
                let fd = open_dir(set.on(branch.id)?.fd.as_fd(), name).ok()?;
                Some(set::entry_known_as(pool, branch, fd, stat, identity))
            })
            .collect();
        if !entries.is_empty() {
            let now_ms = sys::mono_coarse_ms();
            let held = DirSet::new(entries, now_ms, view.generation, structure);
            opened.push((Arc::clone(node), held));
        }
    }
    opened
}

/// Gives nodes whose name is gone their descriptors. These cannot be opened anew, and wait in no
/// queue to make room for others, as long as the caller has a share left.
pub(super) fn hold_removed(pool: &Directories, cx: &Context<'_>, opened: Opened) {
    for (node, mut held) in opened {
        let count = held.entries.len();
        let Some(share) = pool.dir_fds.take_for_good(|| account::user(cx), count) else {
            let _ = set::install(pool, &node, held, None);
            continue;
        };
        held.kept_for = Some(Arc::new(share));
        let mut place = node.place_mut();
        // Under the lock that the sweep after a change of branches takes.
        let replaced = match held.generation < pool.view().branches_since {
            true => Some(count),
            false => place
                .dirs
                .replace(Arc::new(held))
                .map(|set| set.entries.len()),
        };
        drop(place);
        pool.dir_fds.forget(replaced.unwrap_or(0));
        pool.dir_fds.make_room(pool, node.id);
    }
}
