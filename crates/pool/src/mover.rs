//! The one mover: takes a file from one branch to another under its users' hands.
//!
//! A move holds the node's move lock exclusively, so nothing changes the file through the pool meanwhile.
//! Its steps, each of which leaves the file whole:
//!
//! 1. the copy is made without a name, or where that cannot be under one of our own names, which
//!    the pool hides;
//! 2. flags, bytes, owner, attributes, mode and times are copied and synced;
//! 3. the original is checked not to have changed behind the pool;
//! 4. a locked *record* at the root of the new branch says what is under way;
//! 5. the copy takes its name (and the others of a hard-linked file), and that is synced;
//! 6. the original's names are removed, and every open handle is on the new file.
//!
//! Before step 5 a crash leaves the original alone; after it two equal files, of which the next
//! server removes the original if nobody touched either.

pub(crate) mod ahead;
mod copy;
mod displaced;
mod elsewhere;
mod fitness;
mod gain;
pub(crate) mod held;
pub mod key;
mod note;
mod reader;
mod record;
pub mod records;
pub(crate) mod recover;
mod relay;
mod rename_record;
mod seal;
mod source;
mod staging;
mod switch;
mod undo;

use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::Context;
use strandfs_options::{OnMissing, Policy};

use crate::base::branch::{Branch, BranchId};
use crate::base::error::{Error, Result};
use crate::base::policy::Space;
use crate::directory::{choose, set};
use crate::mover::held::Held;
use crate::mover::recover::Recovered;
use crate::state::node::{ExclusiveMoveLock, Node};
use crate::state::view::View;
use crate::state::{State, paths};
use crate::watch::Watch;
pub(crate) use ahead::Ahead;
pub use ahead::start as start_ahead;
pub(crate) use copy::copy_data;
pub(crate) use displaced::{Decisive, Displaced, NameOnBranch};
pub use held::start as start_held;
pub(crate) use key::{report as report_keys, unguessable};
pub(crate) use record::Record;
use records::LeftAlone;
pub(crate) use recover::{Recovery, Undecided, recover};
use source::Source;
pub(crate) use undo::Role;

/// What moves files between branches, and what interrupted moves have left.
pub struct Mover {
    watch: Arc<Watch>,
    pub(crate) ahead: Arc<Ahead>,
    /// Writes that wait for room.
    pub(crate) held: Held,
    /// Files moved from full branches.
    pub(crate) moved: AtomicU64,
    undecided: Mutex<Vec<Undecided>>,
    /// Records that nobody follows.
    pub(crate) records_left: Mutex<Vec<LeftAlone>>,
}

impl Mover {
    /// Of a pool whose branches have been recovered so far.
    pub(crate) fn new(watch: Arc<Watch>, recovered: Recovered) -> Arc<Mover> {
        Arc::new(Mover {
            watch,
            ahead: Arc::default(),
            held: Held::default(),
            moved: AtomicU64::new(0),
            undecided: Mutex::new(recovered.undecided),
            records_left: Mutex::new(recovered.left),
        })
    }
}

impl Mover {
    /// What hears of the branches' changes.
    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }
}

impl Deref for Mover {
    type Target = Watch;

    fn deref(&self) -> &Watch {
        &self.watch
    }
}

/// Why a file stays where it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    /// No branch is left to try.
    #[error("no branch can take it: {0}")]
    NoBranch(Error),
    /// The kernel reads or writes it by itself.
    #[error("it is open in passthrough; see passthrough.headroom")]
    Passthrough,
    /// A name is not known, so it would lose the file.
    #[error("{known} of its {links} names are known")]
    Names {
        /// Names known to lead to it.
        known: usize,
        /// Its link count.
        links: u32,
    },
    /// A program has it open or mapped for writing, other than by the pool's open files.
    #[error("it is mapped, or written to on its branch")]
    Mapped,
    /// The branch's copy is not the one users see.
    #[error("another copy of it is open")]
    OtherCopy,
    /// A program writes to it where it is, past the server.
    #[error("a program with the preload library may be writing to it")]
    Preload,
    /// `chattr +i` or `+a`, fscrypt, fs-verity.
    #[error("it is immutable, append-only, encrypted or sealed by fs-verity")]
    Fixed,
    /// `chattr +i` or `+a`: the name could not be taken away.
    #[error("its directory is immutable or append-only")]
    FixedDirectory,
    /// Copies of it, or a snapshot, have its bytes in common with it.
    #[error("its bytes are shared with a copy or a snapshot: moving it would free nothing")]
    Shared,
    /// Its disk has not taken all that was written, and not everybody was told.
    #[error("not all of it could be written to its disk: {0}")]
    Unwritten(Errno),
    /// Someone changes it on the branch.
    #[error("it changes behind the pool")]
    Changing,
    /// It was opened meanwhile.
    #[error("it is in use")]
    InUse,
    /// It was changed a moment ago.
    #[error("it has only just been changed")]
    Fresh,
    /// Another move waits for a lock of the kernel's in its directory.
    #[error("its directory is locked: another move waits there")]
    Locked,
    /// Nothing is to be moved any more.
    #[error("it is not to move any more")]
    Called,
    /// The branch itself failed.
    #[error("{0}")]
    Failed(#[from] Error),
}

impl From<Errno> for MoveError {
    fn from(errno: Errno) -> MoveError {
        MoveError::Failed(errno.into())
    }
}

/// Whether a branch is missing that may hold a file of the same name: one behind it could come back
/// in front of the file that moved.
fn lacks_a_branch(view: &View) -> bool {
    !view.missing.is_empty() && view.settings.health.on_missing != OnMissing::Degrade
}

/// Whether a branch refused for want of room, which another branch may have.
pub(crate) fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT)
}

/// How a move treats the file's users and the branch it goes to.
trait MoveMode {
    /// What must stay free on the new branch besides the file.
    fn spare_bytes(&self, space: &Space) -> u64;

    /// So much more has been copied, to `to`; an error ends the move.
    fn copied(&mut self, node: &Node, to: BorrowedFd<'_>, bytes: u64) -> Result<(), MoveError>;

    /// The copy is whole: from here on, and as long as what is returned lives, nobody changes the
    /// file through the pool.
    fn close_in<'n>(
        &mut self,
        pool: &Mover,
        node: &'n Node,
        source: &Source,
    ) -> Result<Option<ExclusiveMoveLock<'n>>, MoveError>;
}

/// A request waits for room; nobody else gets at the file from start to end.
struct Awaited {
    need_bytes: u64,
}

impl MoveMode for Awaited {
    fn spare_bytes(&self, _space: &Space) -> u64 {
        self.need_bytes
    }

    fn copied(&mut self, _node: &Node, _to: BorrowedFd<'_>, _bytes: u64) -> Result<(), MoveError> {
        Ok(())
    }

    fn close_in<'n>(
        &mut self,
        _pool: &Mover,
        _node: &'n Node,
        _source: &Source,
    ) -> Result<Option<ExclusiveMoveLock<'n>>, MoveError> {
        Ok(None)
    }
}

/// What a branch had no room for.
pub(crate) struct Refused<'a> {
    /// The file there, if it is open. Who asks must not hold it: as long as anybody does, it looks as if
    /// somebody wrote to the file that has moved.
    pub file: Option<&'a Weak<OwnedFd>>,
    /// From where on, in it.
    pub offset_bytes: u64,
    /// How many more, at most.
    pub need_bytes: u64,
    /// How the branch said so.
    pub refusal: Error,
    /// How often room was made for it already.
    pub times: u32,
    /// Every branch that has refused it: the file does not go back there for it.
    pub by: &'a [BranchId],
}

/// Room is made for one change no more often: somebody else takes it, or it is not what is missing.
const ROOM_MADE_MAX: u32 = 3;

/// Moves a file whose branch refused more to one that takes it (`moveonenospc`); where it cannot move
/// because it is in passthrough, others make way for it. Must be called without the node's move lock; `moved`
/// says whether another request has moved it meanwhile.
///
/// # Errors
/// The refusal, if the file stays where it is and there is no more room there.
pub(crate) fn make_room(
    pool: &Mover,
    cx: &Context<'_>,
    node: &Arc<Node>,
    refused: &Refused<'_>,
    moved: impl Fn() -> bool,
) -> Result<()> {
    let (need_bytes, refusal) = (refused.need_bytes, refused.refusal);
    let view = pool.view();
    let rule = view.settings.relocation.moveonenospc.ok_or(refusal)?;
    if view.branches.len() < 2 || !is_full(refusal.errno) || lacks_a_branch(&view) {
        return Err(refusal);
    }
    cx.may_block();
    let exclusive = node.lock_for_move();
    if moved() {
        return Ok(());
    }
    let mut move_mode = Awaited { need_bytes };
    let outcome = Source::of(pool, &view, node).and_then(|mut source| {
        source.unfit.extend_from_slice(refused.by);
        move_by_policy(pool, &view, node, rule, &source, &mut move_mode)
    });
    match outcome {
        Ok(branch) => {
            pool.moved.fetch_add(1, Ordering::Relaxed);
            tracing::info!(path = shown_path(pool, node), to = %branch.path.display(), "moved a file from a full branch");
            drop(exclusive);
            attributes_are_elsewhere(pool, node);
            Ok(())
        }
        Err(reason) => {
            tracing::debug!(path = shown_path(pool, node), %reason, "a file on a full branch stays");
            drop(exclusive);
            match reason {
                MoveError::Passthrough if refused.times < ROOM_MADE_MAX => {
                    held::wait_for_room(pool, cx, node, refused)
                }
                _ => Err(refusal),
            }
        }
    }
}

fn shown_path(pool: &State, node: &Arc<Node>) -> Option<String> {
    let path = paths::relative_path(pool, node)?;
    Some(format!("/{}", path.display()))
}

/// Reports of changes do not find a file by its new inode, so what the kernel holds of it must
/// not be kept for long. Attributes only: its pages are true still, and the writer waits with
/// some of them locked.
fn attributes_are_elsewhere(pool: &State, node: &Node) {
    if let Some(connection) = pool.connection.get()
        && let Err(errno) = connection.invalidate_inode(node.id, -1, 0)
    {
        tracing::debug!(%errno, "an inode could not be invalidated");
    }
}

fn move_by_policy(
    pool: &Mover,
    view: &View,
    node: &Arc<Node>,
    rule: Policy,
    source: &Source,
    move_mode: &mut dyn MoveMode,
) -> Result<Arc<Branch>, MoveError> {
    let set = set::dir_set_now(pool, &source.parent)?;
    let mut tried: SmallVec<[BranchId; 4]> = source.unfit.clone();
    let mut last = None;
    loop {
        let picked = choose::pick_for_move(pool, view, rule, (&source.parent, &set), &tried)
            .map_err(|errno| MoveError::NoBranch(last.unwrap_or(errno)))?;
        let branch = picked.into_iter().next().ok_or(Errno::NOENT)?;
        tried.push(branch.id);
        match switch::move_to(pool, view, node, source, &branch, move_mode) {
            Ok(()) => return Ok(branch),
            Err(MoveError::Failed(errno)) => {
                tracing::debug!(branch = %branch.path.display(), %errno, "cannot take a file");
                branch.space().forget();
                last = Some(errno);
            }
            Err(reason) => return Err(reason),
        }
    }
}

fn has_room(
    pool: &State,
    view: &View,
    branch: &Branch,
    source: &Source,
    move_mode: &dyn MoveMode,
) -> Result<()> {
    branch.space().forget();
    let space = choose::space(pool, view, branch)?;
    let spare_bytes = move_mode.spare_bytes(&space);
    if space.available_bytes < source.allocated_bytes().saturating_add(spare_bytes) {
        return Err(Errno::NOSPC.into());
    }
    Ok(())
}
