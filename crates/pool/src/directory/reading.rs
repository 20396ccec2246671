//! Reading directories through the descriptors that are kept of them, instead of a further one.
//!
//! Where a directory that stays open for reading costs nobody anything, it is opened so. Who reads
//! it goes back to its start first, as `rewinddir(3)` does, which shows it as it is now, and has it
//! to itself meanwhile; another one opens it anew.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, RawDir, SeekFrom};
use rustix::io::Errno;
use strandfs_fuse::FileKind;

use crate::base::branch::Branch;
use crate::base::error::Result;
use crate::base::open::{open_dir, open_for_reading, open_readable};
use crate::base::sys;
use crate::directory::listing::Listing;
use crate::state::dir_cache::DirCache;
use crate::state::node::DirEntry;
use crate::state::view::View;

/// Room for one `getdents64`.
pub(crate) const DENTS_BYTES: usize = 64 << 10;

/// A directory to be read from its start, by nobody else.
pub(crate) enum DirReader<'a> {
    /// Through the descriptor that is kept.
    Kept(Turn<'a>),
    /// Through one of its own.
    Anew(OwnedFd),
}

/// Until it is dropped, nobody else reads through the descriptor.
pub(crate) struct Turn<'a> {
    fd: BorrowedFd<'a>,
    memory: &'a DirCache,
}

impl DirEntry {
    /// Begins to read the directory.
    ///
    /// # Errors
    /// Those of `open(2)`, where it has to be opened anew.
    pub(crate) fn reader(&self) -> sys::Result<DirReader<'_>> {
        if self.readable && self.memory.begin_reading() {
            let turn = Turn {
                fd: self.fd.as_fd(),
                memory: &self.memory,
            };
            if rustix::fs::seek(turn.fd, SeekFrom::Start(0)).is_ok() {
                return Ok(DirReader::Kept(turn));
            }
        }
        open_for_reading(self.fd.as_fd()).map(DirReader::Anew)
    }
}

impl AsFd for DirReader<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            DirReader::Kept(turn) => turn.fd,
            DirReader::Anew(fd) => fd.as_fd(),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.memory.end_reading();
    }
}

/// Opens directory `name` in `parent` on a branch, to be kept; whether it can be read through that
/// descriptor comes with it.
///
/// # Errors
/// Those of `open(2)`: ENOENT, ENOTDIR, ELOOP for a symlink.
pub(crate) fn open_to_keep(
    view: &View,
    branch: &Branch,
    parent: &DirEntry,
    name: &OsStr,
) -> sys::Result<(OwnedFd, bool)> {
    let dir = parent.fd.as_fd();
    if may_stay_open(view, branch, parent) {
        match open_readable(dir, name) {
            Ok(fd) => return Ok((fd, true)),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => return Err(errno),
            // Not the server's own, or not for it to read: it can be looked into all the same.
            Err(_) => {}
        }
    }
    Ok((open_dir(dir, name)?, false))
}

/// Whether a directory is on the branch's own filesystem, and may stay open for reading there.
fn may_stay_open(view: &View, branch: &Branch, dir: &DirEntry) -> bool {
    let own = |root: &DirEntry| root.identity.volume == dir.identity.volume;
    branch.open_dirs_are_free() && view.root.on(branch.id).is_some_and(own)
}

/// The names in a directory on one branch.
///
/// # Errors
/// Those of reading it.
pub(crate) fn names_in(entry: &DirEntry) -> Result<Vec<OsString>> {
    let mut listing = Listing::default();
    let mut room = Vec::with_capacity(DENTS_BYTES);
    let reader = entry.reader()?;
    read_names(reader.as_fd(), &mut listing, &mut room)?;
    let names = (0..listing.len()).filter_map(|index| listing.get(index));
    Ok(names.map(|(_, name)| name.to_owned()).collect())
}

/// Adds the names in a directory, with the numbers they have there. Asks nothing of the pool, so
/// that any thread can do it. Reads on until nothing more comes: a read that leaves room in `room`
/// may have been cut short by a signal.
pub(crate) fn read_names(
    fd: BorrowedFd<'_>,
    listing: &mut Listing,
    room: &mut Vec<u8>,
) -> Result<()> {
    let mut entries = RawDir::new(fd, room.spare_capacity_mut());
    while let Some(found) = entries.next() {
        let found = found?;
        let name = found.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let kind = file_kind(found.file_type());
        listing.push(OsStr::from_bytes(name), found.ino(), kind);
    }
    Ok(())
}

fn file_kind(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => return None,
    })
}
