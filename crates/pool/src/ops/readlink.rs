//! READLINK and ACCESS.

use std::sync::Arc;

use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;
use strandfs_fuse::{FileKind, NodeId};
use strandfs_options::Function;

use crate::base::error::{Error, Result};
use crate::base::sys;
use crate::directory::locate::{self, Located};
use crate::directory::{Directories, symlinkify};
use crate::ops::change;
use crate::state::node::Node;
use crate::state::view::View;

/// READLINK.
pub(crate) fn readlink(pool: &Directories, id: NodeId, out: &mut [u8]) -> Result<usize> {
    let node = pool.node(id)?;
    if node.kind != FileKind::Symlink {
        return Err(Errno::INVAL.into());
    }
    let view = pool.view();
    let target = if node.is_symlinkified() {
        symlinkify::place_on_branch(pool, &view, &node)?
    } else {
        let located = link_by_policy(pool, &view, &node)?;
        let room = Vec::with_capacity(256);
        rustix::fs::readlinkat(located.fd(), c"", room)?.into_bytes()
    };
    out.get_mut(..target.len())
        .ok_or(Errno::NAMETOOLONG)?
        .copy_from_slice(&target);
    Ok(target.len())
}

/// The link whose text is told. The kernel decides whether the one that is shown may be followed, by its owner
/// (`fs.protected_symlinks`): another copy has to be the same user's.
fn link_by_policy(pool: &Directories, view: &View, node: &Arc<Node>) -> Result<Located> {
    let rule = view.policy(Function::Readlink);
    let located = change::locate_by(pool, view, node, rule)?;
    if change::is_of_shown_copy(view, rule) {
        return Ok(located);
    }
    let shown = locate::locate(pool, node)?;
    let owner = |link: &Located| Ok::<_, Error>(sys::statx_fd(link.fd())?.stx_uid);
    match owner(&shown)? == owner(&located)? {
        true => Ok(located),
        false => Ok(shown),
    }
}

/// ACCESS, asked only with `kernel-permissions-check=false`: what the server itself may do.
pub(crate) fn access(pool: &Directories, id: NodeId, mask: u32) -> Result<()> {
    let node = pool.node(id)?;
    let view = pool.view();
    let located = change::locate_by(pool, &view, &node, view.policy(Function::Access))?;
    let mode = Access::from_bits_truncate(mask);
    let path = sys::ProcPath::new(located.fd());
    Ok(rustix::fs::accessat(
        rustix::fs::CWD,
        path.as_c_str(),
        mode,
        AtFlags::EACCESS,
    )?)
}
