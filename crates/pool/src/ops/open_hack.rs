//! `nfsopenhack`: opening a read-only file for writing where the branch refuses it to the server.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;
use strandfs_options::NfsOpenHack;

use crate::base::branch::Branch;
use crate::base::error::{Error, Result};
use crate::base::open::reopen;
use crate::base::sys;
use crate::directory::{Directories, locate};
use crate::state::node::Node;
use crate::state::view::View;
use crate::state::{State, paths};

/// Write permission for anybody.
const WRITE: u32 = 0o222;
/// Another open of the same file may take the permission away between its being given and used.
const TRIES: usize = 8;

/// Opens a file that the branch has just refused to open with these flags.
///
/// # Errors
/// EACCES if the option does not cover the file or does not help.
pub(crate) fn open_refused(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    flags: OFlags,
) -> Result<(Arc<Branch>, OwnedFd, Statx)> {
    let covered = match view.settings.presentation.nfsopenhack {
        NfsOpenHack::Off => false,
        NfsOpenHack::Git => is_below_git(pool, node),
        NfsOpenHack::All => true,
    };
    if !covered || !flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
        return Err(Errno::ACCESS.into());
    }
    let located = locate::locate(pool, node)?;
    for _ in 0..TRIES {
        match open_made_writable(located.fd(), flags) {
            Ok((file, stat)) => return Ok((located.branch, file, stat)),
            Err(Error {
                errno: Errno::ACCESS,
                ..
            }) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::ACCESS.into())
}

fn is_below_git(pool: &State, node: &Arc<Node>) -> bool {
    let path = paths::relative_path(pool, node).unwrap_or_default();
    path.parent()
        .is_some_and(|parent| parent.iter().any(|name| name == ".git"))
}

/// One try: writable for its owner, opened, as before again. Tells the attributes it had.
fn open_made_writable(file: BorrowedFd<'_>, flags: OFlags) -> Result<(OwnedFd, Statx)> {
    let stat = sys::statx_fd(file)?;
    let mode = u32::from(stat.stx_mode);
    if mode & WRITE != 0 {
        // Made writable by another open just now, or writable for someone who is not the server.
        return Ok(reopen(file, flags).map(|opened| (opened, stat))?);
    }
    sys::want_fsetid(true)?;
    let set_mode = |bits: u32| {
        let path = sys::ProcPath::new(file);
        let bits = Mode::from_raw_mode(bits & 0o7777);
        rustix::fs::chmodat(rustix::fs::CWD, path.as_c_str(), bits, AtFlags::empty())
    };
    set_mode(mode | libc::S_IWUSR).map_err(|_| Errno::ACCESS)?;
    let opened = reopen(file, flags);
    if let Err(errno) = set_mode(mode) {
        tracing::error!(mode = format!("{mode:o}"), %errno, "nfsopenhack: a file made writable for opening could not be made read-only again");
    }
    Ok(opened.map(|opened| (opened, stat))?)
}
