//! One branch of the pool: its root, mode, free space and what its filesystem can do.

mod dead_server;
mod drive;
mod health;
mod idle;
mod mark;
mod medium;
mod missing;
mod reserved;
mod root_id;
mod root_reserve;
mod shut_down;
mod space;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use strandfs_options::branch::{BranchMode, BranchSpec};
use strandfs_options::size::MinFreeSpace;

use crate::base::calls::Call;
use crate::base::error::Error;
use crate::base::hash::stable_hash;
use crate::base::{magic, sys};
pub use dead_server::{DEAD_SERVER, ask_server, state_gone, why_gone};
pub use health::{BranchHealth, BranchState, is_dead_server, is_failure};
pub use idle::{DiskIdle, MINUTES as IDLE_MINUTES};
pub use mark::{Found, Mark, Place, is_marked, open};
pub use medium::{Latency, Medium};
pub use missing::Missing;
use reserved::Reserved;
pub use reserved::Usable;
pub use root_id::{FilesystemId, RootId, open_to_ask};
pub(crate) use root_reserve::may_be_kept_on;
use root_reserve::{Holders, RootReserve};
pub use shut_down::{SHUT_DOWN, has_shut_down, is_refusal};
pub use space::SpaceCache;

/// Names a branch for the life of the pool; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BranchId(pub u16);

/// Whether files of a branch can be passed through, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassthroughState {
    /// Not tried yet.
    Untried,
    /// A file was registered.
    Works,
    /// The kernel refused; the reason, for people.
    Refused(String),
}

/// Whether writes in passthrough to the files of a branch can be held, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldState {
    /// Not tried yet.
    Untried,
    /// One was held.
    Works,
    /// They cannot; the reason, for people.
    Refused(String),
}

/// One directory of the pool. Reached only through its root descriptor: if its filesystem is
/// unmounted, nothing lands on the bare directory beneath.
#[derive(Clone)]
pub struct Branch {
    /// Its name inside the pool.
    pub id: BranchId,
    /// Where the user said it is.
    pub path: PathBuf,
    /// What may be done here.
    pub mode: BranchMode,
    /// Overrides the pool's `minfreespace`.
    pub min_free_space: Option<MinFreeSpace>,
    /// Distinguishes inode numbers of branches; stable over remounts.
    pub seed: u64,
    root: Arc<OwnedFd>,
    learnt: Arc<Learnt>,
}

/// What was found out about a branch; it outlives a change of its mode.
struct Learnt {
    space: SpaceCache,
    passthrough: Mutex<PassthroughState>,
    holds: Mutex<HoldState>,
    reserved: OnceLock<Reserved>,
    root_reserve: RootReserve,
    reports_at_close: bool,
    open_dirs_are_free: bool,
    medium: Medium,
    mark: Mark,
    health: Arc<BranchHealth>,
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Branch({})", self.path.display())
    }
}

impl Branch {
    /// Opens the branch's root.
    ///
    /// # Errors
    /// Those of `open(2)`: ENOENT, ENOTDIR, EACCES.
    pub fn open(id: BranchId, spec: &BranchSpec) -> sys::Result<Branch> {
        let health = Arc::new(BranchHealth::new(&spec.path));
        Self::open_as(id, spec, &health)
    }

    /// Opens the root of a branch whose health is known.
    ///
    /// # Errors
    /// As [`Branch::open`]; ESHUTDOWN: its filesystem has shut down.
    pub fn open_as(
        id: BranchId,
        spec: &BranchSpec,
        health: &Arc<BranchHealth>,
    ) -> sys::Result<Branch> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&spec.path, flags, Mode::empty())?;
        let (medium, mark) = (Medium::of(root.as_fd()), Mark::of(root.as_fd())?);
        if !medium.latency.may_hang() && has_shut_down(root.as_fd()) {
            return Err(Errno::SHUTDOWN);
        }
        let kind = rustix::fs::fstatfs(&root).map_or(0, |fs| fs.f_type as u64);
        let is_local = is_local(kind);
        Ok(Branch {
            id,
            path: spec.path.clone(),
            mode: spec.mode,
            min_free_space: spec.min_free_space,
            seed: stable_hash(spec.path.as_os_str().as_bytes()),
            learnt: Arc::new(Learnt {
                space: SpaceCache::default(),
                passthrough: Mutex::new(PassthroughState::Untried),
                holds: Mutex::new(HoldState::Untried),
                reserved: OnceLock::new(),
                root_reserve: RootReserve::of(kind, root.as_fd()),
                reports_at_close: !is_local,
                open_dirs_are_free: is_local && kind != magic::BTRFS,
                medium,
                mark,
                health: Arc::clone(health),
            }),
            root: Arc::new(root),
        })
    }

    /// What stays of the branch while it is fenced.
    pub fn as_missing(&self) -> Missing {
        Missing {
            id: self.id,
            spec: BranchSpec {
                path: self.path.clone(),
                mode: self.mode,
                min_free_space: self.min_free_space,
            },
            health: Arc::clone(&self.learnt.health),
            mark: Some(self.learnt.mark.clone()),
            place: None,
        }
    }

    /// How it is.
    pub fn health(&self) -> &Arc<BranchHealth> {
        &self.learnt.health
    }

    /// Makes a call to the branch, and counts it.
    pub(crate) fn call<T, E: Copy + Into<Error>>(
        &self,
        call: Call,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.learnt.health.calls().time(call, make)
    }

    /// Who its root directory is.
    pub fn mark(&self) -> &Mark {
        &self.learnt.mark
    }

    /// What it is made of.
    pub fn medium(&self) -> &Medium {
        &self.learnt.medium
    }

    /// Whether mode and minimum free space are those of `spec`.
    pub fn follows(&self, spec: &BranchSpec) -> bool {
        (self.mode, self.min_free_space) == (spec.mode, spec.min_free_space)
    }

    /// The same branch, with the mode and minimum free space of `spec`.
    pub fn with_rules_of(&self, spec: &BranchSpec) -> Branch {
        Branch {
            mode: spec.mode,
            min_free_space: spec.min_free_space,
            ..self.clone()
        }
    }

    /// The same branch under another id.
    pub fn with_id(self, id: BranchId) -> Branch {
        Branch { id, ..self }
    }

    /// The root directory (`O_PATH`).
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The root directory, shared.
    pub fn root_shared(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.root)
    }

    /// Whether closing a file here may tell of a failed write (network filesystems do).
    pub fn reports_at_close(&self) -> bool {
        self.learnt.reports_at_close
    }

    /// Whether a directory that stays open for reading costs nobody anything: a server that is told
    /// of it, or memory (btrfs gives each a page, `btrfs_opendir`).
    pub fn open_dirs_are_free(&self) -> bool {
        self.learnt.open_dirs_are_free
    }

    /// Free space, from memory if that is good enough.
    pub fn space(&self) -> &SpaceCache {
        &self.learnt.space
    }

    /// Whether its filesystem keeps room that only root may fill.
    pub(crate) fn keeps_root_reserve(&self) -> bool {
        let ask = || rustix::fs::fstatvfs(self.root());
        self.learnt.root_reserve.is_kept(ask)
    }

    /// Whether what is written now may reach that room.
    pub(crate) fn is_near_root_reserve(&self) -> bool {
        let ask = || rustix::fs::fstatvfs(self.root());
        self.learnt.root_reserve.is_near(ask)
    }

    /// Whom that room is for.
    pub(crate) fn reserve_holders(&self) -> Holders {
        self.learnt.root_reserve.holders()
    }

    /// Whether that room is known to be out of reach, without a call.
    pub(crate) fn is_surely_far_from_root_reserve(&self) -> bool {
        self.learnt.root_reserve.is_surely_far()
    }

    /// Whether the mode forbids changes.
    pub fn read_only(&self) -> bool {
        self.mode == BranchMode::ReadOnly
    }

    /// Whether the mode forbids new files.
    pub fn no_create(&self) -> bool {
        self.mode == BranchMode::NoCreate
    }

    /// What is known of passthrough here.
    pub fn passthrough(&self) -> PassthroughState {
        self.learnt.passthrough.lock().clone()
    }

    /// Notes the outcome of a try; the first refusal is logged.
    pub fn note_passthrough(&self, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => *self.learnt.passthrough.lock() = PassthroughState::Works,
            Err(errno) => self.refuse_passthrough(&passthrough_refusal(errno)),
        }
    }

    /// Has no more files passed through; a new reason is logged.
    pub fn refuse_passthrough(&self, reason: &str) {
        let mut state = self.learnt.passthrough.lock();
        let next = PassthroughState::Refused(reason.to_owned());
        if *state != next {
            tracing::warn!(branch = %self.path.display(), reason, "no passthrough on this branch");
        }
        *state = next;
    }

    /// What is known of holding writes here.
    pub fn holds(&self) -> HoldState {
        self.learnt.holds.lock().clone()
    }

    /// Notes whether writes can be held here.
    pub fn note_holds(&self, state: HoldState) {
        *self.learnt.holds.lock() = state;
    }

    /// Has no more writes held; a new reason is logged.
    pub fn refuse_holds(&self, reason: &str) {
        let mut state = self.learnt.holds.lock();
        let next = HoldState::Refused(reason.to_owned());
        if *state != next {
            tracing::warn!(branch = %self.path.display(), reason, "writes in passthrough are not held any more");
        }
        *state = next;
    }

    /// The path of something in the branch, for messages and the path xattrs.
    pub fn full_path(&self, relative: &Path) -> PathBuf {
        if relative.as_os_str().is_empty() {
            self.path.clone()
        } else {
            self.path.join(relative)
        }
    }
}

/// Filesystems whose close never fails (`linux/magic.h`): tmpfs, ext2-4, XFS, btrfs, f2fs, ZFS,
/// bcachefs, exFAT, FAT.
fn is_local(kind: u64) -> bool {
    matches!(
        kind,
        magic::TMPFS
            | magic::EXT4
            | magic::XFS
            | magic::BTRFS
            | magic::F2FS
            | 0x2fc1_2fc1
            | 0xca45_1a4e
            | 0x2011_bab0
            | 0x4d44
    )
}

fn passthrough_refusal(errno: Errno) -> String {
    match errno {
        Errno::LOOP => "the branch's filesystem is itself stacked (overlayfs, FUSE with \
                        passthrough); passthrough.max-stack-depth=2 may allow it"
            .to_owned(),
        Errno::PERM => "the server lacks CAP_SYS_ADMIN".to_owned(),
        other => format!("the kernel refused the file: {other}"),
    }
}
