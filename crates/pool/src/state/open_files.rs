//! All open files by number, and which of them have a place in the server's table of descriptors.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::Handle;

use crate::base::branch::{Branch, BranchId};
use crate::base::overflow::{BATCH, Overflow};
use crate::base::shares::{Share, Shares, fair_share};
use crate::base::sys;
use crate::state::descriptor::{Descriptor, Idle, Ledger, Used, table_of};
use crate::state::descriptor_budget::Budget;
use crate::state::open_file::OpenFile;

/// All handles by number. Reads take no lock.
pub struct OpenFiles {
    files: papaya::HashMap<u64, Arc<OpenFile>>,
    next: AtomicU64,
    ledger: Arc<Ledger>,
    budget: Budget,
    overflow: Overflow,
    /// Open files of each user.
    shares: Shares,
    told_stuck: AtomicBool,
    /// Descriptors that are no handle's, numbered as handles are.
    alone: papaya::HashMap<u64, Arc<Mutex<Descriptor>>>,
    queues: Mutex<HashMap<Option<BranchId>, Arc<Mutex<Queue>>>>,
}

/// Handles in the order in which their descriptors are to leave the table; one that was used
/// meanwhile goes back to the end. Held by the one who makes room. There is one of each branch where
/// a close asks a server, and may wait for it, and one of all the others.
#[derive(Default)]
struct Queue {
    handles: VecDeque<u64>,
    /// When all of them were in use.
    futile_ms: u64,
}

/// After all were found in use, nobody looks again for so long.
const FUTILE_FOR_MS: u64 = 20;
/// With fewer files open than this part of what is possible nobody counts whose they are.
const UNNAMED_PART: usize = 16;

/// The descriptor of a file that is open for another reason than a handle, a lock for example.
pub struct Kept {
    descriptor: Arc<Mutex<Descriptor>>,
    number: u64,
    files: Weak<OpenFiles>,
}

impl Kept {
    /// The descriptor, which stays in the server's own table for as long as the caller has it.
    ///
    /// # Errors
    /// EMFILE.
    pub(crate) fn get(&self) -> sys::Result<Arc<OwnedFd>> {
        self.descriptor.lock().get()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(files) = self.files.upgrade() {
            files.alone.pin().remove(&self.number);
        }
        // The map frees what was in it later.
        self.descriptor.lock().close();
    }
}

/// Whose descriptor it is.
enum Holder {
    Handle(Arc<OpenFile>),
    Alone(Arc<Mutex<Descriptor>>),
}

impl Holder {
    /// Does something with the descriptor, unless somebody else does at the moment.
    fn try_with<T>(&self, act: impl FnOnce(&mut Descriptor) -> T) -> Option<T> {
        match self {
            Holder::Handle(file) => file.try_with_descriptor(act),
            Holder::Alone(descriptor) => descriptor.try_lock().as_deref_mut().map(act),
        }
    }
}

/// A descriptor that is about to leave.
struct Victim {
    whose: Holder,
    file: Arc<OwnedFd>,
}

impl OpenFiles {
    /// None yet, in a process with this limit.
    pub(crate) fn new(budget: Budget) -> Arc<OpenFiles> {
        let ledger = Arc::new(Ledger::default());
        let files = Arc::new(OpenFiles {
            files: papaya::HashMap::new(),
            next: AtomicU64::new(1),
            overflow: Overflow::new(budget.limit()),
            budget,
            ledger: Arc::clone(&ledger),
            shares: Shares::default(),
            told_stuck: AtomicBool::new(false),
            alone: papaya::HashMap::new(),
            queues: Mutex::default(),
        });
        let _ = ledger.files.set(Arc::downgrade(&files));
        files
    }

    /// The descriptor of a file just opened on `branch`, for as long as a handle or a lock needs it.
    pub(crate) fn keep(&self, branch: &Branch, file: OwnedFd) -> Descriptor {
        Descriptor::new(&self.ledger, branch, file)
    }

    /// The same for a descriptor that is no handle's.
    pub(crate) fn keep_alone(self: &Arc<Self>, branch: &Branch, file: OwnedFd) -> Kept {
        let descriptor = Arc::new(Mutex::new(self.keep(branch, file)));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.alone.pin().insert(number, Arc::clone(&descriptor));
        self.relieve(table_of(branch));
        Kept {
            descriptor,
            number,
            files: Arc::downgrade(self),
        }
    }

    fn holder(&self, number: u64) -> Option<Holder> {
        let handle = self.get(Handle(number)).map(Holder::Handle);
        handle.or_else(|| {
            let alone = self.alone.pin();
            alone
                .get(&number)
                .map(|kept| Holder::Alone(Arc::clone(kept)))
        })
    }

    /// Gives the file a handle.
    pub(crate) fn insert(&self, file: Arc<OpenFile>) -> Handle {
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

    /// Looks at all of them, at no single moment.
    pub(crate) fn each(&self, mut look: impl FnMut(&OpenFile)) {
        self.files.pin().iter().for_each(|(_, file)| look(file));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The limit of descriptors and its parts.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Descriptors of open files and locks in the server's own table, and in others.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.ledger.here(), self.ledger.away())
    }

    /// Why descriptors cannot leave the server's own table.
    pub(crate) fn stuck(&self) -> Option<Errno> {
        self.overflow.refusal()
    }

    /// The user with most open files, and how many.
    pub(crate) fn largest_share(&self) -> Option<(u32, usize)> {
        self.shares.largest()
    }

    /// Files that may be open.
    pub(crate) fn capacity(&self) -> usize {
        self.budget.capacity(!self.overflow.has_failed())
    }

    /// What one user may have open now.
    pub(crate) fn share(&self) -> usize {
        fair_share(self.free(), self.capacity())
    }

    /// How many tables there are besides the server's own.
    pub(crate) fn tables(&self) -> usize {
        self.overflow.tables()
    }

    fn free(&self) -> usize {
        let (here, away) = self.counts();
        // What is left for requests is not for open files.
        match here < self.budget.most_files() {
            true => self.capacity().saturating_sub(here + away),
            false => 0,
        }
    }

    /// One more open file for the user. To be asked for before anything is done.
    ///
    /// # Errors
    /// What stands against it.
    pub(crate) fn admit(&self, uid: u32) -> Result<Share, Refused> {
        let mut free = self.free();
        if free == 0 {
            self.make_room(None);
            free = self.free();
        }
        if free == 0 {
            return Err(Refused::NoRoom);
        }
        let share = match uid {
            0 => usize::MAX,
            _ => fair_share(free, self.capacity()),
        };
        let taken = self.shares.take(uid, share);
        taken.ok_or_else(|| Refused::Share {
            has: self.shares.of(uid),
        })
    }

    /// Whether so few files are open that nobody has to know whose they are.
    pub(crate) fn has_plenty(&self) -> bool {
        let capacity = self.capacity();
        capacity.saturating_sub(self.free()) < capacity / UNNAMED_PART
    }

    /// Makes room in the table if there is too little, for who opened a file of the branch where
    /// closing asks a server, or of any other. Nobody else waits for such a server: the files of
    /// these branches have a part of the table to themselves.
    pub(crate) fn relieve(&self, of: Option<BranchId>) {
        let (here, files) = (self.ledger.here(), self.budget.files());
        if of.is_some() {
            let over = self.ledger.asking().saturating_sub(files / 2);
            self.take_away(
                of,
                over.max(here.saturating_sub(files)),
                over > self.budget.batch(),
            );
        }
        if here > files {
            self.take_away(None, here - files, here >= self.budget.most_files());
        }
    }

    /// Makes some room, whether or not there is too little.
    pub(crate) fn make_room(&self, of: Option<BranchId>) {
        for of in [of, None] {
            self.take_away(of, self.budget.batch(), true);
        }
    }

    /// Takes descriptors out of the table that are no handle's yet, of files on `branch`, if there is
    /// too little room. What cannot be handed over stays.
    pub(crate) fn set_aside<'a>(
        &self,
        branch: &Branch,
        descriptors: impl Iterator<Item = &'a mut Descriptor>,
    ) {
        if self.ledger.here() <= self.budget.files() {
            return;
        }
        let mut idle =
            descriptors.filter_map(|descriptor| match descriptor.ask_to_leave(Used::Now) {
                Idle::Yes(file) => Some((descriptor, file)),
                _ => None,
            });
        loop {
            let batch: Vec<_> = idle.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return;
            }
            let files: SmallVec<[BorrowedFd<'_>; BATCH]> =
                batch.iter().map(|(_, file)| file.as_fd()).collect();
            let table = self.overflow.table(table_of(branch));
            let Ok(stored) = table.and_then(|table| table.store(&files)) else {
                return;
            };
            drop(files);
            for ((descriptor, file), stored) in batch.into_iter().zip(stored) {
                descriptor.note_stored(&file, stored);
            }
        }
    }

    /// Takes `wanted` descriptors and some more out of the table; `urgent`: waits for its turn.
    fn take_away(&self, of: Option<BranchId>, wanted: usize, urgent: bool) {
        if wanted == 0 {
            return;
        }
        let queue = Arc::clone(self.queues.lock().entry(of).or_default());
        let queue = match urgent {
            // Somebody is at it.
            false => queue.try_lock(),
            true => Some(queue.lock()),
        };
        let Some(mut queue) = queue else { return };
        let now_ms = sys::mono_coarse_ms();
        if !urgent && now_ms.saturating_sub(queue.futile_ms) < FUTILE_FOR_MS {
            return;
        }
        let left = self.hand_over(&mut queue.handles, of, wanted + self.budget.batch());
        match left {
            Ok(0) => queue.futile_ms = now_ms,
            Ok(_) => {}
            Err(errno) => {
                queue.futile_ms = now_ms;
                if !self.told_stuck.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%errno, "open files keep their descriptors: no further table can be had");
                }
            }
        }
    }

    /// How many left.
    fn hand_over(
        &self,
        queue: &mut VecDeque<u64>,
        of: Option<BranchId>,
        wanted: usize,
    ) -> sys::Result<usize> {
        let mut left = 0;
        // Of those that were used, each is passed over once: in the first round, or the second.
        for round in 0..3 {
            if round > 0 || queue.is_empty() {
                self.queue_up(queue, of);
            }
            while left < wanted && !queue.is_empty() {
                let most = (wanted - left).min(BATCH);
                let (at_once, victims) = self.victims(queue, of, most);
                if at_once + victims.len() == 0 {
                    break;
                }
                left += at_once + self.store(of, victims)?;
            }
            if left >= wanted {
                break;
            }
        }
        Ok(left)
    }

    /// All that have a place in the table, those first that were opened first.
    fn queue_up(&self, queue: &mut VecDeque<u64>, of: Option<BranchId>) {
        queue.clear();
        let leaves =
            |descriptor: &mut Descriptor| descriptor.is_here() && descriptor.table_of() == of;
        let files = self.files.pin();
        // One that somebody looks at at the moment is here.
        let here = files
            .iter()
            .filter(|(_, file)| file.try_with_descriptor(leaves) != Some(false));
        queue.extend(here.map(|(handle, _)| *handle));
        let alone = self.alone.pin();
        let here = alone.iter().filter(|(_, kept)| {
            let descriptor = kept.try_lock();
            descriptor.is_none_or(|mut descriptor| leaves(&mut descriptor))
        });
        queue.extend(here.map(|(number, _)| *number));
        queue.make_contiguous().sort_unstable();
    }

    /// Up to `most` that can leave, of one round; and how many of them have left at once.
    fn victims(
        &self,
        queue: &mut VecDeque<u64>,
        of: Option<BranchId>,
        most: usize,
    ) -> (usize, SmallVec<[Victim; BATCH]>) {
        let (mut left, mut victims) = (0, SmallVec::new());
        for _ in 0..queue.len() {
            let Some(handle) = queue.pop_front() else {
                break;
            };
            let Some(whose) = self.holder(handle) else {
                continue;
            };
            let idle = whose.try_with(|descriptor| match descriptor.table_of() == of {
                true => descriptor.ask_to_leave(Used::Not),
                false => Idle::Gone,
            });
            match idle {
                None | Some(Idle::No) => queue.push_back(handle),
                Some(Idle::Gone) => {}
                Some(Idle::Left) => left += 1,
                Some(Idle::Yes(here)) => victims.push(Victim { whose, file: here }),
            }
            if left + victims.len() >= most {
                break;
            }
        }
        (left, victims)
    }

    /// Hands these over; how many have left.
    fn store(
        &self,
        of: Option<BranchId>,
        mut victims: SmallVec<[Victim; BATCH]>,
    ) -> sys::Result<usize> {
        let mut left = 0;
        while !victims.is_empty() {
            let table = self.overflow.table(of)?;
            let files = victims.iter().take(BATCH);
            let files: SmallVec<[BorrowedFd<'_>; BATCH]> =
                files.map(|victim| victim.file.as_fd()).collect();
            let stored = table.store(&files)?;
            drop(files);
            if stored.is_empty() {
                return Err(Errno::MFILE);
            }
            let handed = stored.len();
            for (victim, stored) in victims.drain(..handed).zip(stored) {
                let mut stored = Some(stored);
                let noted = victim.whose.try_with(|descriptor| {
                    let stored = stored.take()?;
                    Some(descriptor.note_stored(&victim.file, stored))
                });
                left += usize::from(noted.flatten() == Some(true));
            }
        }
        Ok(left)
    }
}

/// Why a user gets no further open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The user's share is used up.
    Share {
        /// How many the user has.
        has: usize,
    },
    /// There is no room for anybody.
    NoRoom,
}
