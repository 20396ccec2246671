//! Tells the preload library where the branch file of an open lies.
//!
//! A program that works on the branch file itself writes to it without the server's knowledge.
//! The mover must therefore leave such a file where it is: what was told is remembered for as long
//! as the server lives (no call says when the program's last descriptor is gone).

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use strandfs_fuse::{Context, Handle, IoctlReply};
use strandfs_options::CacheFiles;
use strandfs_preload_abi::{BranchFile, PATH_BYTES, VERSION};
use zerocopy::IntoBytes;

use crate::base::error::Result;
use crate::base::sys;
use crate::ops::open;
use crate::state::State;
use crate::state::open_file::IoMode;
use crate::state::preload_told::Told;

/// Answers the preload library's question about an open file.
///
/// # Errors
/// ENOTTY where the option `preload` is off, EALREADY for a file in passthrough (nothing is to
/// be gained), EBUSY where the page cache of the pool would not see what the program writes, or keeps
/// what others have written, ENAMETOOLONG, ESTALE for a removed file, ENOSPC for too many files told.
pub(crate) fn tell_branch_file(
    pool: &State,
    cx: &Context<'_>,
    handle: Handle,
    out: &mut [u8],
) -> Result<IoctlReply> {
    let view = pool.view();
    if !view.settings.passthrough.preload || view.settings.requests.nullrw {
        return Err(Errno::NOTTY.into());
    }
    let opened = open::opened(pool, handle)?;
    // Where it is told to be it must stay from now on.
    let _held = opened.node.share_move_lock(cx);
    let open = opened.node.open.lock();
    let state = open
        .as_ref()
        .map(|state| (state.mode, state.handles().len()));
    drop(open);
    let (mode, handles) = state.ok_or(Errno::BADF)?;
    if matches!(mode, IoMode::Passthrough(_)) {
        return Err(Errno::ALREADY.into());
    }
    // Readers, too: what others have stored through a mapping may be in the page cache alone.
    if view.settings.caching.writeback || view.settings.caching.files != CacheFiles::Off {
        return Err(Errno::BUSY.into());
    }
    let file = opened.file()?;
    let found = sys::statx_fd(file.as_fd())?;
    if found.stx_nlink == 0 {
        return Err(Errno::STALE.into());
    }
    let path = sys::path_of(file.as_fd())?;
    let bytes = path.as_os_str().as_bytes();
    let mut answer = BranchFile {
        version: VERSION,
        path_bytes: u32::try_from(bytes.len()).map_err(|_| Errno::NAMETOOLONG)?,
        device_major: found.stx_dev_major,
        device_minor: found.stx_dev_minor,
        inode: found.stx_ino,
        open_elsewhere: u32::from(handles > 1),
        ..BranchFile::EMPTY
    };
    if bytes.len() >= PATH_BYTES {
        return Err(Errno::NAMETOOLONG.into());
    }
    let place = answer.path.get_mut(..bytes.len());
    place.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(bytes);
    let room = out.get_mut(..size_of::<BranchFile>());
    let told = Told::of(&found);
    let room = room.ok_or(Errno::INVAL)?;
    if !pool.preload_told.remember(told) {
        return Err(Errno::NOSPC.into());
    }
    room.copy_from_slice(answer.as_bytes());
    Ok(IoctlReply {
        result: 0,
        output_bytes: size_of::<BranchFile>(),
    })
}
