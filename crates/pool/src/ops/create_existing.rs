//! CREATE of a file that appeared since the kernel looked.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use strandfs_fuse::{Context, Create, Entry, FileKind, Handle, Open, OpenReply};

use crate::base::error::{Error, Result};
use crate::base::sys;
use crate::directory::{forget, lookup};
use crate::ops::{Ops, open};
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
        if let Some(node) = pool.nodes.get(entry.node) {
            forget::unref(pool, &node, 1);
        }
        error
    };
    match kind_of_mode(entry.attr.mode) {
        FileKind::Regular => {}
        FileKind::Directory => return Err(undo(Errno::ISDIR.into())),
        // The kernel believed the name free: let it look again and open what is there.
        _ => return Err(undo(Errno::STALE.into())),
    }
    let wanted = Open {
        flags: args.flags & !(libc::O_CREAT | libc::O_EXCL),
        kill_suidgid: args.kill_suidgid,
    };
    let open = open::open(pool, cx, entry.node, &wanted).map_err(undo)?;
    Ok((entry_of_opened(pool, entry, open.handle), open))
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
