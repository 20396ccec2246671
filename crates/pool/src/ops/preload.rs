//! Tells the preload library where the branch file of an open lies.
//!
//! A program that works on the branch file itself writes to it without the server's knowledge.
//! The mover must therefore leave such a file where it is: what was told is remembered for as long
//! as the server lives (no call says when the program's last descriptor is gone).

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::Statx;
use rustix::io::Errno;
use strandfs_fuse::{Context, Handle, IoctlReply};
use strandfs_options::CacheFiles;
use strandfs_preload_abi::{BranchFile, PATH_BYTES, VERSION};
use zerocopy::IntoBytes;

use crate::base::error::Result;
use crate::base::sys;
use crate::pool::Pool;
use crate::state::open_file::IoMode;

/// Files that can be remembered, about 64 MiB of memory. Beyond it no further file is told.
const MOST_TOLD: usize = 1 << 20;

/// A branch file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Told {
    device: (u32, u32),
    inode: u64,
}

impl Told {
    fn of(stat: &Statx) -> Told {
        Told {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
        }
    }
}

/// The files whose place was told.
#[derive(Default)]
pub(crate) struct PreloadTold(papaya::HashSet<Told>);

impl PreloadTold {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the file of this inode was told.
    pub(crate) fn knows(&self, stat: &Statx) -> bool {
        self.0.pin().contains(&Told::of(stat))
    }

    /// Remembers it; false if there are too many.
    fn remember(&self, told: Told) -> bool {
        let told_files = self.0.pin();
        told_files.contains(&told) || (told_files.len() < MOST_TOLD && told_files.insert(told))
    }
}

impl Pool {
    /// Answers the preload library's question about an open file.
    ///
    /// # Errors
    /// ENOTTY where the option `preload` is off, EALREADY for a file in passthrough (nothing is to
    /// be gained), EBUSY where the page cache of the pool would not see what the program writes,
    /// ENAMETOOLONG, ESTALE for a removed file, ENOSPC for too many files told.
    pub(crate) fn tell_branch_file(
        &self,
        cx: &Context<'_>,
        handle: Handle,
        out: &mut [u8],
    ) -> Result<IoctlReply> {
        let view = self.view();
        if !view.settings.preload || view.settings.nullrw {
            return Err(Errno::NOTTY.into());
        }
        let opened = self.opened(handle)?;
        // Where it is told to be it must stay from now on.
        let _held = opened.node.share_move_lock(cx);
        let mode = opened.node.open.lock().as_ref().map(|state| state.mode);
        if matches!(mode, Some(IoMode::Passthrough(_))) {
            return Err(Errno::ALREADY.into());
        }
        let cached = view.settings.cache_files != CacheFiles::Off;
        if view.settings.cache_writeback || (cached && opened.writable) {
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
        if !self.preload_told.remember(told) {
            return Err(Errno::NOSPC.into());
        }
        room.copy_from_slice(answer.as_bytes());
        Ok(IoctlReply {
            result: 0,
            output_bytes: size_of::<BranchFile>(),
        })
    }
}
