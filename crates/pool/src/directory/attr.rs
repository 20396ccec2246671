//! The attributes of a node, of all its copies where it is a directory.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::Statx;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{FileAttr, FileKind};

use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::rights::AllRights;
use crate::base::sys;
use crate::coherence::{Coherent, remembered};
use crate::directory::{Directories, deadline, do_without, locate, symlinkify};
use crate::state::State;
use crate::state::attr::{bare_root, file_attr, merge_dirs};
use crate::state::node::{DirSet, Node};
use crate::state::view::View;

/// The attributes of a directory on all the branches of `set`, and those of the first that tells
/// them. Of one of several that is slow to tell, only whom it let do what when it last told.
///
/// # Errors
/// That of a branch, if none tells.
pub(crate) fn dir_attr(pool: &Coherent, set: &DirSet, ino: u64) -> Result<(FileAttr, Statx)> {
    let mut stats: SmallVec<[Statx; 8]> = SmallVec::new();
    let mut unseen = AllRights::new();
    if let [only] = &set.entries[..] {
        let stat = (only.branch).call(Call::Stat, || sys::statx_fd(only.fd.as_fd()))?;
        // A copy of it that is made next is compared with this one.
        only.memory.note_rights(&stat);
        stats.push(stat);
    } else {
        several_stats(pool, set, &mut stats, &mut unseen)?;
    }
    let first = stats.first().copied().ok_or(Errno::IO)?;
    let merged = merge_dirs(&stats, &unseen, ino).ok_or(Errno::IO)?;
    Ok((merged, first))
}

fn several_stats(
    pool: &Coherent,
    set: &DirSet,
    stats: &mut SmallVec<[Statx; 8]>,
    unseen: &mut AllRights,
) -> Result<()> {
    let mut error = Error::from(Errno::IO);
    let mut late = None;
    let view = pool.view();
    let remembered = remembered::remembered(pool, &view, set);
    for entry in &set.entries {
        let told = deadline::stat_if_quick(pool, &view, entry, &remembered);
        if !matches!(told, Some(Ok(_))) {
            unseen.extend(entry.memory.rights());
        }
        match told {
            Some(Ok(stat)) => {
                entry.memory.note_rights(&stat);
                stats.push(stat);
            }
            Some(Err(errno)) => error = Error::at(&entry.branch, errno),
            None => late = late.or(Some(entry)),
        }
    }
    match late {
        Some(entry) if stats.is_empty() => {
            let ask = || sys::statx_fd(entry.fd.as_fd());
            stats.push(entry.branch.call(Call::Stat, ask)?);
        }
        None if stats.is_empty() => return Err(error),
        _ => {}
    }
    Ok(())
}

/// Attributes of any node.
pub(crate) fn attr(pool: &Directories, node: &Arc<Node>) -> Result<FileAttr> {
    if node.is_dir() {
        let set = do_without::dir_set_quickly(pool, node)?;
        if set.entries.is_empty() {
            return Ok(bare_root());
        }
        return Ok(dir_attr(pool, &set, node.ino)?.0);
    }
    shown_attr(pool, &pool.view(), node, &locate::stat_file(pool, node)?)
}

/// What is not written yet has no blocks on the branch, nor what the server of a branch has yet to be sent;
/// and whoever sees none (`tar -S`) takes the file for one hole without asking.
pub(crate) fn count_unwritten(view: &View, node: &Node, attr: &mut FileAttr) {
    if attr.blocks != 0 || attr.size_bytes == 0 || node.kind != FileKind::Regular {
        return;
    }
    let is_served = || {
        let branch = node.primary().and_then(|copy| view.branch(copy.branch));
        branch.is_some_and(|branch| branch.medium().latency.may_hang())
    };
    if node.may_be_unwritten() || is_served() {
        attr.blocks = 1;
    }
}

/// Attributes of a file as it is shown, from those on its branch.
pub(crate) fn shown_attr(
    pool: &State,
    view: &View,
    node: &Arc<Node>,
    stat: &Statx,
) -> Result<FileAttr> {
    let mut attr = file_attr(stat, node.ino);
    count_unwritten(view, node, &mut attr);
    pool.volumes.mounts.restrict(stat, &mut attr);
    if node.is_symlinkified() {
        attr.mode = libc::S_IFLNK | 0o777;
        attr.size_bytes = symlinkify::place_on_branch(pool, view, node)?.len() as u64;
        attr.blocks = 0;
    }
    Ok(attr)
}
