//! CREATE of a file that appeared since the kernel looked.
//!
//! The kernel takes the file for new, and asks nobody's permission. It is told to look again (ESTALE),
//! which it does once for each `open(2)`, and then opens and checks what it finds. Should the file go and
//! come once more meanwhile, the server judges the caller itself: no program is to see ESTALE.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strandfs_fuse::{Context, Create, Entry, FileKind, Handle, NodeId, Open, OpenReply};

use crate::base::error::{Error, Result};
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
