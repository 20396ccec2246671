//! An open file, and per node the mode all its opens share.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::BackingId;

use crate::base::branch::{Branch, BranchId};
use crate::base::calls::{Call, Calls};
use crate::base::nowait::AtOnce;
use crate::base::shares::Share;
use crate::base::sys;
use crate::state::descriptor::Descriptor;
use crate::state::held_writers::Enrolment;
use crate::state::node::Node;
use crate::state::range_locks::NodeLocks;

/// Who opened a file, as the request said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Opener {
    /// The thread, in the server's pid namespace; 0 if invisible there.
    pub thread: u32,
    /// The user; `u32::MAX` where the kernel does not say.
    pub uid: u32,
}

/// One open file description of the pool.
pub struct OpenFile {
    /// The node it is of.
    pub node: Arc<Node>,
    /// The branch that holds the file, and the file there; swapped, in every handle of the node at
    /// once, when the file moves, and taken out at release: the table frees its entries some time
    /// later, the file must not wait, and a branch that left the pool would stay in use. Held for
    /// the time of a copy only: cheaper than what can be read without a lock, and then has to find
    /// all its readers at every open and close.
    place: Mutex<Option<BranchFile>>,
    /// The kernel was told not to send FLUSH for it.
    pub no_flush: bool,
    /// Opened for writing.
    pub writable: bool,
    /// By whom; others may have it by now.
    pub(crate) opener: Opener,
    /// Its writes can be held.
    enrolment: OnceLock<Enrolment>,
    /// What its branch file said of bytes that did not reach the disk, for the next `fsync`; else 0.
    unreported: AtomicI32,
}

/// Where an open file is.
pub(crate) struct BranchFile {
    branch: Arc<Branch>,
    descriptor: Descriptor,
    /// Once somebody wanted to know.
    at_once: Option<AtOnce>,
    /// Of the user who opened it.
    _share: Share,
}

impl BranchFile {
    /// A file just opened on `branch`, in the share of who did so.
    pub(crate) fn new(branch: Arc<Branch>, descriptor: Descriptor, share: Share) -> Self {
        Self {
            branch,
            descriptor,
            at_once: None,
            _share: share,
        }
    }

    /// The branch file.
    ///
    /// # Errors
    /// See [`Descriptor::get`].
    pub(crate) fn file(&mut self) -> sys::Result<Arc<OwnedFd>> {
        self.descriptor.get()
    }

    /// Closes the file, whose pages may not be wanted.
    pub(crate) fn close(mut self, drop_cache: bool) {
        if !drop_cache {
            return;
        }
        let Ok(file) = self.file() else { return };
        // The first starts writing what is not written yet, the second drops what is by then.
        for _ in 0..2 {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

impl OpenFile {
    /// A handle of `node`, whose file is open at `place`.
    pub(crate) fn new(
        node: Arc<Node>,
        place: BranchFile,
        no_flush: bool,
        writable: bool,
        opener: Opener,
    ) -> Self {
        Self {
            node,
            place: Mutex::new(Some(place)),
            no_flush,
            writable,
            opener,
            enrolment: OnceLock::new(),
            unreported: AtomicI32::new(0),
        }
    }

    /// Its writes can be held until it is released.
    pub(crate) fn enrolled(&self, enrolment: Enrolment) {
        let _ = self.enrolment.set(enrolment);
    }

    /// What locks know it by, for as long as it lives.
    pub fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// The branch file.
    ///
    /// # Errors
    /// EBADF after release; EMFILE.
    pub fn file(&self) -> sys::Result<Arc<OwnedFd>> {
        self.place.lock().as_mut().ok_or(Errno::BADF)?.file()
    }

    /// Makes a call on the branch file, and counts it as one of the branch's.
    ///
    /// # Errors
    /// EBADF after release; EMFILE; those of the call.
    pub(crate) fn call<T>(
        &self,
        call: Call,
        make: impl FnOnce(&Arc<OwnedFd>) -> sys::Result<T>,
    ) -> sys::Result<T> {
        let file = self.file()?;
        let began = Instant::now();
        let outcome = make(&file);
        let took = began.elapsed();
        let error = outcome.as_ref().err().map(|errno| (*errno).into());
        self.count(|calls| calls.note(call, took, error));
        outcome
    }

    /// Waits for what is being written of the branch file. What has gone wrong in that the kernel
    /// tells once: it is kept for the next `fsync`.
    ///
    /// # Errors
    /// That of the disk, as long as no `fsync` has told it; EMFILE.
    pub(crate) fn wait_for_writeback(&self) -> sys::Result<()> {
        let file = match self.file() {
            Err(Errno::BADF) => return Ok(()),
            other => other?,
        };
        match sys::wait_for_writeback(file.as_fd()) {
            // A filesystem that has nothing to wait for.
            Ok(()) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::SPIPE) => {}
            Err(errno) => {
                let code = errno.raw_os_error();
                self.unreported.store(code, Ordering::Release);
            }
        }
        match self.unreported.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(code)),
        }
    }

    /// Whether an error is kept for the next `fsync`.
    pub(crate) fn has_unreported(&self) -> bool {
        self.unreported.load(Ordering::Acquire) != 0
    }

    /// The outcome of an `fsync`, with what is kept for it.
    pub(crate) fn reported(&self, synced: sys::Result<()>) -> sys::Result<()> {
        match self.unreported.swap(0, Ordering::AcqRel) {
            0 => synced,
            code => synced.and(Err(Errno::from_raw_os_error(code))),
        }
    }

    /// Counts something as the branch's. Where the branch would be had first and kept, all threads at
    /// work on it would write to the one count of those who keep it. A file that has moved meanwhile
    /// counts for the branch where it is.
    pub(crate) fn count(&self, count: impl FnOnce(&Calls)) {
        if let Some(place) = self.place.lock().as_ref() {
            count(place.branch.health().calls());
        }
    }

    /// The branch; none after release.
    pub fn branch(&self) -> Option<Arc<Branch>> {
        let place = self.place.lock();
        place.as_ref().map(|place| Arc::clone(&place.branch))
    }

    /// The branch's id; none after release.
    pub fn branch_id(&self) -> Option<BranchId> {
        self.place.lock().as_ref().map(|place| place.branch.id)
    }

    /// The branch file and its branch; none after release, or if the file cannot be had now.
    pub fn opened_on(&self) -> Option<(Arc<Branch>, Arc<OwnedFd>)> {
        let mut place = self.place.lock();
        let place = place.as_mut()?;
        Some((Arc::clone(&place.branch), place.file().ok()?))
    }

    /// See [`Branch::is_surely_far_from_root_reserve`]; after release it is not sure.
    pub(crate) fn is_surely_far_from_root_reserve(&self) -> bool {
        let place = self.place.try_lock();
        place.as_deref().is_some_and(|place| {
            let far = |place: &BranchFile| place.branch.is_surely_far_from_root_reserve();
            place.as_ref().is_some_and(far)
        })
    }

    /// The branch file if it is to be had at once.
    pub(crate) fn file_here(&self) -> Option<Arc<OwnedFd>> {
        self.place.try_lock()?.as_mut()?.descriptor.here()
    }

    /// The same with its branch.
    fn here_on(&self) -> Option<(Arc<Branch>, Arc<OwnedFd>)> {
        let mut place = self.place.try_lock()?;
        let place = place.as_mut()?;
        Some((Arc::clone(&place.branch), place.descriptor.here()?))
    }

    /// The branch file, and how its data can be had without waiting; none after release, or if the
    /// file itself cannot be had so. Asks the kernel the first time.
    pub fn at_once(&self) -> Option<(AtOnce, Arc<OwnedFd>)> {
        let mut place = self.place.try_lock()?;
        let place = place.as_mut()?;
        let file = place.descriptor.here()?;
        let known = place.at_once;
        let how = known.unwrap_or_else(|| AtOnce::of(&place.branch, &file));
        place.at_once = Some(how);
        Some((how, file))
    }

    /// Does something with the descriptor. Never waits: who holds the place may wait for room, which
    /// the caller is about to make. `None`: somebody holds it, or it is released.
    pub(crate) fn try_with_descriptor<T>(
        &self,
        act: impl FnOnce(&mut Descriptor) -> T,
    ) -> Option<T> {
        let mut place = self.place.try_lock()?;
        Some(act(&mut place.as_mut()?.descriptor))
    }

    /// Notes that this file, unless it has moved since, is not what it was taken for.
    pub fn learn(&self, of: &Arc<OwnedFd>, how: AtOnce) {
        let mut place = self.place.lock();
        if let Some(place) = place.as_mut()
            && place.descriptor.is(of)
        {
            place.at_once = Some(how);
        }
    }

    /// Takes the branch file out, at release.
    pub(crate) fn take(&self) -> Option<BranchFile> {
        if let Some(enrolment) = self.enrolment.get() {
            enrolment.end();
        }
        self.place.lock().take()
    }

    /// Puts another file in the place of the present one. Not into a handle that is released
    /// meanwhile: the file would stay open.
    pub(crate) fn move_to(&self, branch: &Arc<Branch>, descriptor: Descriptor) {
        let mut place = self.place.lock();
        let old = place.as_mut().map(|place| {
            place.branch = Arc::clone(branch);
            place.at_once = None;
            std::mem::replace(&mut place.descriptor, descriptor)
        });
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
    /// In passthrough: what the kernel writes may fill what a branch keeps for root.
    pub root_pays: bool,
    /// Every open handle.
    handles: SmallVec<[Weak<OpenFile>; 1]>,
    /// All locks, once there was one: closes must be reported from then on.
    pub locks: Option<Arc<NodeLocks>>,
}

impl OpenState {
    /// No handles yet.
    pub fn new(mode: IoMode, root_pays: bool) -> Self {
        OpenState {
            mode,
            root_pays,
            handles: SmallVec::new(),
            locks: None,
        }
    }

    /// Every open handle.
    pub fn handles(&self) -> &[Weak<OpenFile>] {
        &self.handles
    }

    /// Whether pages of the file may be in the kernel's cache of the pool and not written yet. A mapping
    /// keeps its handle open, and its pages are written before the handle is released.
    pub fn may_be_unwritten(&self) -> bool {
        self.mode == IoMode::Server && self.has_writer()
    }

    /// Whether a handle is open for writing.
    pub fn has_writer(&self) -> bool {
        let mut open = self.handles.iter().filter_map(Weak::upgrade);
        open.any(|handle| handle.writable)
    }

    /// One more handle, which is answered with this backing file.
    pub fn add(&mut self, opened: &Arc<OpenFile>, backing: Option<BackingId>) {
        debug_assert!(
            match self.mode {
                IoMode::Passthrough(id) => backing == Some(id),
                IoMode::Server => backing.is_none(),
            },
            "a node is open in two modes: {:?}, {backing:?}",
            self.mode
        );
        self.handles.push(Arc::downgrade(opened));
    }

    /// A handle is released: once, and no other has ended without its release.
    pub fn remove(&mut self, opened: &Arc<OpenFile>) {
        let this = Arc::as_ptr(opened);
        let before = self.handles.len();
        self.handles
            .retain(|handle| handle.as_ptr() != this && handle.strong_count() != 0);
        debug_assert_eq!(self.handles.len() + 1, before, "open handles");
    }

    /// The last handle was released: the id to be given back, once.
    pub fn end(self) -> Option<BackingId> {
        debug_assert!(self.handles.is_empty(), "open handles lose their mode");
        match self.mode {
            IoMode::Passthrough(id) => Some(id),
            IoMode::Server => None,
        }
    }

    /// The branch file of some handle, and its branch, which may have left the pool since.
    pub fn any_open(&self) -> Option<(Arc<Branch>, Arc<OwnedFd>)> {
        self.open_where(|_| true)
    }

    /// The same of a handle on this branch: others are of other copies, see
    /// [`Node::primary`](crate::state::node::Node::primary).
    pub fn open_on(&self, branch: BranchId) -> Option<(Arc<Branch>, Arc<OwnedFd>)> {
        self.open_where(|on| on.id == branch)
    }

    fn open_where(&self, is_it: impl Fn(&Branch) -> bool) -> Option<(Arc<Branch>, Arc<OwnedFd>)> {
        /// There may be very many, all of them in other tables.
        const LOOKED_AT: usize = 8;
        let is_it = |(branch, _): &(Arc<Branch>, Arc<OwnedFd>)| is_it(branch);
        let few = self.handles.iter().take(LOOKED_AT);
        few.filter_map(Weak::upgrade)
            .find_map(|handle| handle.here_on().filter(is_it))
            .or_else(|| {
                self.handles
                    .iter()
                    .find_map(|handle| handle.upgrade()?.opened_on().filter(is_it))
            })
    }
}
