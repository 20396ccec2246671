//! RENAME over several branches: check all, then act, and undo what was done when a branch
//! refuses.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::Statx;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Context, FileKind, NodeId, Rename};
use strandfs_options::{Function, Policy};

use crate::base::branch::Branch;
use crate::base::error::{Error, Result};
use crate::base::sys;
use crate::coherence::Coherent;
use crate::directory::removed_files::{self, OpenedFiles};
use crate::directory::{Directories, choose, clone_path, set};
use crate::ops::change::{self, NameHolders};
use crate::ops::remove::{self, PresentedAs, dir_is_empty, file_among, may_remove};
use crate::ops::removed_dirs::{self, Opened};
use crate::ops::rename_plan::{Ends, Paths, RenamePlan};
use crate::ops::{account, exdev, link};
use crate::state::identity::kind_of;
use crate::state::node::{ChangingNames, DirSet, Node};
use crate::state::view::View;
use crate::state::{State, paths};

const KNOWN_FLAGS: u32 = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;

/// One side of a rename.
pub(crate) struct Side<'a> {
    /// The directory.
    pub parent: ChangingNames,
    /// Where it is.
    pub set: Arc<DirSet>,
    /// The name in it.
    pub name: &'a OsStr,
    /// Where the name is.
    pub found: NameHolders,
}

impl Side<'_> {
    fn has(&self, branch: &Branch) -> Option<&Statx> {
        self.found
            .iter()
            .find(|(found, _)| found.id == branch.id)
            .map(|(_, stat)| stat)
    }
}

/// RENAME and RENAME2.
pub(crate) fn rename(
    pool: &Directories,
    cx: &Context<'_>,
    parent: NodeId,
    args: &Rename<'_>,
) -> Result<()> {
    let exchange = args.flags & libc::RENAME_EXCHANGE != 0;
    let clash = libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
    if args.flags & !KNOWN_FLAGS != 0 || (exchange && args.flags & clash != 0) {
        return Err(Errno::INVAL.into());
    }
    let view = pool.view();
    let moves = pool.moves();
    let mut ends = both_sides(pool, parent, args)?;
    let files = files_among(&ends.2);
    let found = (files.0.as_ref(), files.1.as_ref());
    // Before the directories: a mover of the file may wait for these, to make copies of them.
    let _held = remove::hold_both_found(pool, cx, found, moves)?;
    let dirs = dirs_among(&ends.2);
    // No copy of them comes to be on a further branch, under a name that is not theirs then.
    let _whole: SmallVec<[_; 2]> = dirs.iter().map(|dir| dir.hold_attributes()).collect();
    if !dirs.is_empty() {
        ends = both_sides(pool, parent, args)?;
        if !are_the_same(&files, &files_among(&ends.2)) {
            // Somebody has put other files there behind the pool: the kernel looks again.
            return Err(Error::expected(Errno::STALE));
        }
    }
    let (old, new, nodes) = ends;
    let (_, source) = old.found.first().ok_or(Errno::NOENT)?;
    for side in [&old, &new] {
        remove::check_owners((pool, cx), &view, &side.set, &side.found)?;
    }
    let source_kind = kind_of(source);
    let mut replaced = Opened::new();
    let mut replaced_files = OpenedFiles::new();
    let renamed = if exchange {
        if new.found.is_empty() {
            return Err(Errno::NOENT.into());
        }
        self::exchange(pool, cx, &view, &old, &new)
    } else {
        check_target(source_kind, &new, args.flags)?;
        replaced = removed_dirs::open_before_removal(
            pool, &view, &new.set, new.name, &new.found, &nodes.1,
        );
        replaced_files =
            removed_files::open_before_removal(pool, &new.set, new.name, &new.found, &nodes.1);
        match replace(pool, cx, &view, &old, &new, args.flags) {
            Err(Error {
                errno: Errno::XDEV,
                took_effect: false,
                ..
            }) if args.flags & libc::RENAME_WHITEOUT == 0 => {
                let aside = exdev::rename_exdev(pool, (cx, &view), &old, &new, &nodes.0);
                if source_kind == FileKind::Directory {
                    pool.coherence.changes.structure_changed();
                }
                return aside;
            }
            outcome => outcome,
        }
    };
    match renamed {
        Ok(()) => {
            settle_names(&old, &new, &nodes, exchange);
            removed_dirs::hold_removed(pool, cx, replaced);
            removed_files::hold_removed(pool, replaced_files, || account::user(cx));
        }
        // What could not be undone stays.
        Err(_) if old.found.len() + new.found.len() > 1 => {
            settle_as_found(pool, [&old, &new], &nodes);
        }
        Err(_) => {}
    }
    // After the names: whoever looked for a directory by its old one has to look again.
    if source_kind == FileKind::Directory || exchange {
        pool.coherence.changes.structure_changed();
    }
    renamed
}

/// What both names lead to.
fn both_sides<'a>(
    pool: &Directories,
    parent: NodeId,
    args: &Rename<'a>,
) -> Result<(Side<'a>, Side<'a>, (PresentedAs, PresentedAs))> {
    let old = self::side(pool, parent, args.name)?;
    let new = self::side(pool, args.new_parent, args.new_name)?;
    if old.found.is_empty() {
        return Err(Errno::NOENT.into());
    }
    let nodes = (nodes_of(pool, &old), nodes_of(pool, &new));
    Ok((old, new, nodes))
}

fn side<'a>(pool: &Directories, parent: NodeId, name: &'a OsStr) -> Result<Side<'a>> {
    let parent = pool.node_to_change(parent)?;
    let set = set::dir_set(pool, &parent)?;
    let mut found = change::branches_with(pool, &set, name)?;
    remove::leave_out_hidden_dirs(&mut found);
    Ok(Side {
        parent,
        set,
        name,
        found,
    })
}

fn nodes_of(pool: &Coherent, side: &Side<'_>) -> PresentedAs {
    remove::nodes_named(pool, &side.parent, &side.set, side.name, &side.found)
}

fn replace(
    pool: &Directories,
    cx: &Context<'_>,
    view: &View,
    old: &Side<'_>,
    new: &Side<'_>,
    flags: u32,
) -> Result<()> {
    let moving = picked_sources(pool, view, old)?;
    let stays_behind = |branch: &Branch| !moving.iter().any(|moved| moved.id == branch.id);
    let stale: SmallVec<[&(Arc<Branch>, Statx); 2]> = new
        .found
        .iter()
        .filter(|(branch, _)| stays_behind(branch))
        .collect();
    if stale.iter().any(|(branch, _)| branch.read_only()) {
        return Err(Errno::ROFS.into());
    }
    if moving.len() + stale.len() > 1 {
        // Before a directory is made anywhere for the new name.
        for branch in &moving {
            check_side(old, branch)?;
            check_side(new, branch)?;
        }
        for (branch, _) in &stale {
            check_side(new, branch)?;
        }
    }
    let foremost = |branches: &mut dyn Iterator<Item = &Arc<Branch>>| {
        branches.map(|branch| view.position(branch.id)).min()
    };
    let first_stale = foremost(&mut stale.iter().map(|(branch, _)| branch));
    let first_moving = foremost(&mut moving.iter());
    // Directories unite: one further ahead, which is empty, hides nothing.
    let is_file = old
        .found
        .iter()
        .all(|(_, stat)| kind_of(stat) != FileKind::Directory);
    let hidden = is_file && first_stale.is_some_and(|stale| first_moving > Some(stale));
    let mut plan = RenamePlan::default();
    if moving.len() + stale.len() > 1 {
        plan.set_paths(paths(pool, old, new));
        let kept = old
            .found
            .iter()
            .filter(|(branch, _)| stays_behind(branch) && new.has(branch).is_none());
        kept.for_each(|(branch, _)| plan.keep(branch));
    }
    for branch in &moving {
        let ends = self::ends(pool, (cx, view), old, new, branch)?;
        let target = new.has(branch).map(kind_of);
        if hidden && Some(view.position(branch.id)) == first_moving {
            plan.move_behind(ends, target);
        } else {
            plan.move_name(ends, target);
        }
    }
    if !is_file && plan.outlive_power_cut() || !stale.is_empty() {
        // For disks to sync.
        cx.may_block();
    }
    for (branch, stat) in stale {
        let dir = new.set.on(branch.id).ok_or(Errno::STALE)?.clone();
        plan.drop_stale(dir, new.name, kind_of(stat), view.position(branch.id));
    }
    plan.run(flags)
}

fn paths(pool: &State, old: &Side<'_>, new: &Side<'_>) -> Option<Paths> {
    Some(Paths {
        from: paths::relative_path(pool, &old.parent)?,
        to: paths::relative_path(pool, &new.parent)?,
    })
}

/// After a rename that failed in the middle: tells the nodes of files which of both names the
/// branches still hold them under, and has the kernel ask again for what it knows of them.
fn settle_as_found(pool: &Directories, sides: [&Side<'_>; 2], nodes: &(PresentedAs, PresentedAs)) {
    let files = || nodes.0.iter().chain(&nodes.1).filter(|node| !node.is_dir());
    for side in sides {
        for node in files() {
            match has_name(pool, node, side) {
                Ok(true) => node.add_name(side.parent.id, side.name),
                Ok(false) => node.remove_name(side.parent.id, side.name),
                // It is the branch that does not tell.
                Err(_) => {}
            }
        }
        pool.coherence.doubt_name(side.parent.id, side.name);
    }
    files().for_each(|node| pool.coherence.doubt_inode(node.id));
}

/// Whether a file is under the name on any branch.
fn has_name(pool: &Directories, node: &Arc<Node>, side: &Side<'_>) -> Result<bool> {
    // Directories may have been made for the new name meanwhile.
    let set = set::dir_set_now(pool, &side.parent)?;
    for entry in &set.entries {
        match sys::statx_name(entry.fd.as_fd(), side.name) {
            Ok(stat) => {
                let device = (stat.stx_dev_major, stat.stx_dev_minor);
                let volume = pool.volumes.of_device(entry.branch.id, device);
                if volume.is_some_and(|volume| node.has_copy(volume, stat.stx_ino)) {
                    return Ok(true);
                }
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(false)
}

/// The branches whose copy of the old name moves.
pub(crate) fn picked_sources(
    pool: &State,
    view: &View,
    old: &Side<'_>,
) -> Result<SmallVec<[Arc<Branch>; 2]>> {
    let rule = view.policy(Function::Rename);
    let listed: SmallVec<[(Arc<Branch>, Option<Statx>); 2]> = old
        .found
        .iter()
        .map(|(branch, stat)| (Arc::clone(branch), Some(*stat)))
        .collect();
    let picked = choose::pick_for_action(pool, view, rule, &listed)?;
    if matches!(rule, Policy::All | Policy::EpAll) && picked.len() < listed.len() {
        // The copy that cannot move would show again under the old name.
        return Err(Errno::ROFS.into());
    }
    Ok(picked
        .iter()
        .filter_map(|index| listed.get(*index))
        .map(|(branch, _)| Arc::clone(branch))
        .collect())
}

/// Both directories on one branch; a missing one is made unless paths are preserved.
fn ends<'a>(
    pool: &Directories,
    (cx, view): (&Context<'_>, &View),
    from: &Side<'a>,
    to: &Side<'a>,
    branch: &Arc<Branch>,
) -> Result<Ends<'a>> {
    let from_dir = from.set.on(branch.id).ok_or(Errno::STALE)?.clone();
    let ino = from.has(branch).ok_or(Errno::STALE)?.stx_ino;
    let to_dir = match to.set.on(branch.id) {
        Some(dir) => dir.clone(),
        None if link::preserves_paths(view) => return Err(Errno::XDEV.into()),
        None => clone_path::ensure_dir(pool, &to.parent, branch)?,
    };
    Ok(Ends {
        from: from_dir,
        from_name: from.name,
        to: to_dir,
        to_name: to.name,
        rank: view.position(branch.id),
        ino,
        payer: account::of_changer(cx, branch),
    })
}

/// Swaps two names: on branches that have both, in one step; elsewhere the one that is there
/// moves.
fn exchange(
    pool: &Directories,
    cx: &Context<'_>,
    view: &View,
    old: &Side<'_>,
    new: &Side<'_>,
) -> Result<()> {
    if old
        .found
        .iter()
        .chain(&new.found)
        .any(|(branch, _)| branch.read_only())
    {
        return Err(Errno::ROFS.into());
    }
    for (branch, _) in old.found.iter().chain(&new.found) {
        check_side(old, branch)?;
        check_side(new, branch)?;
    }
    let mut plan = RenamePlan::default();
    let elsewhere = |(branch, _): &&(Arc<Branch>, Statx)| old.has(branch).is_none();
    if old.found.len() > 1 || new.found.iter().any(|one| elsewhere(&one)) {
        plan.set_paths(paths(pool, old, new));
    }
    for (branch, _) in &old.found {
        let ends = self::ends(pool, (cx, view), old, new, branch)?;
        if new.has(branch).is_some() {
            plan.swap(ends)
        } else {
            plan.move_name(ends, None)
        }
    }
    for (branch, _) in new.found.iter().filter(elsewhere) {
        plan.move_name(self::ends(pool, (cx, view), new, old, branch)?, None);
    }
    if plan.outlive_power_cut() {
        cx.may_block();
    }
    plan.run(libc::RENAME_EXCHANGE)
}

/// The files under both names that can move.
type Files = (Option<Arc<Node>>, Option<Arc<Node>>);

fn files_among((old, new): &(PresentedAs, PresentedAs)) -> Files {
    (file_among(old).cloned(), file_among(new).cloned())
}

fn are_the_same(files: &Files, now: &Files) -> bool {
    let id = |file: &Option<Arc<Node>>| file.as_ref().map(|file| file.id);
    (id(&files.0), id(&files.1)) == (id(&now.0), id(&now.1))
}

/// The directories of a rename, each once, in an order that is the same for all.
fn dirs_among((old, new): &(PresentedAs, PresentedAs)) -> SmallVec<[Arc<Node>; 2]> {
    let nodes = old.iter().chain(new);
    let mut dirs: SmallVec<[Arc<Node>; 2]> = nodes.filter(|node| node.is_dir()).cloned().collect();
    dirs.sort_by_key(|node| node.id);
    dirs.dedup_by_key(|node| node.id);
    dirs
}

/// Whether what is under the name on a branch may go away from there; true where nothing is.
fn check_side(side: &Side<'_>, branch: &Branch) -> Result<()> {
    match (side.set.on(branch.id), side.has(branch)) {
        (Some(dir), Some(stat)) => may_remove(dir, stat),
        _ => Ok(()),
    }
}

/// What POSIX says of the target before anything moves, over all branches.
fn check_target(source: FileKind, new: &Side<'_>, flags: u32) -> Result<()> {
    let Some((_, target)) = new.found.first() else {
        return Ok(());
    };
    if flags & libc::RENAME_NOREPLACE != 0 {
        return Err(Errno::EXIST.into());
    }
    let target_is_dir = kind_of(target) == FileKind::Directory;
    match (source == FileKind::Directory, target_is_dir) {
        (true, false) => return Err(Errno::NOTDIR.into()),
        (false, true) => return Err(Errno::ISDIR.into()),
        (false, false) => return Ok(()),
        (true, true) => {}
    }
    for (branch, stat) in &new.found {
        let dir = new.set.on(branch.id).ok_or(Errno::STALE)?;
        if kind_of(stat) == FileKind::Directory && !dir_is_empty(dir, new.name)? {
            return Err(Errno::NOTEMPTY.into());
        }
    }
    Ok(())
}

/// Tells the nodes their new names.
fn settle_names(
    old: &Side<'_>,
    new: &Side<'_>,
    nodes: &(PresentedAs, PresentedAs),
    exchange: bool,
) {
    let (moved, target) = nodes;
    let (old_name, new_name) = ((old.parent.id, old.name), (new.parent.id, new.name));
    for target in target {
        if !exchange {
            target.remove_name(new.parent.id, new.name);
            continue;
        }
        target.move_name(new_name, old_name);
        if target.is_dir() {
            old.parent.kernel_cache.note_dir(old.name);
        }
    }
    for moved in moved {
        moved.move_name(old_name, new_name);
        if moved.is_dir() {
            new.parent.kernel_cache.note_dir(new.name);
        }
    }
}

#[cfg(test)]
mod tests;
