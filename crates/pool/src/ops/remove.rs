//! UNLINK and RMDIR: every copy the policy picks, after all has been checked.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, Mode, OFlags, Statx, StatxAttributes};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Context, FileKind, NodeId};
use strandfs_options::{Function, Policy};

use crate::base::branch::{Branch, BranchId};
use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::metadata::{copy_metadata, is_fixed};
use crate::base::sys;
use crate::coherence::{Coherent, invalidate};
use crate::directory::{Directories, choose, clone_path, follow, removed_files, set};
use crate::ops::change::NameHolders;
use crate::ops::create::unlink_flags;
use crate::ops::hidden_copies::Whose;
use crate::ops::{account, change, hidden_copies, lost_answer, remove_shown, removed_dirs};
use crate::state::State;
use crate::state::identity::{Presented, kind_of};
use crate::state::node::{DirEntry, DirSet, Node, SharedMoveLock};
use crate::state::view::View;

/// The nodes of one inode: as it is and as it is shown.
pub(crate) type PresentedAs = SmallVec<[Arc<Node>; 1]>;

/// UNLINK.
pub(crate) fn unlink(
    pool: &Directories,
    cx: &Context<'_>,
    parent: NodeId,
    name: &OsStr,
) -> Result<()> {
    let moves = pool.moves();
    let parent = pool.node_to_change(parent)?;
    let view = pool.view();
    let set = set::dir_set(pool, &parent)?;
    let rule = view.policy(Function::Unlink);
    if let [only] = &set.entries[..]
        && rule != Policy::ErofsAlways
    {
        if only.branch.read_only() {
            return Err(Errno::ROFS.into());
        }
        let look = || sys::statx_name(only.fd.as_fd(), name);
        let stat = only.branch.call(Call::Lookup, look)?;
        let is_sticky = match view.settings.attributes.kernel_permissions_check {
            true => hidden_copies::may_take_name((pool, cx), only, &stat, Whose::Shown)?,
            false => false,
        };
        let nodes = nodes_of_copy(pool, only, name, &stat);
        let _held = hold_found(pool, cx, file_among(&nodes), moves)?;
        let opened = removed_files::open_only(pool, &only.fd, name, &nodes);
        let unlink = || rustix::fs::unlinkat(&only.fd, name, AtFlags::empty());
        // Another's file that takes the place meanwhile is refused by the branch.
        let unlink = || match is_sticky {
            true => sys::with_powers(stat.stx_uid, sys::all_but_owners_power(), unlink),
            false => unlink(),
        };
        match only.branch.call(Call::Remove, unlink) {
            Err(errno) if errno != Errno::NOENT => lost_answer::of_removing(only, name, errno)?,
            outcome => outcome?,
        }
        removed_files::hold_removed(pool, opened, || account::user(cx));
        forget_name(&nodes, &parent, name);
        return Ok(());
    }
    let mut found = change::branches_with(pool, &set, name)?;
    leave_out_hidden_dirs(&mut found);
    check_owners((pool, cx), &view, &set, &found)?;
    let nodes = nodes_of_first(pool, &set, name, &found);
    let _held = hold_found(pool, cx, file_among(&nodes), moves)?;
    let opened = removed_files::open_before_removal(pool, &set, name, &found, &nodes);
    remove_from(pool, &view, rule, &set, name, &found, Doomed::Others)?;
    removed_files::hold_removed(pool, opened, || account::user(cx));
    forget_name(&nodes, &parent, name);
    Ok(())
}

/// A directory that a file hides is none of its copies.
pub(crate) fn leave_out_hidden_dirs(found: &mut NameHolders) {
    let is_dir = |(_, stat): &(Arc<Branch>, Statx)| kind_of(stat) == FileKind::Directory;
    if found.first().is_some_and(|shown| !is_dir(shown)) {
        found.retain(|holder| !is_dir(holder));
    }
}

/// The kernel has judged by what it remembers of the copy that is shown.
///
/// # Errors
/// EPERM if the sticky bit of its directory keeps one from the caller.
pub(crate) fn check_owners(
    (pool, cx): (&State, &Context<'_>),
    view: &View,
    set: &DirSet,
    found: &[(Arc<Branch>, Statx)],
) -> Result<()> {
    let whose = match found.len() {
        0 | 1 if !view.settings.attributes.kernel_permissions_check => return Ok(()),
        0 | 1 => Whose::Shown,
        _ => Whose::Hidden,
    };
    for (branch, stat) in found {
        let dir = set.on(branch.id).ok_or(Errno::STALE)?;
        hidden_copies::may_take_name((pool, cx), dir, stat, whose)?;
    }
    Ok(())
}

/// Keeps a file that was found by name from moving.
///
/// # Errors
/// ESTALE if a file moved since there had been `moves`: what was found must be looked for
/// again.
pub(crate) fn hold_found<'a>(
    pool: &State,
    cx: &Context<'_>,
    node: Option<&'a Arc<Node>>,
    moves: u64,
) -> Result<Option<SharedMoveLock<'a>>> {
    let held = node.map(|node| node.share_move_lock(cx));
    if pool.moves() == moves {
        Ok(held)
    } else {
        Err(Errno::STALE.into())
    }
}

/// The same of both files of a rename, which may be one.
///
/// # Errors
/// The same.
pub(crate) fn hold_both_found<'a>(
    pool: &State,
    cx: &Context<'_>,
    (moved, target): (Option<&'a Arc<Node>>, Option<&'a Arc<Node>>),
    moves: u64,
) -> Result<SmallVec<[SharedMoveLock<'a>; 2]>> {
    match (moved, target) {
        (Some(moved), Some(target)) if !Arc::ptr_eq(moved, target) => {
            let both = Node::share_both_move_locks(moved, target, cx);
            match pool.moves() == moves {
                true => Ok(SmallVec::from(both)),
                false => Err(Errno::STALE.into()),
            }
        }
        (one, other) => Ok(hold_found(pool, cx, one.or(other), moves)?
            .into_iter()
            .collect()),
    }
}

/// RMDIR: only if the directory is empty on every branch; undone where a branch refuses.
pub(crate) fn rmdir(
    pool: &Directories,
    cx: &Context<'_>,
    parent: NodeId,
    name: &OsStr,
) -> Result<()> {
    let parent = pool.node_to_change(parent)?;
    let view = pool.view();
    let set = set::dir_set(pool, &parent)?;
    let found = change::branches_with(pool, &set, name)?;
    match found.first() {
        None => return Err(Errno::NOENT.into()),
        Some(_) if follow::shows_a_link(pool, &view, &set, name, &found) => {
            check_owners((pool, cx), &view, &set, &found)?;
            return remove_shown::remove_shown_dir(pool, &view, &parent, &set, name, &found);
        }
        Some((_, stat)) if kind_of(stat) != FileKind::Directory => {
            return Err(Errno::NOTDIR.into());
        }
        Some(_) => {}
    }
    check_owners((pool, cx), &view, &set, &found)?;
    let nodes = nodes_named(pool, &parent, &set, name, &found);
    let opened = removed_dirs::open_before_removal(pool, &view, &set, name, &found, &nodes);
    let removed = remove_dirs(pool, &view, &set, name, &found);
    if removed.is_ok() {
        forget_name(&nodes, &parent, name);
        removed_dirs::hold_removed(pool, cx, opened);
    }
    // After the name, by which somebody may look for the directory meanwhile.
    let rule = view.policy(Function::Rmdir);
    let is_dir = |(_, stat): &(Arc<Branch>, Statx)| kind_of(stat) == FileKind::Directory;
    if removed.is_ok() && matches!(rule, Policy::All | Policy::EpAll) && found.iter().all(is_dir) {
        // Gone everywhere: it was empty, so nothing is known but the directory itself.
        for node in &nodes {
            node.place().dirs.iter().for_each(|set| set.distrust());
        }
    } else if view.branches.len() > 1 {
        // Some copies may be left, or be put back as new ones.
        pool.coherence.changes.structure_changed();
    }
    removed
}

/// Removes the directories among what was found, if all of them are empty.
pub(crate) fn remove_dirs(
    pool: &State,
    view: &View,
    set: &DirSet,
    name: &OsStr,
    found: &[(Arc<Branch>, Statx)],
) -> Result<()> {
    let directories: SmallVec<[(Arc<Branch>, Statx); 2]> = found
        .iter()
        .filter(|(_, stat)| kind_of(stat) == FileKind::Directory)
        .cloned()
        .collect();
    let mut kept = Kept::new();
    if directories.len() > 1 {
        for (branch, _) in &directories {
            let dir = set.on(branch.id).ok_or(Errno::STALE)?;
            let opened = open_empty(dir, name);
            if matches!(opened, Err(Errno::NOTEMPTY)) {
                // On a bare filesystem what forbids it at all is said first.
                for (branch, stat) in &directories {
                    may_remove(set.on(branch.id).ok_or(Errno::STALE)?, stat)?;
                }
            }
            kept.push((branch.id, opened?));
        }
    }
    let rule = view.policy(Function::Rmdir);
    remove_from(
        pool,
        view,
        rule,
        set,
        name,
        &directories,
        Doomed::Directories(kept),
    )
}

/// Removes a name from the branches the policy picks out of those that have it. With the
/// policies that mean "all", one that may not be changed stops everything: removing the
/// others would only make that copy show again.
///
/// All is checked before anything is removed. The copy that users see goes last: should a
/// branch fail all the same, it is still there. Directories are put back.
pub(crate) fn remove_from(
    pool: &State,
    view: &View,
    rule: Policy,
    set: &DirSet,
    name: &OsStr,
    found: &[(Arc<Branch>, Statx)],
    what: Doomed,
) -> Result<()> {
    let (directory, mut opened) = match what {
        Doomed::Others => (false, Kept::new()),
        Doomed::Directories(kept) => (true, kept),
    };
    if found.is_empty() {
        return Err(Errno::NOENT.into());
    }
    let listed: SmallVec<[(Arc<Branch>, Option<Statx>); 2]> = found
        .iter()
        .map(|(branch, stat)| (Arc::clone(branch), Some(*stat)))
        .collect();
    let mut picked = choose::pick_for_action(pool, view, rule, &listed)?;
    let takes_all = matches!(rule, Policy::All | Policy::EpAll);
    if takes_all && picked.len() < found.len() {
        return Err(Errno::ROFS.into());
    }
    picked.sort_unstable();
    let doomed: SmallVec<[(&DirEntry, &Statx); 2]> = picked
        .iter()
        .rev()
        .filter_map(|index| found.get(*index))
        .filter_map(|(branch, stat)| Some((set.on(branch.id)?, stat)))
        .collect();
    if doomed.len() > 1 {
        for (dir, stat) in &doomed {
            may_remove(dir, stat)?;
        }
    }
    // Only what another branch may yet refuse is ever put back.
    let several = doomed.len() > 1;
    let mut removed: SmallVec<[Removed<'_>; 2]> = SmallVec::new();
    for (dir, stat) in doomed {
        let kept = opened
            .iter()
            .position(|(branch, _)| *branch == dir.branch.id)
            .filter(|_| several)
            .map(|index| opened.swap_remove(index).1);
        let unlink = || rustix::fs::unlinkat(&dir.fd, name, unlink_flags(directory));
        match dir.branch.call(Call::Remove, unlink) {
            Ok(()) => removed.push(Removed { dir, stat, kept }),
            Err(Errno::NOENT) => {}
            Err(errno) => {
                let Err(error) = lost_answer::of_removing(dir, name, errno) else {
                    removed.push(Removed { dir, stat, kept });
                    continue;
                };
                if directory {
                    restore_dirs(&removed, name);
                } else if !removed.is_empty() {
                    tracing::error!(branch = %dir.branch.path.display(), ?name, %errno, "a file could not be removed here; its copies on later branches are gone");
                }
                return Err(Error::at(&dir.branch, error));
            }
        }
    }
    if removed.is_empty() {
        Err(Errno::NOENT.into())
    } else {
        Ok(())
    }
}

/// Whether a name is certain not to be there any more.
pub(crate) fn is_gone(dir: &DirEntry, name: &OsStr) -> bool {
    matches!(sys::statx_name(dir.fd.as_fd(), name), Err(Errno::NOENT))
}

pub(crate) fn nodes_of_first(
    pool: &State,
    set: &DirSet,
    name: &OsStr,
    found: &[(Arc<Branch>, Statx)],
) -> PresentedAs {
    let first = found
        .first()
        .and_then(|(branch, stat)| Some((set.on(branch.id)?, stat)));
    first
        .map(|(dir, stat)| nodes_of_copy(pool, dir, name, stat))
        .unwrap_or_default()
}

/// The live nodes that a name leads to. A directory is found by any of its copies: the one
/// that its node was made from may be none of the first.
pub(crate) fn nodes_named(
    pool: &Coherent,
    parent: &Node,
    set: &DirSet,
    name: &OsStr,
    found: &[(Arc<Branch>, Statx)],
) -> PresentedAs {
    let is_dir = |(_, stat): &(Arc<Branch>, Statx)| kind_of(stat) == FileKind::Directory;
    if !found.first().is_some_and(is_dir) {
        return nodes_of_first(pool, set, name, found);
    }
    let mut nodes = PresentedAs::new();
    for (branch, stat) in found.iter().filter(|copy| is_dir(copy)) {
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let Some(volume) = pool.volumes.of_device(branch.id, device) else {
            continue;
        };
        // A copy may be noted for directories that it has left.
        let known = invalidate::known_nodes(pool, volume, stat.stx_ino);
        for node in known.into_iter().filter(|node| node.is_dir()) {
            let named = node.place().names.newest_is(parent.id, name);
            if named && !nodes.iter().any(|other| Arc::ptr_eq(other, &node)) {
                nodes.push(node);
            }
        }
    }
    nodes
}

/// The live nodes under a name on a branch: at most one for each face.
pub(crate) fn nodes_at(pool: &State, dir: &DirEntry, name: &OsStr) -> PresentedAs {
    (dir.branch)
        .call(Call::Lookup, || sys::statx_name(dir.fd.as_fd(), name))
        .map(|stat| nodes_of_copy(pool, dir, name, &stat))
        .unwrap_or_default()
}

/// The same where the attributes under the name are known.
fn nodes_of_copy(pool: &State, dir: &DirEntry, name: &OsStr, stat: &Statx) -> PresentedAs {
    let branch = &dir.branch;
    let noted = pool
        .volumes
        .note(branch.id, branch.seed, stat, dir.fd.as_fd(), name);
    let Ok(volume) = noted else {
        return PresentedAs::new();
    };
    [Presented::Own, Presented::Other]
        .into_iter()
        .filter_map(|presented| pool.nodes.find(volume, stat.stx_ino, presented))
        .collect()
}

/// The node that can move: the one that shows a file as it is.
pub(crate) fn file_among(nodes: &[Arc<Node>]) -> Option<&Arc<Node>> {
    nodes.iter().find(|node| node.kind == FileKind::Regular)
}

/// Tells the nodes that a name of theirs is gone.
pub(crate) fn forget_name(nodes: &[Arc<Node>], parent: &Arc<Node>, name: &OsStr) {
    for node in nodes {
        node.remove_name(parent.id, name);
    }
}

/// Directories opened while they were seen to be empty, by branch.
pub(crate) type Kept = SmallVec<[(BranchId, OwnedFd); 2]>;

/// What is to be removed.
pub(crate) enum Doomed {
    /// Names of anything but directories.
    Others,
    /// Directories; opened, if some may have to be put back.
    Directories(Kept),
}

/// A copy that is gone already.
struct Removed<'a> {
    dir: &'a DirEntry,
    stat: &'a Statx,
    /// The directory itself, which keeps its attributes while it is held.
    kept: Option<OwnedFd>,
}

/// Opens a directory that is about to be removed.
pub(crate) fn open_kept(dir: &DirEntry, name: &OsStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&dir.fd, name, flags, Mode::empty()).ok()
}

/// Puts back directories removed before another branch refused.
fn restore_dirs(removed: &[Removed<'_>], name: &OsStr) {
    for Removed { dir, stat, kept } in removed {
        if let Err(errno) = restore_dir(dir, name, stat, kept.as_ref()) {
            tracing::error!(branch = %dir.branch.path.display(), ?name, %errno, "an empty directory could not be put back");
        }
    }
}

/// Makes a removed directory again, with the attributes that `kept` still has.
pub(crate) fn restore_dir(
    dir: &DirEntry,
    name: &OsStr,
    stat: &Statx,
    kept: Option<&OwnedFd>,
) -> sys::Result<()> {
    // Closed to others until its owner and ACL are in place.
    sys::for_owner_alone(|| rustix::fs::mkdirat(&dir.fd, name, clone_path::UNFINISHED))?;
    let made = open_kept(dir, name).ok_or(Errno::NOENT)?;
    let model = kept.unwrap_or(&made);
    let bare = sys::statx_fd(made.as_fd())?;
    // Somebody else's can have been put in its place, see `clone_dir`.
    if !clone_path::is_empty(made.as_fd())? {
        return Err(Errno::EXIST);
    }
    copy_metadata((model.as_fd(), stat), (made.as_fd(), &bare))
}

/// Whether a name may be removed or renamed as far as can be told without trying: to be asked
/// where several branches have to agree.
///
/// # Errors
/// EPERM for what `chattr` has fixed (the inode or its directory), EBUSY for a mountpoint, EROFS,
/// and EACCES for a server without the right to write to the directory.
pub(crate) fn may_remove(dir: &DirEntry, stat: &Statx) -> Result<()> {
    let refusal = if is_fixed(stat) {
        Some(Errno::PERM)
    } else if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        Some(Errno::BUSY)
    } else {
        let home = sys::statx_fd(dir.fd.as_fd())?;
        is_fixed(&home).then_some(Errno::PERM).or_else(|| {
            let wanted = Access::WRITE_OK | Access::EXEC_OK;
            rustix::fs::accessat(&dir.fd, c".", wanted, AtFlags::EACCESS).err()
        })
    };
    match refusal {
        None => Ok(()),
        Some(errno) => Err(Error::at(&dir.branch, errno)),
    }
}

/// Whether directory `name` in `dir` has no entries.
pub(crate) fn dir_is_empty(dir: &DirEntry, name: &OsStr) -> sys::Result<bool> {
    match open_empty(dir, name) {
        Ok(_) => Ok(true),
        Err(Errno::NOTEMPTY) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Opens directory `name` in `dir`.
///
/// # Errors
/// ENOTEMPTY if it has entries.
fn open_empty(dir: &DirEntry, name: &OsStr) -> sys::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&dir.fd, name, flags, Mode::empty())?;
    let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 1024];
    let mut entries = rustix::fs::RawDir::new(&fd, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Err(Errno::NOTEMPTY);
        }
    }
    Ok(fd)
}
