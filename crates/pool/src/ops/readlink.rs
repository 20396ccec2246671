//! READLINK and ACCESS.

use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;
use strandfs_fuse::{FileKind, NodeId};
use strandfs_options::Function;

use crate::base::error::Result;
use crate::base::sys;
use crate::directory::{Directories, symlinkify};
use crate::ops::change;

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
        let located = change::locate_by(pool, &view, &node, view.policy(Function::Readlink))?;
        let room = Vec::with_capacity(256);
        rustix::fs::readlinkat(located.fd(), c"", room)?.into_bytes()
    };
    out.get_mut(..target.len())
        .ok_or(Errno::NAMETOOLONG)?
        .copy_from_slice(&target);
    Ok(target.len())
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
