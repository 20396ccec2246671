//! CREATE of a file that appeared since the kernel looked.
//!
//! The kernel takes the file for new, and asks nobody's permission. It is told to look again (ESTALE),
//! which it does once for each `open(2)`, and then opens and checks what it finds. Should the file go and
//! come once more meanwhile, the server judges the caller itself: no program is to see ESTALE.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strandfs_fuse::{Context, Create, Entry, FileKind, Handle, NodeId, Open, OpenReply};

use crate::base::error::{Error, Result};
use crate::base::rank::{self, Mutex};
use crate::base::sys;
use crate::directory::{forget, locate, lookup};
use crate::ops::{Ops, hidden_copies, open};
use crate::state::State;
use crate::state::attr::file_attr;
use crate::state::identity::kind_of_mode;
use crate::state::node::Node;

/// The file exists after all (made behind the mount, or by another client).
pub(super) fn open_existing(
    pool: &Ops,
    cx: &Context<'_>,
    parent: &Arc<Node>,
    args: &Create<'_>,
    exclusive: bool,
) -> Result<(Entry, OpenReply)> {
    if exclusive {
        return Err(Errno::EXIST.into());
    }
    let entry = lookup::lookup(pool, parent.id, args.name)?;
    let undo = |error: Error| {
        forget::take_back(pool, &entry);
        error
    };
    match kind_of_mode(entry.attr.mode) {
        FileKind::Directory => return Err(undo(Errno::ISDIR.into())),
        FileKind::Regular if pool.sent_to_look.was_sent(cx.pid) => {
            may_open(pool, cx, entry.node, args.flags).map_err(undo)?;
        }
        _ => {
            pool.sent_to_look.send(cx.pid);
            return Err(undo(Error::expected(Errno::STALE)));
        }
    }
    let wanted = Open {
        flags: args.flags & !(libc::O_CREAT | libc::O_EXCL),
        kill_suidgid: args.kill_suidgid,
    };
    let open = open::open(pool, cx, entry.node, &wanted).map_err(undo)?;
    Ok((entry_of_opened(pool, entry, open.handle), open))
}

/// The threads that were told to look again.
#[derive(Default)]
pub(crate) struct SentToLook {
    since_ms: Mutex<HashMap<u32, u64>, { rank::SENT_TO_LOOK }>,
}

impl SentToLook {
    /// By then the kernel has come back, or has found the file.
    const AWAITED_MS: u64 = 10_000;
    /// So many threads at once are no accident: the oldest are forgotten, and looked at as new.
    const THREADS_MAX: usize = 4096;

    /// Notes a thread; one whose number is not known is always new.
    fn send(&self, thread: u32) {
        if thread == 0 {
            return;
        }
        let now_ms = sys::mono_coarse_ms();
        let mut since_ms = self.since_ms.lock();
        if since_ms.len() >= SentToLook::THREADS_MAX {
            since_ms.retain(|_, since| now_ms.saturating_sub(*since) < SentToLook::AWAITED_MS);
            // Else whoever has that many threads would have all others see ESTALE.
            let oldest = since_ms.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(thread, _)| *thread)
                && since_ms.len() >= SentToLook::THREADS_MAX
            {
                since_ms.remove(&oldest);
            }
        }
        since_ms.insert(thread, now_ms);
    }

    /// Whether a thread is back from that.
    fn was_sent(&self, thread: u32) -> bool {
        let since = self.since_ms.lock().remove(&thread);
        since.is_some_and(|since| {
            sys::mono_coarse_ms().saturating_sub(since) < SentToLook::AWAITED_MS
        })
    }
}

/// Whether the caller may open a file so, as the kernel would judge.
///
/// # Errors
/// EACCES if not.
fn may_open(pool: &Ops, cx: &Context<'_>, id: NodeId, flags: i32) -> Result<()> {
    let node = pool.node(id)?;
    let located = locate::locate(pool, &node)?;
    let stat = sys::statx_fd(located.fd())?;
    let mut wanted = OFlags::from_bits_retain(flags as u32);
    if wanted.contains(OFlags::TRUNC) && wanted & OFlags::RWMODE == OFlags::RDONLY {
        wanted |= OFlags::RDWR;
    }
    match hidden_copies::may_open(cx, located.fd(), &stat, wanted) {
        true => Ok(()),
        false => Err(Errno::ACCESS.into()),
    }
}

/// The entry of a file that was there and is open now, perhaps truncated by that. The kernel takes
/// the attributes in an answer to CREATE for newer than all it knows, also than a write that it
/// has seen meanwhile: they are not to be kept.
fn entry_of_opened(pool: &State, found: Entry, handle: Handle) -> Entry {
    let opened = pool.files.get(handle);
    let attr = opened.and_then(|opened| {
        let stat = sys::statx_fd(opened.file().ok()?.as_fd()).ok()?;
        let mut attr = file_attr(&stat, opened.node.ino);
        pool.view().tell(&opened.node, &mut attr);
        Some(attr)
    });
    Entry {
        attr: attr.unwrap_or(found.attr),
        attr_valid: Duration::ZERO,
        ..found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_once_when_it_is_back_however_many_others_were_sent() {
        let sent = SentToLook::default();
        let others = u32::try_from(SentToLook::THREADS_MAX).unwrap() + 10;
        (1..=others).for_each(|thread| sent.send(thread));
        sent.send(others + 1);
        assert!(sent.was_sent(others + 1) && !sent.was_sent(others + 1));
        assert!(sent.since_ms.lock().len() < SentToLook::THREADS_MAX);
        sent.send(0);
        assert!(!sent.was_sent(0));
    }
}
