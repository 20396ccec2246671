//! On whose account room is taken on a branch that keeps some for root.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use strandfs_fuse::Context;

use crate::base::branch::Branch;
use crate::base::error::Result;
use crate::base::sys;
use crate::ops::admission::UNNAMED;
use crate::ops::privilege;
use crate::state::open_file::OpenFile;
use crate::state::view::View;

/// The account that goes with the server's own rights.
pub(super) const ROOT: u32 = 0;

/// How much a request may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// What one request carries.
    Piece,
    /// Any length.
    Any,
}

/// On whose account the caller takes room on a branch: root's where no reserve can be reached; somebody
/// unknown is not root.
pub(super) fn of_caller(cx: &Context<'_>, branch: &Branch, extent: Extent) -> u32 {
    let concerned = match extent {
        Extent::Piece => branch.is_near_root_reserve(),
        Extent::Any => branch.keeps_root_reserve(),
    };
    match concerned {
        true => user_there(cx, branch),
        false => ROOT,
    }
}

/// The same of a change of names or attributes: on the account of whom a branch keeps room for, where that is near
/// and the caller may have it.
pub(super) fn of_changer(cx: &Context<'_>, branch: &Branch) -> u32 {
    match branch.is_near_root_reserve() {
        true if may_have_reserve(cx, branch) => branch.reserve_holders().uid,
        true => user_there(cx, branch),
        false => ROOT,
    }
}

/// Takes room on the account of `payer`, and where there is none for them, what is kept, if the caller may
/// have that: it is only asked then.
pub(super) fn paid<T>(
    (cx, branch, payer): (&Context<'_>, &Branch, u32),
    mut take: impl FnMut(u32) -> Result<T>,
) -> Result<T> {
    match take(payer) {
        Err(error)
            if error.errno == Errno::NOSPC && payer != ROOT && may_have_reserve(cx, branch) =>
        {
            take(branch.reserve_holders().uid)
        }
        outcome => outcome,
    }
}

/// The same where it may be taken on any branch: what one gives the caller another may not.
pub(super) fn of_caller_anywhere(cx: &Context<'_>, view: &View) -> u32 {
    let near = (view.branches.iter()).filter(|branch| branch.is_near_root_reserve());
    let mut payers = near.map(|branch| of_changer(cx, branch));
    match payers.next() {
        None => ROOT,
        Some(first) if payers.all(|payer| payer == first) => first,
        Some(_) => user(cx),
    }
}

/// The same for what the kernel kept in its cache and writes in nobody's name: the account of who opened the
/// file, or owns it.
pub(super) fn of_opener(opened: &OpenFile, branch: &Branch, file: BorrowedFd<'_>) -> u32 {
    if !branch.is_near_root_reserve() {
        return ROOT;
    }
    match opened.opener.uid {
        UNNAMED => of_owner(file).unwrap_or(sys::NOBODY),
        uid => uid,
    }
}

/// On whose account the kernel takes room for a file in passthrough, for as long as anybody has it open: the
/// owner's, or that of whoever `writes` to a file of root's: root may open one for writing that others read.
pub(super) fn of_passthrough(cx: &Context<'_>, branch: &Branch, owner: u32, writes: bool) -> u32 {
    match branch.keeps_root_reserve() {
        true if owner != ROOT => owner,
        true if writes => user(cx),
        true | false => ROOT,
    }
}

/// Whether the caller is surely root, who may fill what is kept for root.
pub(super) fn is_root(cx: &Context<'_>) -> bool {
    user(cx) == ROOT
}

/// The caller, or whom a branch keeps room for where that is root's by being root.
fn user_there(cx: &Context<'_>, branch: &Branch) -> u32 {
    match user(cx) {
        ROOT => branch.reserve_holders().uid,
        uid => uid,
    }
}

/// Whether a branch lets the caller have what it keeps.
fn may_have_reserve(cx: &Context<'_>, branch: &Branch) -> bool {
    let holders = branch.reserve_holders();
    let uid = user(cx);
    uid == ROOT
        || uid == holders.uid
        || holders.gid != 0 && privilege::is_member(cx, holders.gid)
        || privilege::takes_reserves(cx)
}

/// The group for which a branch keeps room that is near, if the caller is in it.
pub(super) fn reserve_group(cx: &Context<'_>, branch: &Branch) -> Option<u32> {
    let gid = branch.reserve_holders().gid;
    let may_have = gid != 0 && branch.is_near_root_reserve() && privilege::is_member(cx, gid);
    may_have.then_some(gid)
}

/// Whether the kernel must not write for the caller, who may have what a branch keeps and would be refused it:
/// in passthrough it goes by whose the file is.
pub(super) fn is_worse_passed_through(cx: &Context<'_>, branch: &Branch, owner: u32) -> bool {
    let holders = branch.reserve_holders();
    let by_group = || holders.gid != 0 && privilege::is_member(cx, holders.gid);
    let by_power = || branch.is_near_root_reserve() && privilege::takes_reserves(cx);
    owner != holders.uid && (by_group() || by_power()) && user(cx) != ROOT
}

/// The owner of a file, unless root is.
fn of_owner(file: BorrowedFd<'_>) -> Option<u32> {
    let stat = rustix::fs::fstat(file.as_fd()).ok()?;
    Some(stat.st_uid).filter(|uid| *uid != ROOT)
}

/// The caller; nobody where that is not certain.
pub(super) fn user(cx: &Context<'_>) -> u32 {
    if cx.uid != UNNAMED {
        return cx.uid;
    }
    match sys::file_user_of(cx.pid) {
        Some(uid) if uid != ROOT => uid,
        // A thread of the kernel that serves others is root by this, and by nothing else.
        _ => privilege::caller_uid(cx).unwrap_or(sys::NOBODY),
    }
}
