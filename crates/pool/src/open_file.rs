//! Open files: every handle, and per node the mode all its opens share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{BackingId, Handle};

use crate::at_once::AtOnce;
use crate::branch::Branch;
use crate::node::Node;
use crate::range_locks::NodeLocks;
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
    place: Mutex<Option<Place>>,
    /// The kernel was told not to send FLUSH for it.
    pub no_flush: bool,
    /// Opened for writing.
    pub writable: bool,
}

/// Where an open file is.
struct Place {
    branch: Arc<Branch>,
    file: Arc<OwnedFd>,
    /// Once somebody wanted to know.
    at_once: Option<AtOnce>,
}

impl Place {
    fn new(branch: Arc<Branch>, file: OwnedFd) -> Self {
        Self {
            branch,
            file: Arc::new(file),
            at_once: None,
        }
    }
}

impl OpenFile {
    /// A handle of `node`, whose file is open as `file` on `branch`.
    pub fn new(
        node: Arc<Node>,
        branch: Arc<Branch>,
        file: OwnedFd,
        no_flush: bool,
        writable: bool,
    ) -> Self {
        Self {
            node,
            place: Mutex::new(Some(Place::new(branch, file))),
            no_flush,
            writable,
        }
    }

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
        let place = place.as_ref().ok_or(Errno::BADF)?;
        Ok(Arc::clone(&place.file))
    }

    /// The branch file and its branch; none after release.
    pub fn opened_on(&self) -> Option<(Arc<Branch>, Arc<OwnedFd>)> {
        let place = self.place.lock();
        let place = place.as_ref()?;
        Some((Arc::clone(&place.branch), Arc::clone(&place.file)))
    }

    /// The branch file, and how its data can be had without waiting; none after release. Asks the
    /// kernel the first time.
    pub fn at_once(&self) -> Option<(AtOnce, Arc<OwnedFd>)> {
        let mut place = self.place.lock();
        let place = place.as_mut()?;
        let known = place.at_once;
        let how = known.unwrap_or_else(|| AtOnce::of(&place.branch, &place.file));
        place.at_once = Some(how);
        Some((how, Arc::clone(&place.file)))
    }

    /// Notes that this file, unless it has moved since, is not what it was taken for.
    pub fn learn(&self, of: &Arc<OwnedFd>, how: AtOnce) {
        let mut place = self.place.lock();
        if let Some(place) = place.as_mut().filter(|place| Arc::ptr_eq(&place.file, of)) {
            place.at_once = Some(how);
        }
    }

    /// Takes the branch file out, at release.
    pub fn take(&self) -> Option<Arc<OwnedFd>> {
        self.place.lock().take().map(|place| place.file)
    }

    /// Puts another file in the place of the present one. Not into a handle that is released
    /// meanwhile: the file would stay open.
    pub fn move_to(&self, branch: &Arc<Branch>, file: OwnedFd) {
        let mut place = self.place.lock();
        let new = || Place::new(Arc::clone(branch), file);
        let old = place.as_mut().map(|place| std::mem::replace(place, new()));
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
    /// All locks, once there was one: closes must be reported from then on.
    pub locks: Option<Arc<NodeLocks>>,
}

impl OpenState {
    /// No handles yet.
    pub fn new(mode: IoMode) -> Self {
        OpenState {
            mode,
            handles: SmallVec::new(),
            locks: None,
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
