//! Files that were made here, and are removed if nothing comes of them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use strandfs_fuse::Errno;

/// How long a server that has ended may keep its file, and how often is looked.
const RELEASE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// Which file it is: its device and inode.
pub type FileId = (u64, u64);

/// Which file is open here.
pub(crate) fn id_of(file: impl AsFd) -> Option<FileId> {
    let stat = rustix::fs::fstat(file).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Removes what is at `path`, if it is the file `id`: another may have its name by now.
pub(crate) fn remove_only(path: &Path, id: FileId) {
    let found = rustix::fs::lstat(path).map(|stat| (stat.st_dev, stat.st_ino));
    if found == Ok(id) {
        // An error of this does not matter beside the one that brought us here.
        let _ = rustix::fs::unlink(path);
    }
}

/// A backing file that a server has made, kept open: so its inode stands for no other file.
pub struct Made {
    path: PathBuf,
    file: OwnedFd,
    id: FileId,
}

impl Made {
    /// The file at `path`, if it is `id`.
    pub fn find(path: &Path, id: FileId) -> Option<Made> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let path = path.to_owned();
        (id_of(&file) == Some(id)).then_some(Made { path, file, id })
    }

    /// Removes it, unless another server has it by now. The kernel lets go of what a server had in its ring a
    /// moment after the server has ended (`io_ring_exit_work` in io_uring/io_uring.c).
    pub fn remove(self) {
        let deadline = Instant::now() + RELEASE;
        let try_lock = || rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive);
        while let Err(errno) = try_lock() {
            if errno != Errno::WOULDBLOCK || Instant::now() > deadline {
                return;
            }
            thread::sleep(LOOK);
        }
        remove_only(&self.path, self.id);
    }
}
