//! The inodes of the pool: what the kernel knows by node id.

mod high_water;
mod kernel_cache;
mod names;
mod rights_told;
mod table;

use std::ffi::OsStr;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Context, FileKind, NodeId};

use crate::base::branch::{Branch, BranchId};
use crate::base::error::Error;
use crate::base::rank::{self, Mutex, MutexGuard, ReadGuard, RwLock, WriteGuard};
use crate::base::rights::{AllRights, strictest};
use crate::base::shares::FairShare;
use crate::base::sys::{self, Own};
use crate::state::dir_cache::DirCache;
use crate::state::identity::{Identity, Presented, VolumeId};
use crate::state::judged::Judged;
use crate::state::open_file::OpenState;
use crate::state::range_locks::NodeLocks;
pub use high_water::HighWater;
pub use kernel_cache::KernelCache;
pub use names::{Name, Names};
pub(crate) use rights_told::{RightsTold, Told};
pub use table::NodeTable;

/// One inode of the pool. A file is one inode of one branch (its *primary* identity), whatever
/// its names; a directory is the union of the directories of that name on all branches.
pub struct Node {
    /// The kernel's name for it.
    pub id: NodeId,
    /// Goes into file handles.
    pub generation: u32,
    /// The inode number users see.
    pub ino: u64,
    /// Its type, which never changes.
    pub kind: FileKind,
    /// The kernel's lookups, plus one for each open handle. 0 means dead: never raised again.
    refs: AtomicU64,
    /// Names and identities.
    place: RwLock<Place, { rank::PLACE }>,
    /// What the kernel may hold of it.
    pub kernel_cache: KernelCache,
    /// The owner, group and mode that the kernel judges by.
    pub(crate) rights_told: RightsTold,
    /// Its copies parted: the next look-up makes another node, so that names the kernel holds
    /// below this one lead nowhere.
    retired: AtomicBool,
    /// It was opened for reading and writing in passthrough: a mapping made so outlives its handle,
    /// and writes to the branch's file without anyone's knowledge. Its attributes are not to be kept.
    pub mapped_perhaps: AtomicBool,
    /// A branch that may have a copy that counts more failed when its name was last looked up.
    pub stand_in: AtomicBool,
    /// It was opened since the mover last looked.
    pub opened_since: AtomicBool,
    /// Present while the file is open.
    pub open: Mutex<Option<Box<OpenState>>, { rank::OPEN }>,
    /// Held by whoever changes a directory's attributes, makes a further copy with them, or sets
    /// its times back after a change that is not to show.
    attributes: Mutex<(), { rank::ATTRIBUTES }>,
    /// Shared by requests that change the file or its names; alone for whoever moves it. A
    /// request holds at most one side of it and takes it before it looks for the file; of two files it waits
    /// for neither while it holds the other.
    move_lock: RwLock<(), { rank::MOVE }>,
}

/// The file stays on its branch while this lives.
pub type SharedMoveLock<'a> = ReadGuard<'a, (), { rank::MOVE }>;

/// Nobody changes the file through the pool while this lives.
pub type ExclusiveMoveLock<'a> = WriteGuard<'a, (), { rank::MOVE }>;

/// Where a node is.
pub struct Place {
    /// Every name looked up and not known to be gone, newest last.
    pub names: Names,
    /// Identities in branch order. A file has one; a directory one for each branch holding it.
    pub copies: SmallVec<[Identity; 1]>,
    /// A directory's open descriptors; dropped and reopened at need.
    pub dirs: Option<Arc<DirSet>>,
}

/// A directory's descriptors on the branches that hold it, in branch order.
pub struct DirSet {
    /// One for each branch.
    pub entries: SmallVec<[DirEntry; 2]>,
    /// When presence on the branches was last checked (coarse monotonic milliseconds).
    pub verified_ms: AtomicU64,
    /// A slow branch was not asked whether it holds the directory, and it was not known before.
    pub skipped: bool,
    /// A branch that failed to say whether it holds the directory, and how.
    pub probe_error: Option<Error>,
    /// The view it was made under, see [`crate::state::view::View::generation`].
    pub generation: u64,
    /// The state of all directories (`Coherence::structure`) when that check
    /// began.
    pub structure: AtomicU64,
    /// Used since the descriptor cache last looked.
    pub recently_used: AtomicBool,
    /// When a copy came that lets others do what, for a moment of which requests may be under way that the
    /// kernel has judged before (coarse monotonic milliseconds, 0 if never).
    pub narrowed_ms: u64,
    /// To whom new names in it would be exposed.
    pub(crate) judged: Judged,
    /// Of whose doing it is that the descriptors stay until the directory, which has no name, is forgotten.
    pub(crate) kept_for: Option<Arc<FairShare>>,
}

/// A directory on one branch.
#[derive(Clone)]
pub struct DirEntry {
    /// The branch.
    pub branch: Arc<Branch>,
    /// The directory there.
    pub identity: Identity,
    /// Its descriptor, `O_PATH` unless it is `readable`: then only `reader` may read it.
    pub fd: Arc<OwnedFd>,
    /// It is open for reading.
    pub(crate) readable: bool,
    /// What is remembered of it.
    pub memory: Arc<DirCache>,
}

impl DirEntry {
    /// The same directory, its branch with the rules now in force.
    pub fn under(&self, branch: &Arc<Branch>) -> DirEntry {
        DirEntry {
            branch: Arc::clone(branch),
            ..self.clone()
        }
    }
}

impl DirSet {
    /// A set just verified, under the view of this generation, on directories that were in state
    /// `structure` when that began.
    pub fn new(
        entries: SmallVec<[DirEntry; 2]>,
        now_ms: u64,
        generation: u64,
        structure: u64,
    ) -> Self {
        DirSet {
            entries,
            skipped: false,
            probe_error: None,
            generation,
            verified_ms: AtomicU64::new(now_ms),
            structure: AtomicU64::new(structure),
            recently_used: AtomicBool::new(true),
            narrowed_ms: 0,
            judged: Judged::default(),
            kept_for: None,
        }
    }

    /// To be verified again before its next use.
    pub fn distrust(&self) {
        self.verified_ms.store(0, Ordering::Relaxed);
        self.structure.store(u64::MAX, Ordering::Release);
    }

    /// The same without some branches.
    pub fn without(&self, unwanted: impl Fn(&Branch) -> bool) -> DirSet {
        let entries = self.entries.iter().filter(|entry| !unwanted(&entry.branch));
        let mut rest = DirSet::new(entries.cloned().collect(), 0, self.generation, 0);
        rest.skipped = true;
        rest.probe_error = self.probe_error;
        rest.kept_for.clone_from(&self.kept_for);
        rest
    }

    /// Whether it lets others do what than `old`, the same directory before: the moment is noted then.
    pub(crate) fn note_narrowed(&mut self, old: &DirSet) -> bool {
        let lets_in_others = strictest(&old.last_rights()) != strictest(&self.last_rights());
        self.narrowed_ms = match lets_in_others {
            true => sys::mono_coarse_ms().max(1),
            false => old.narrowed_ms,
        };
        lets_in_others
    }

    /// Whom the copies let do what, as far as that was seen.
    pub(crate) fn last_rights(&self) -> AllRights {
        let entries = self.entries.iter();
        entries.filter_map(|entry| entry.memory.rights()).collect()
    }

    /// The entry on `branch`.
    pub fn on(&self, branch: BranchId) -> Option<&DirEntry> {
        self.entries.iter().find(|entry| entry.branch.id == branch)
    }
}

/// A directory in which the pool changes a name, until the change is over, however it ends.
pub(crate) struct ChangingNames(Arc<Node>);

impl ChangingNames {
    /// From before the change to after it.
    pub fn of(directory: Arc<Node>) -> ChangingNames {
        ChangingNames(directory)
    }
}

impl Deref for ChangingNames {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        &self.0
    }
}

impl Drop for ChangingNames {
    /// The caller does not know yet. The kernel must not join listings that begin from now on with
    /// entries that were collected before or during the change.
    fn drop(&mut self) {
        self.0.kernel_cache.end_listings();
    }
}

impl Node {
    /// A node with one reference.
    pub fn new(
        id: NodeId,
        ino: u64,
        kind: FileKind,
        copies: SmallVec<[Identity; 1]>,
        names: Names,
    ) -> Self {
        let generation = copies.first().map_or(0, |identity| identity.generation);
        Node {
            id,
            generation,
            ino,
            kind,
            refs: AtomicU64::new(1),
            place: RwLock::new(Place {
                names,
                copies,
                dirs: None,
            }),
            kernel_cache: KernelCache::default(),
            rights_told: RightsTold::default(),
            retired: AtomicBool::new(false),
            mapped_perhaps: AtomicBool::new(false),
            stand_in: AtomicBool::new(false),
            opened_since: AtomicBool::new(false),
            open: Mutex::new(None),
            attributes: Mutex::new(()),
            move_lock: RwLock::new(()),
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Lets no further look-up find the node.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Whether look-ups are to find another node instead.
    pub fn retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Notes whether it may stand in for a copy that could not be asked for.
    pub fn note_stand_in(&self, stand_in: bool) {
        if self.stand_in.load(Ordering::Relaxed) != stand_in {
            self.stand_in.store(stand_in, Ordering::Relaxed);
        }
    }

    /// Whether what is changed here will be what users see.
    ///
    /// # Errors
    /// EIO: another copy, when its branch answers again, would hide this one.
    pub fn counts(&self) -> sys::Result<()> {
        match self.stand_in.load(Ordering::Relaxed) {
            true => Err(Errno::IO),
            false => Ok(()),
        }
    }

    /// Notes that it is being opened; `mappable`: for reading and writing, in passthrough. True if
    /// the kernel may still keep attributes from before that.
    pub fn note_open(&self, mappable: bool) -> bool {
        // Most often set already: no other CPU's cache is disturbed then.
        if !self.opened_since.load(Ordering::Relaxed) {
            self.opened_since.store(true, Ordering::Relaxed);
        }
        mappable
            && !self.mapped_perhaps.load(Ordering::Acquire)
            && !self.mapped_perhaps.swap(true, Ordering::AcqRel)
    }

    /// Finds out whether mappings made in passthrough are left, by a descriptor that is the only
    /// one of the pool's that can write.
    pub fn look_for_mappings(&self, file: &OwnedFd, own: Own) {
        if self.mapped_perhaps.load(Ordering::Relaxed)
            && sys::written_by_others(file.as_fd(), own) == Ok(false)
        {
            self.mapped_perhaps.store(false, Ordering::Relaxed);
        }
    }

    /// Adds a reference, unless the node is dead.
    pub fn try_ref(&self) -> bool {
        self.take_ref().is_some()
    }

    /// Takes a reference; how many there were, none if the node is dead.
    pub fn take_ref(&self) -> Option<u64> {
        self.refs
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |refs| {
                (refs != 0).then(|| refs + 1)
            })
            .ok()
    }

    /// Takes `count` references; true if the node is dead now.
    pub fn unref(&self, count: u64) -> bool {
        let before = self
            .refs
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |refs| {
                Some(refs.saturating_sub(count))
            })
            .unwrap_or(0);
        debug_assert!(before >= count, "{count} of {before} references are taken");
        before <= count
    }

    /// All locks, if the file is open and there was one.
    pub fn locks(&self) -> Option<Arc<NodeLocks>> {
        self.open
            .lock()
            .as_ref()
            .and_then(|open| open.locks.clone())
    }

    /// See [`OpenState::may_be_unwritten`].
    pub fn may_be_unwritten(&self) -> bool {
        let open = self.open.lock();
        open.as_ref().is_some_and(|open| open.may_be_unwritten())
    }

    /// Whether somebody has the file open for writing.
    pub(crate) fn is_open_for_writing(&self) -> bool {
        let open = self.open.lock();
        open.as_ref().is_some_and(|open| open.has_writer())
    }

    /// Whether the copy that is shown is this branch's.
    pub fn is_shown_of(&self, branch: &Branch) -> bool {
        self.primary().is_some_and(|own| own.branch == branch.id)
    }

    /// Keeps the file from moving; waits while it does.
    pub fn share_move_lock(&self, cx: &Context<'_>) -> SharedMoveLock<'_> {
        self.move_lock.try_read().unwrap_or_else(|| {
            cx.may_block();
            self.move_lock.read()
        })
    }

    /// Keeps two files from moving. Never waits for one while it holds the other: a mover of the first may wait
    /// for somebody who waits for the second.
    pub fn share_both_move_locks<'a>(
        first: &'a Node,
        second: &'a Node,
        cx: &Context<'_>,
    ) -> [SharedMoveLock<'a>; 2] {
        let (mut awaited, mut other) = (first, second);
        loop {
            let held = awaited.share_move_lock(cx);
            if let Some(also) = other.try_share_move_lock() {
                return [held, also];
            }
            drop(held);
            std::mem::swap(&mut awaited, &mut other);
        }
    }

    /// Keeps the file from moving, unless it does at the moment.
    pub fn try_share_move_lock(&self) -> Option<SharedMoveLock<'_>> {
        self.move_lock.try_read()
    }

    /// Whether anybody has either side of the move lock.
    #[cfg(test)]
    pub fn is_kept_from_moving(&self) -> bool {
        self.move_lock.try_write().is_none()
    }

    /// Waits for all who change the file, and keeps others from it.
    pub fn lock_for_move(&self) -> ExclusiveMoveLock<'_> {
        self.move_lock.write()
    }

    /// Keeps others from changing a directory's attributes, and from making copies that have the
    /// old ones. Who holds one may take that of the directory above.
    pub fn hold_attributes(&self) -> MutexGuard<'_, (), { rank::ATTRIBUTES }> {
        self.attributes.lock()
    }

    /// The same if nobody holds them, without waiting.
    pub fn try_hold_attributes(&self) -> Option<MutexGuard<'_, (), { rank::ATTRIBUTES }>> {
        self.attributes.try_lock()
    }

    /// Reads the place.
    pub fn place(&self) -> ReadGuard<'_, Place, { rank::PLACE }> {
        self.place.read()
    }

    /// Changes the place.
    pub fn place_mut(&self) -> WriteGuard<'_, Place, { rank::PLACE }> {
        self.place.write()
    }

    /// The file's inode, or the first of the directory's.
    pub fn primary(&self) -> Option<Identity> {
        self.place.read().copies.first().copied()
    }

    /// The newest known name.
    pub fn name(&self) -> Option<Name> {
        self.place.read().names.newest().cloned()
    }

    /// Notes that the node was found under this name.
    pub fn add_name(&self, parent: NodeId, name: &OsStr) {
        if self.place.read().names.newest_is(parent, name) {
            return;
        }
        let is_dir = self.is_dir();
        let mut place = self.place.write();
        if is_dir {
            place.names.replace_all(parent, name);
        } else {
            place.names.add(parent, name);
        }
    }

    /// Notes that one name became another, in one step: a directory that is renamed has a name, and
    /// a directory above it, for whoever asks meanwhile.
    pub fn move_name(&self, old: (NodeId, &OsStr), (parent, name): (NodeId, &OsStr)) {
        let mut place = self.place.write();
        place.names.remove(old.0, old.1);
        if self.is_dir() {
            place.names.replace_all(parent, name);
        } else {
            place.names.add(parent, name);
        }
    }

    /// Notes that the name is gone.
    pub fn remove_name(&self, parent: NodeId, name: &OsStr) {
        self.place.write().names.remove(parent, name);
    }

    /// Whether it is a symlink of a branch shown as what it leads to.
    pub fn follows(&self) -> bool {
        self.kind != FileKind::Symlink && self.is_presented_otherwise()
    }

    /// Whether it is a file of a branch shown as a symlink to it.
    pub fn is_symlinkified(&self) -> bool {
        self.kind == FileKind::Symlink && self.is_presented_otherwise()
    }

    fn is_presented_otherwise(&self) -> bool {
        self.primary()
            .is_some_and(|identity| identity.presented == Presented::Other)
    }

    /// Whether the volume belongs to one of the copies.
    pub fn has_copy(&self, volume: VolumeId, ino: u64) -> bool {
        self.place
            .read()
            .copies
            .iter()
            .any(|copy| copy.volume == volume && copy.ino == ino)
    }

    /// Like [`Node::try_ref`], but the root, which is never counted, always answers true.
    pub fn try_ref_or_root(&self) -> bool {
        self.id == NodeId::ROOT || self.try_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::base::test_request::request_of;

    fn file(id: u64) -> Node {
        let (copies, names) = (SmallVec::new(), Names::default());
        Node::new(NodeId(id), id, FileKind::Regular, copies, names)
    }

    #[test]
    fn renames_that_cross_each_other_and_movers_of_both_files_all_come_to_an_end() {
        const ROUNDS: usize = 2000;
        let (one, other) = (&file(2), &file(3));
        thread::scope(|scope| {
            for (first, second) in [(one, other), (other, one)] {
                scope.spawn(move || {
                    let cx = request_of(0);
                    for _ in 0..ROUNDS {
                        let both = Node::share_both_move_locks(first, second, &cx);
                        assert!(one.is_kept_from_moving() && other.is_kept_from_moving());
                        drop(both);
                    }
                });
                scope.spawn(move || (0..ROUNDS).for_each(|_| drop(first.lock_for_move())));
            }
        });
    }
}
