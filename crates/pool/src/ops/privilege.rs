//! Whether a caller may write to a set-id file without clearing the bits.

use std::os::fd::BorrowedFd;

use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{Context, SetAttr, Write};

use crate::pool::Pool;
use crate::sys;

/// Set-user-id or set-group-id.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// Whether `mode` has bits that a write by an ordinary user clears.
pub(crate) fn has_set_id(mode: u32) -> bool {
    mode & SET_ID != 0
}

/// Whether the caller has CAP_FSETID here. Asked of `/proc`, and only where a set-id file is at
/// stake: the kernel no longer tells the server who calls (idmapped mounts), except for requests
/// that create, and marks only writes and truncates. No answer means no.
pub(crate) fn keeps_set_id(cx: &Context<'_>) -> bool {
    const CAP_FSETID: u32 = 4;
    has_capability(cx, CAP_FSETID)
}

fn has_capability(cx: &Context<'_>, number: u32) -> bool {
    status_line(cx, "CapEff:")
        .and_then(|line| u64::from_str_radix(line.trim(), 16).ok())
        .is_some_and(|effective| effective & 1 << number != 0)
}

/// Whether the caller owns an inode of this user, or may act as if (CAP_FOWNER). Asked of `/proc`
/// as in [`keeps_set_id`].
pub(crate) fn owns(cx: &Context<'_>, uid: u32) -> bool {
    const CAP_FOWNER: u32 = 3;
    caller_uid(cx) == Some(uid) || has_capability(cx, CAP_FOWNER)
}

/// Whether the caller may leave set-group-id on an inode of this group when its access list goes:
/// with CAP_FSETID, and as a member. Asked of `/proc` as in [`keeps_set_id`].
pub(crate) fn keeps_set_group_id(cx: &Context<'_>, gid: u32) -> bool {
    let among = |line: Option<String>, skipped: usize| {
        let line = line.unwrap_or_default();
        let mut listed = line.split_whitespace().skip(skipped);
        listed.any(|listed| listed.parse() == Ok(gid))
    };
    // Of real, effective and saved, only the last counts for files.
    keeps_set_id(cx) || among(status_line(cx, "Gid:"), 3) || among(status_line(cx, "Groups:"), 0)
}

/// The user the caller acts as, as the kernel says it or else `/proc`; none if it is not known
/// for certain.
pub(crate) fn caller_uid(cx: &Context<'_>) -> Option<u32> {
    /// What idmapped mounts put in place of ids.
    const UNKNOWN: u32 = u32::MAX;
    if cx.uid != UNKNOWN {
        return Some(cx.uid);
    }
    // Real, effective, saved, and the one that counts for files.
    status_line(cx, "Uid:")?
        .split_whitespace()
        .nth(3)?
        .parse()
        .ok()
}

/// A line of the caller's `/proc/PID/status` without its key; none for callers in another user
/// namespace, whose ids and capabilities mean something else.
fn status_line(cx: &Context<'_>, key: &str) -> Option<String> {
    if cx.pid == 0 {
        return None;
    }
    let namespace = |task: String| std::fs::read_link(format!("/proc/{task}/ns/user")).ok();
    let own = namespace("self".to_owned())?;
    if namespace(cx.pid.to_string())? != own {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", cx.pid)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.to_owned())
}

/// Prepares the thread for a change of the file's bytes that the kernel does not mark: set-id
/// bits are to fall unless the caller may keep them.
///
/// # Errors
/// Those of `fstat(2)` and `capset(2)`.
pub(crate) fn for_unmarked_change(cx: &Context<'_>, file: BorrowedFd<'_>) -> sys::Result<()> {
    let mode = rustix::fs::fstat(file)?.st_mode;
    sys::want_fsetid(!has_set_id(mode) || keeps_set_id(cx))
}

/// Who sees to it that set-id bits fall.
enum Clearing {
    /// The server, where the kernel marks a change (HANDLE_KILLPRIV_V2).
    WhereMarked,
    /// The server, at every change by a caller who may not keep them (HANDLE_KILLPRIV).
    Always,
    /// The kernel, by changing the mode beforehand; not for writes past its page cache.
    ByKernel,
}

impl Pool {
    fn clearing(&self) -> Clearing {
        let agreed = |flag| {
            let negotiated = self.negotiated.get();
            negotiated.is_some_and(|negotiated| negotiated.flags.contains(flag))
        };
        if agreed(InitFlags::HANDLE_KILLPRIV_V2) {
            Clearing::WhereMarked
        } else if agreed(InitFlags::HANDLE_KILLPRIV) {
            Clearing::Always
        } else {
            Clearing::ByKernel
        }
    }

    /// Whether this write clears set-id bits.
    pub(crate) fn write_clears_set_id(&self, cx: &Context<'_>, args: &Write<'_>) -> bool {
        match self.clearing() {
            Clearing::WhereMarked => args.kill_suidgid,
            Clearing::ByKernel if args.from_cache => false,
            // Nobody knows whose pages these are.
            Clearing::Always if args.from_cache => true,
            Clearing::Always | Clearing::ByKernel => {
                let file = self.opened(args.handle).and_then(|opened| opened.file());
                let mode = file.and_then(|file| rustix::fs::fstat(&*file));
                mode.map_or(true, |stat| has_set_id(stat.st_mode)) && !keeps_set_id(cx)
            }
        }
    }

    /// Whether this truncation or change of owner clears set-id bits.
    pub(crate) fn change_clears_set_id(&self, cx: &Context<'_>, change: &SetAttr) -> bool {
        match self.clearing() {
            Clearing::WhereMarked => change.kill_suidgid,
            Clearing::ByKernel => false,
            Clearing::Always => {
                let concerned =
                    change.size_bytes.is_some() || change.uid.is_some() || change.gid.is_some();
                concerned && !keeps_set_id(cx)
            }
        }
    }

    /// Whether opening with `O_TRUNC` clears set-id bits; `marked` is the kernel's word.
    pub(crate) fn open_clears_set_id(&self, cx: &Context<'_>, flags: i32, marked: bool) -> bool {
        match self.clearing() {
            Clearing::WhereMarked => marked,
            _ => flags & libc::O_TRUNC != 0 && !keeps_set_id(cx),
        }
    }
}
