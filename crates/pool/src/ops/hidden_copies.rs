//! What a caller may do to the copies of a file that are not shown. The kernel has judged by the one that
//! is; another may be somebody else's, and the server, which is root, would be refused nothing.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;

use crate::base::access_list;
use crate::base::error::{Error, Result};
use crate::base::metadata::may_have_capability;
use crate::base::rights::Rights;
use crate::base::sys;
use crate::ops::change::Holders;
use crate::ops::privilege::{self, caller_uid};
use crate::state::State;
use crate::state::node::DirEntry;
use crate::state::view::View;
use strandfs_fuse::Context;

/// Permissions as a class of a mode has them.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;

/// What a change takes, as the kernel asks for it (fs/attr.c, `setattr_prepare`; fs/xattr.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    /// To own the file.
    Own,
    /// The same, to give it this mode.
    Mode(u32),
    /// The same, to change an access list; whether the kernel would have set-group-id fall with it.
    List {
        /// By the group that the kernel knows.
        clears_set_group_id: bool,
    },
    /// The same where the kernel asks for nothing.
    Unasked,
    /// To be allowed to give the file to this owner and group.
    Give(Option<u32>, Option<u32>),
    /// To be allowed to write to it.
    Write,
    /// The same, where the kernel's word holds: for an open file, or for who may write to all.
    WriteUnasked,
    /// To own the file or be allowed to write to it: for the present time.
    Touch,
    /// To be allowed to write to it, and to own it if it is a sticky directory: for `user.*`.
    Annotate,
    /// To have power over the file's owner and group: for `security.*`.
    Secure,
    /// The same, or to be allowed to write to it, by which a file loses its capability.
    TakeCapability,
}

/// Leaves out the copies that the caller may not change: a mergerfs, which acts as its callers, is
/// refused them by the branch. The one that is shown stays.
///
/// # Errors
/// Those of `statx(2)` on the branches.
pub(crate) fn leave_out_those_of_others(
    view: &View,
    cx: &Context<'_>,
    power: Power,
    holders: &mut Holders,
) -> Result<()> {
    // With `uid=` all files are shown as one user's, and are meant to be.
    if holders.len() < 2 || view.settings.presentation.uid.is_some() {
        return Ok(());
    }
    let mut rights = Vec::with_capacity(holders.len());
    for holder in holders.iter() {
        rights.push((holder.primary, Rights::of(&holder.attributes()?)));
    }
    let Some((_, shown)) = rights.iter().find(|(primary, _)| *primary).copied() else {
        return Ok(());
    };
    let is_open = |hidden: &Rights| match power {
        Power::Give(..) => hidden.uid == shown.uid || privilege::gives_away(cx, hidden.uid),
        Power::Write
        | Power::WriteUnasked
        | Power::Touch
        | Power::Annotate
        | Power::Secure
        | Power::TakeCapability => {
            is_open_to_writers_of(&shown, hidden, || caller_uid(cx))
                || privilege::acts_for_owner(cx, hidden.uid)
                || privilege::overrides_mode(cx, hidden.uid)
        }
        _ => hidden.uid == shown.uid || privilege::acts_for_owner(cx, hidden.uid),
    };
    let mut rights = rights.into_iter();
    holders.retain(|holder| {
        let open = rights.next().is_some_and(|(_, hidden)| is_open(&hidden));
        if !open {
            tracing::debug!(branch = %holder.branch.path.display(), "a copy that is somebody else's is left as it is");
        }
        open
    });
    Ok(())
}

/// Whether whoever may write to what is shown may write to the hidden copy; `caller` is asked for only
/// where that decides.
fn is_open_to_writers_of(
    shown: &Rights,
    hidden: &Rights,
    caller: impl FnOnce() -> Option<u32>,
) -> bool {
    const ALL_WRITE: u32 = 0o222;
    let granted = |rights: &Rights| rights.mode & ALL_WRITE;
    let is_no_more_closed = hidden.gid == shown.gid && granted(shown) & !granted(hidden) == 0;
    hidden.uid == shown.uid && (is_no_more_closed || caller() == Some(shown.uid))
}

/// Whether the caller may take a name away from a file on a branch, as far as the sticky bit of its
/// directory says (fs/namei.c, `__check_sticky`). The kernel has asked for the copy that is shown, by the
/// owners and the mode that it remembers. True if the bit is set.
///
/// # Errors
/// EPERM for what is another user's, in a directory that is another user's.
pub(crate) fn may_take_name(
    (pool, cx): (&State, &Context<'_>),
    dir: &DirEntry,
    stat: &Statx,
    whose: Whose,
) -> Result<bool> {
    let home = sys::statx_fd(dir.fd.as_fd()).map_err(|errno| Error::at(&dir.branch, errno))?;
    if u32::from(home.stx_mode) & libc::S_ISVTX == 0 {
        return Ok(false);
    }
    let owners = [stat.stx_uid, home.stx_uid];
    let may = match whose {
        Whose::Shown => !privilege::is_surely_none_of(pool, cx, &owners),
        Whose::Hidden => caller_uid(cx).is_some_and(|uid| owners.contains(&uid)),
    };
    match may || privilege::acts_for_owner(cx, stat.stx_uid) {
        true => Ok(true),
        false => Err(Error::at(&dir.branch, Errno::PERM)),
    }
}

/// What a name on a branch leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// To what the kernel has judged: its word holds where nobody can tell who calls.
    Shown,
    /// To what the kernel knows nothing of, perhaps.
    Hidden,
}

/// Whether the caller may open a copy in this way, by its mode and access list.
pub(crate) fn may_open(
    cx: &Context<'_>,
    copy: BorrowedFd<'_>,
    stat: &Statx,
    flags: OFlags,
) -> bool {
    let wanted = match flags & OFlags::RWMODE {
        OFlags::RDONLY => READ,
        OFlags::WRONLY => WRITE,
        _ => READ | WRITE,
    };
    is_granted(cx, copy, &Rights::of(stat), wanted)
}

/// Whether the caller has the permissions `wanted` (as a class of a mode has them) for an inode.
pub(crate) fn is_granted(
    cx: &Context<'_>,
    inode: BorrowedFd<'_>,
    rights: &Rights,
    wanted: u32,
) -> bool {
    let (owner, group, others) = rights.classes();
    let list = access_list::of(inode);
    if matches!(list, Ok(None)) && wanted & !(owner & group & others) == 0 {
        return true;
    }
    let user = caller_uid(cx);
    let by_mode = || match group == others || privilege::is_in_group(cx, rights.gid) {
        true => group,
        false => others,
    };
    let granted = match (user, list) {
        (Some(user), _) if user == rights.uid => wanted & !owner == 0,
        // Without any permission for the group the kernel asks no list (fs/namei.c, `acl_permission_check`).
        (_, Ok(Some(list))) if group != 0 => {
            let is_in_group = |gid| privilege::is_in_group(cx, gid);
            list.grants(wanted, rights.gid, user, is_in_group)
        }
        (_, Ok(_)) => wanted & !by_mode() == 0,
        (_, Err(_)) => false,
    };
    granted
        || privilege::overrides_mode(cx, rights.uid)
        || wanted & WRITE == 0 && privilege::reads_all(cx, rights.uid)
}

/// Whether the content of a copy may be had under the name of the one that is shown: the kernel gives whoever
/// runs it the rights of that one's set-id bits and capability.
pub(crate) fn may_stand_for(shown: (BorrowedFd<'_>, &Statx), copy: &Statx) -> bool {
    let set_id = |stat: &Statx| u32::from(stat.stx_mode) & (libc::S_ISUID | libc::S_ISGID);
    let ids = |stat: &Statx| (stat.stx_uid, stat.stx_gid, set_id(stat));
    let (fd, stat) = shown;
    (set_id(stat) == 0 || ids(stat) == ids(copy)) && !may_have_capability(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(uid: u32, gid: u32, mode: u32) -> Rights {
        Rights { uid, gid, mode }
    }

    #[test]
    fn who_may_write_to_one_file_may_write_to_another_that_is_no_more_closed() {
        let shown = rights(1, 2, 0o664);
        let (owner, member) = (Some(1), Some(9));
        for (hidden, to_owner, to_member) in [
            (rights(1, 2, 0o664), true, true),
            (rights(1, 2, 0o666), true, true),
            (rights(1, 2, 0o644), true, false),
            (rights(1, 3, 0o664), true, false),
            (rights(0, 2, 0o666), false, false),
        ] {
            assert_eq!(
                is_open_to_writers_of(&shown, &hidden, || owner),
                to_owner,
                "{hidden:?}"
            );
            assert_eq!(
                is_open_to_writers_of(&shown, &hidden, || member),
                to_member,
                "{hidden:?}"
            );
            assert!(!is_open_to_writers_of(&shown, &hidden, || None) || to_member);
        }
    }
}
