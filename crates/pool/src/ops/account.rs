//! On whose account room is taken on a branch that keeps some for root.

use std::os::fd::{AsFd, BorrowedFd};

use strandfs_fuse::Context;

use crate::base::branch::Branch;
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

/// On whose account the caller takes room on a branch: root's where no reserve can be reached, or by root;
/// somebody unknown is not root.
pub(super) fn of_caller(cx: &Context<'_>, branch: &Branch, extent: Extent) -> u32 {
    let concerned = match extent {
        Extent::Piece => branch.is_near_root_reserve(),
        Extent::Any => branch.keeps_root_reserve(),
    };
    match concerned {
        true => user(cx),
        false => ROOT,
    }
}

/// The same where it may be taken on any branch.
pub(super) fn of_caller_anywhere(cx: &Context<'_>, view: &View) -> u32 {
    let mut branches = view.branches.iter();
    match branches.any(|branch| branch.is_near_root_reserve()) {
        true => user(cx),
        false => ROOT,
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
/// owner's, or root's where root owns the file and whoever opens it `writes` and is root.
pub(super) fn of_passthrough(cx: &Context<'_>, branch: &Branch, owner: u32, writes: bool) -> u32 {
    match branch.keeps_root_reserve() {
        false => ROOT,
        true if owner != ROOT => owner,
        true if writes => user(cx),
        true => sys::NOBODY,
    }
}

/// Whether the caller is surely root, who may fill what is kept for root.
pub(super) fn is_root(cx: &Context<'_>) -> bool {
    user(cx) == ROOT
}

/// The owner of a file, unless root is.
fn of_owner(file: BorrowedFd<'_>) -> Option<u32> {
    let stat = rustix::fs::fstat(file.as_fd()).ok()?;
    Some(stat.st_uid).filter(|uid| *uid != ROOT)
}

fn user(cx: &Context<'_>) -> u32 {
    if cx.uid != UNNAMED {
        return cx.uid;
    }
    match sys::file_user_of(cx.pid) {
        Some(uid) if uid != ROOT => uid,
        // A thread of the kernel that serves others is root by this, and by nothing else.
        _ => privilege::caller_uid(cx).unwrap_or(sys::NOBODY),
    }
}
