//! Open files: every handle, and per node the mode all its opens share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{BackingId, Handle};

use crate::branch::Branch;
use crate::node::Node;
use crate::range_locks::RangeLocks;
use crate::sys;

/// One open file description of the pool.
pub struct OpenFile {
    /// The node it is of.
    pub node: Arc<Node>,
    /// The branch that holds the file, and the file there; swapped, in every handle of the node at
    /// once, when the file moves, and taken out at release: the table frees its entries some time
    /// later, the file must not wait, and a branch that left the pool would stay in use. Held for
    /// the time of a copy only: cheaper than what can be read without a lock, and then has to find
    /// all its readers at every open and close.
    pub place: Mutex<Option<(Arc<Branch>, Arc<OwnedFd>)>>,
    /// The kernel was told not to send FLUSH for it.
    pub no_flush: bool,
    /// Opened for writing.
    pub writable: bool,
}

impl OpenFile {
    /// What locks know it by, for as long as it lives.
    pub fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// The branch file.
    ///
    /// # Errors
    /// EBADF after release.
    pub fn file(&self) -> sys::Result<Arc<OwnedFd>> {
        let place = self.place.lock();
        place
            .as_ref()
            .map(|(_, file)| Arc::clone(file))
            .ok_or(Errno::BADF)
    }

    /// The branch file and its branch; none after release.
    pub fn opened_on(&self) -> Option<(Arc<Branch>, Arc<OwnedFd>)> {
        self.place.lock().clone()
    }

    /// Puts another file in the place of the present one. Not into a handle that is released
    /// meanwhile: the file would stay open.
    pub fn move_to(&self, branch: &Arc<Branch>, file: OwnedFd) {
        let mut place = self.place.lock();
        let old = match &mut *place {
            Some(place) => Some(std::mem::replace(
                place,
                (Arc::clone(branch), Arc::new(file)),
            )),
            None => None,
        };
        drop(place);
        // Closing may take its time.
        drop(old);
    }
}

/// How the I/O of a node's opens goes, fixed from the first open to the last release: the kernel
/// refuses (EIO) to mix passthrough with cached or plain direct I/O on one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// To the backing file; opens the options exclude use the hybrid mode on the same id.
    Passthrough(BackingId),
    /// Through the server, by the page cache or past it as `cache.files` says for each open.
    Server,
}

/// What a node keeps while it is open.
pub struct OpenState {
    /// The mode of all opens.
    pub mode: IoMode,
    /// Every open handle.
    pub handles: SmallVec<[Weak<OpenFile>; 1]>,
    /// POSIX locks, by owner.
    pub locks: RangeLocks,
}

impl OpenState {
    /// No handles yet.
    pub fn new(mode: IoMode) -> Self {
        OpenState {
            mode,
            handles: SmallVec::new(),
            locks: RangeLocks::default(),
        }
    }

    /// The branch file of some handle.
    pub fn any_file(&self) -> Option<Arc<OwnedFd>> {
        self.any_open().map(|(_, file)| file)
    }

    /// The branch file of some handle, and its branch, which may have left the pool since.
    pub fn any_open(&self) -> Option<(Arc<Branch>, Arc<OwnedFd>)> {
        self.handles
            .iter()
            .find_map(|handle| handle.upgrade()?.opened_on())
    }
}

/// All handles by number. Reads take no lock.
pub struct OpenFiles {
    files: papaya::HashMap<u64, Arc<OpenFile>>,
    next: AtomicU64,
}

impl Default for OpenFiles {
    fn default() -> Self {
        OpenFiles {
            files: papaya::HashMap::new(),
            next: AtomicU64::new(1),
        }
    }
}

impl OpenFiles {
    /// Gives the file a handle.
    pub fn insert(&self, file: Arc<OpenFile>) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.files.pin().insert(handle, file);
        Handle(handle)
    }

    /// The file of a handle.
    pub fn get(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        self.files.pin().get(&handle.0).cloned()
    }

    /// Ends a handle.
    pub fn remove(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        self.files.pin().remove(&handle.0).cloned()
    }

    /// Whether some open file is so.
    pub fn any(&self, mut is_so: impl FnMut(&OpenFile) -> bool) -> bool {
        self.files.pin().iter().any(|(_, file)| is_so(file))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}
