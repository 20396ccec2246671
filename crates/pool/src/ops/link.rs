//! LINK: a further name for a node, beside its inode.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Statx};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Context, Entry, NodeId};
use strandfs_options::{Function, Policy};

use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::sys;
use crate::coherence::invalidate;
use crate::directory::{Directories, choose, clone_path, lookup, set};
use crate::ops::change::{self, Holder};
use crate::ops::hidden_copies::{self, Power};
use crate::ops::todays_rights::TodaysRights;
use crate::ops::{account, create, exdev, lost_answer};
use crate::state::node::{DirEntry, Node};
use crate::state::view::View;

/// LINK. Every copy the policy picks gets the new name on its own branch.
pub(crate) fn link(
    pool: &Directories,
    cx: &Context<'_>,
    id: NodeId,
    new_parent: NodeId,
    new_name: &OsStr,
) -> Result<Entry> {
    let node = pool.node(id)?;
    let held = node.share_move_lock(cx);
    let parent = pool.node_to_change(new_parent)?;
    let view = pool.view();
    let set = set::dir_set(pool, &parent)?;
    if create::exists_elsewhere(pool, &view, &set, new_name)? {
        return Err(Errno::EXIST.into());
    }
    let rule = view.policy(Function::Link);
    let mut holders = if node.follows() {
        change::holder_of_link(pool, &node)?
    } else {
        change::holders_for(pool, &view, &node, rule)?
    };
    hidden_copies::leave_out_those_of_others(&view, cx, Power::Own, &mut holders)?;
    let listed: Vec<_> = holders
        .iter()
        .map(|holder| (Arc::clone(&holder.branch), None))
        .collect();
    let picked = choose::pick_for_action(pool, &view, rule, &listed)?;
    let copies: SmallVec<[&Holder; 2]> = picked
        .iter()
        .filter_map(|index| holders.get(*index))
        .collect();
    let today = TodaysRights::of(pool, &view, cx, &node);
    for copy in &copies {
        let stat = copy.attributes()?;
        if let Err(errno) = today.check_linker(copy.fd.as_fd(), &stat) {
            invalidate::drop_attributes(pool, &node);
            return Err(Error::at(&copy.branch, errno));
        }
    }
    let takes_all = matches!(rule, Policy::All | Policy::EpAll);
    if takes_all && !copies.iter().any(|copy| copy.primary) {
        // The new name would show another copy than the old one.
        return Err(Errno::ROFS.into());
    }
    match link_copies(pool, cx, &view, &copies, (&parent, new_name)) {
        Err(Error {
            errno: Errno::XDEV,
            took_effect: false,
            ..
        }) => return exdev::link_exdev(pool, &view, &node, &parent, new_name),
        outcome => outcome?,
    }
    let shown_otherwise = node.follows() || node.is_symlinkified();
    if !shown_otherwise {
        return lookup::look_up_made(pool, new_parent, new_name).map_err(Error::after_effect);
    }
    drop(held);
    // The kernel insists on the type that the node has.
    node.add_name(new_parent, new_name);
    let mut entry = lookup::entry_of(pool, node).map_err(Error::after_effect)?;
    entry.entry_valid = std::time::Duration::ZERO;
    Ok(entry)
}

/// Gives every copy the new name, the one that users see before all others, or none. Other
/// copies whose branch lacks the directory, and is not to get it, go without.
///
/// # Errors
/// The first refusal; EXDEV if the copy that users see has to go without.
fn link_copies(
    pool: &Directories,
    cx: &Context<'_>,
    view: &View,
    copies: &[&Holder],
    (parent, name): (&Arc<Node>, &OsStr),
) -> Result<()> {
    let mut linked: SmallVec<[DirEntry; 2]> = SmallVec::new();
    let shown = copies.iter().position(|copy| copy.primary).unwrap_or(0);
    let first = copies.get(shown).ok_or(Errno::NOENT)?;
    let others = copies.iter().enumerate().filter(|(at, _)| *at != shown);
    for copy in [first].into_iter().chain(others.map(|(_, copy)| copy)) {
        match link_copy(pool, cx, view, copy, (parent, name)) {
            Ok(dir) => linked.push(dir),
            Err(Error {
                errno: Errno::XDEV, ..
            }) if !linked.is_empty() => {}
            Err(errno) => {
                let mut error = Error::at(&copy.branch, errno);
                for dir in linked {
                    let undone = rustix::fs::unlinkat(&dir.fd, name, AtFlags::empty());
                    if let Err(errno) = undone {
                        tracing::error!(branch = %dir.branch.path.display(), ?name, %errno, "a link that another branch refused could not be taken back");
                        error = error.after_effect();
                    }
                }
                return Err(error);
            }
        }
    }
    Ok(())
}

fn link_copy(
    pool: &Directories,
    cx: &Context<'_>,
    view: &View,
    holder: &Holder,
    (parent, name): (&Arc<Node>, &OsStr),
) -> Result<DirEntry> {
    let present = set::dir_set(pool, parent)?.on(holder.branch.id).cloned();
    let dir = match present {
        Some(dir) => dir,
        None if preserves_paths(view) => return Err(Errno::XDEV.into()),
        None => clone_path::ensure_dir(pool, parent, &holder.branch)?,
    };
    let path = sys::ProcPath::new(holder.fd.as_fd());
    let follow = AtFlags::SYMLINK_FOLLOW;
    let link = || rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), &dir.fd, name, follow);
    let payer = account::of_changer(cx, &holder.branch);
    let link = || sys::on_account_with_powers(payer, link);
    match holder.branch.call(Call::Make, link) {
        Ok(()) => Ok(dir),
        Err(errno) if lost_answer::is_judged(errno) => Err(errno.into()),
        Err(errno) => match has_name(holder, &dir, name) {
            // It is done, and its answer was lost.
            Some(true) => Ok(dir),
            Some(false) => Err(errno.into()),
            None => Err(Error::from(errno).after_effect()),
        },
    }
}

/// Whether a copy is under this name on its branch, if that tells.
fn has_name(holder: &Holder, dir: &DirEntry, name: &OsStr) -> Option<bool> {
    let inode = |stat: Statx| (stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor);
    let copy = sys::statx_fd(holder.fd.as_fd()).ok()?;
    match sys::statx_name(dir.fd.as_fd(), name) {
        Ok(found) => Some(inode(copy) == inode(found)),
        Err(Errno::NOENT) => Some(false),
        Err(_) => None,
    }
}

/// Whether rename and link keep to branches that already hold the target's directory.
pub(crate) fn preserves_paths(view: &View) -> bool {
    view.policy(Function::Create).path_preserving() && !view.settings.policies.ignorepponrename
}
