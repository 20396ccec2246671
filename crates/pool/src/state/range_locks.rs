//! Locks of a node: those of byte ranges, and `flock` on the whole file.
//!
//! Between owners of the pool the tables here decide, and who waits, waits here, without a thread
//! or a descriptor. Towards everybody else the branch decides: all owners of a node share one open
//! file description on the branch file, which holds what they hold together.
//!
//! Lock order: the branch's side, then the tables. The tables are never locked over a call to
//! a branch.

mod asked;
mod closing;
mod counts;
mod tables;
mod waiting;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strandfs_fuse::{Context, Deferred, Lock, LockOwner};

use crate::base::open::reopen;
use crate::base::rank::{self, Mutex, MutexGuard};
use crate::base::sys;
use crate::state::lock_table::{LockMode, Piece, Span};
use crate::state::open_files::Kept;
pub use asked::{Asked, Sort};
pub(crate) use asked::{from_range, to_range};
pub use counts::RangeCounts;
pub use tables::{Table, Tables};
pub use waiting::{Waiter, Waiting};

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It is so now.
    Done,
    /// Another owner of the pool stands against it.
    Held,
    /// Somebody else does, on the branch.
    HeldOutside,
    /// The branch file cannot be opened before somebody gives up a lease on it.
    Leased,
}

/// Waiting requests that are over, to be answered when no lock is held any more.
pub type Answers = Vec<(Deferred, Result<(), Errno>)>;

/// What all owners hold together, on the branch.
#[derive(Default)]
struct BranchSide {
    file: Option<LockFile>,
    /// Calls to it may take for ever.
    may_hang: bool,
}

/// All locks of a node.
#[derive(Default)]
pub struct NodeLocks {
    side: Mutex<BranchSide, { rank::LOCK_SIDE }>,
    tables: Mutex<Tables, { rank::LOCK_TABLES }>,
}

/// The description that holds them.
enum LockFile {
    /// Just opened.
    New(OwnedFd),
    /// Among the open files, which leave the server's table of descriptors when there is little room.
    Kept(Kept),
}

impl BranchSide {
    /// Makes the description from `model` on first use.
    fn open(&mut self, model: &OwnedFd, may_hang: bool) -> sys::Result<()> {
        self.may_hang = may_hang;
        if self.file.is_none() {
            self.file = Some(LockFile::New(open_for_locks(model)?));
        }
        Ok(())
    }

    /// Does something with the description, if there is one.
    fn with_file<T>(&self, act: impl FnOnce(&OwnedFd) -> sys::Result<T>) -> sys::Result<Option<T>> {
        match &self.file {
            None => Ok(None),
            Some(LockFile::New(file)) => act(file).map(Some),
            Some(LockFile::Kept(file)) => act(&*file.get()?).map(Some),
        }
    }

    /// Has the branch lock these bytes so, for all owners together.
    fn set(&self, sort: Sort, span: Span, kind: Option<LockMode>) -> sys::Result<()> {
        self.with_file(|file| set_on(file, sort, span, kind))?;
        Ok(())
    }

    /// Brings the branch to where the table is.
    fn follow(&self, sort: Sort, parts: &[(Span, Option<LockMode>)]) {
        for (span, kind) in parts {
            if let Err(errno) = self.set(sort, *span, *kind) {
                tracing::warn!(%errno, "a branch did not take the end of a lock");
            }
        }
    }
}

fn set_on(file: &OwnedFd, sort: Sort, span: Span, kind: Option<LockMode>) -> sys::Result<()> {
    match sort {
        Sort::Range => sys::set_range_lock(file.as_fd(), to_range(span, kind)),
        Sort::Whole => {
            let operation = match kind {
                Some(LockMode::Shared) => libc::LOCK_SH,
                Some(LockMode::Exclusive) => libc::LOCK_EX,
                None => libc::LOCK_UN,
            };
            sys::flock(file.as_fd(), operation | libc::LOCK_NB)
        }
    }
}

impl NodeLocks {
    /// Nothing is locked. What each user holds is counted in `counts`.
    pub fn new(counts: Arc<RangeCounts>) -> NodeLocks {
        NodeLocks {
            side: Mutex::default(),
            tables: Mutex::new(Tables::new(counts)),
        }
    }

    /// The tables.
    pub fn tables(&self) -> MutexGuard<'_, Tables, { rank::LOCK_TABLES }> {
        self.tables.lock()
    }

    /// Whether the branch may take for ever to answer.
    pub fn may_hang(&self) -> bool {
        self.side.try_lock().is_none_or(|side| side.may_hang)
    }

    /// Locks or unlocks, if that can be at once. `model` is open on the branch file.
    ///
    /// # Errors
    /// Those of `open(2)` and `fcntl(2)` on the branch.
    pub fn attempt(
        &self,
        cx: &Context<'_>,
        (model, may_hang): (&OwnedFd, bool),
        asked: &Asked,
        answers: &mut Answers,
    ) -> sys::Result<Attempt> {
        let mut side = self.side.try_lock().unwrap_or_else(|| {
            cx.may_block();
            self.side.lock()
        });
        if asked.of_description && self.tables.lock().is_of_another_file(asked) {
            self.release_in(&side, asked.owner, (Sort::Range, Span::ALL), answers);
        }
        let Some(kind) = asked.kind else {
            if self.tables.lock().is_full_for(asked) {
                return Err(Errno::NOLCK);
            }
            self.release_in(&side, asked.owner, (asked.sort, asked.span), answers);
            self.tables.lock().count(asked.owner, asked.uid);
            return Ok(Attempt::Done);
        };
        match side.open(model, may_hang) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(Attempt::Leased),
            Err(errno) => return Err(errno),
        }
        if asked.sort == Sort::Range {
            let dead = self.tables.lock().dead_against(asked, kind);
            for owner in dead {
                self.release_in(&side, owner, (Sort::Range, Span::ALL), answers);
            }
        }
        let mut tables = self.tables.lock();
        let table = tables.of(asked.sort);
        let against = table.held.against(asked.owner, asked.span, kind);
        if against.take(1).count() > 0 {
            let converts = asked.sort == Sort::Whole && table.held.holds(asked.owner);
            drop(tables);
            if converts {
                // flock(2): what is held goes before another kind of it is waited for.
                self.release_in(&side, asked.owner, (Sort::Whole, Span::ALL), answers);
            }
            return Ok(Attempt::Held);
        }
        if tables.is_full_for(asked) {
            return Err(Errno::NOLCK);
        }
        let held = &mut tables.of(asked.sort).held;
        let before = held.held_within(asked.owner, asked.span);
        held.set(asked.owner, asked.span, Some(kind));
        drop(tables);
        let outcome = self.confirm(&side, asked, kind, &before);
        let lowers = is_less(kind, &before);
        let lost = asked.sort == Sort::Whole && !before.is_empty();
        if outcome.is_ok() && lowers || outcome.is_err() && lost {
            self.wake_in(&side, asked.sort, asked.span, answers);
        }
        match outcome {
            Ok(()) => Ok(Attempt::Done),
            Err(Errno::AGAIN) => Ok(Attempt::HeldOutside),
            Err(errno) => Err(errno),
        }
    }

    /// Has the branch agree to what the table has granted, or takes that back.
    fn confirm(
        &self,
        side: &BranchSide,
        asked: &Asked,
        kind: LockMode,
        before: &[Piece],
    ) -> sys::Result<()> {
        let outcome = side.set(asked.sort, asked.span, Some(kind));
        let mut tables = self.tables.lock();
        match outcome {
            Ok(()) => {
                tables.note(asked);
                tables.count(asked.owner, asked.uid);
            }
            Err(_) => {
                let held = &mut tables.of(asked.sort).held;
                match asked.sort {
                    Sort::Range => held.put_back(asked.owner, asked.span, before),
                    // The kernel, too, has let go of what was there.
                    Sort::Whole => held.set(asked.owner, asked.span, None),
                }
            }
        }
        outcome
    }

    fn release_in(
        &self,
        side: &BranchSide,
        owner: LockOwner,
        (sort, span): (Sort, Span),
        answers: &mut Answers,
    ) {
        let mut tables = self.tables.lock();
        let table = tables.of(sort);
        if !table.held.holds(owner) {
            return;
        }
        table.held.set(owner, span, None);
        let parts = table.held.union(span);
        if sort == Sort::Range {
            tables.recount(owner);
        }
        if sort == Sort::Range && !tables.range.held.holds(owner) {
            tables.forget(owner);
        }
        drop(tables);
        side.follow(sort, &parts);
        self.wake_in(side, sort, span, answers);
    }

    /// Ends all byte ranges that an owner holds.
    pub fn release(&self, owner: LockOwner, answers: &mut Answers) {
        let side = self.side.lock();
        self.release_in(&side, owner, (Sort::Range, Span::ALL), answers);
    }

    /// An open file is used no more: its locks end, its `flock` among them if `flocked` says that it
    /// may have one.
    pub fn close(&self, through: usize, flocked: bool, answers: &mut Answers) {
        // Whoever asks the branch need not be waited for where nothing was locked through the file.
        if !flocked && self.tables.lock().ends_nothing(through) {
            return;
        }
        // From before the look: an owner's word may be another's from here on, who locks meanwhile.
        let side = self.side.lock();
        let ended = self.tables.lock().end_of(through);
        for owner in ended {
            self.release_in(&side, owner, (Sort::Range, Span::ALL), answers);
        }
        if flocked {
            let owner = asked::flock_owner(through);
            self.release_in(&side, owner, (Sort::Whole, Span::ALL), answers);
        }
    }

    /// A close of an open file was told, perhaps its last.
    pub fn close_told(&self, through: usize) {
        let mut tables = self.tables.lock();
        if !tables.range.held.is_empty() || !tables.whole.held.is_empty() {
            tables.closing.told(through, sys::mono_coarse_ms());
        }
    }

    /// How long somebody whom others stand against may be put aside: all of them may have closed
    /// their files already. `None` if nobody stands against it any more.
    pub fn patience(&self, cx: &Context<'_>, asked: &Asked) -> Option<Duration> {
        let kind = asked.kind.unwrap_or(LockMode::Exclusive);
        // Nobody is half released then.
        let _side = self.side.try_lock().unwrap_or_else(|| {
            cx.may_block();
            self.side.lock()
        });
        let tables = self.tables.lock();
        tables.patience(asked, kind, sys::mono_coarse_ms())
    }

    /// They had not.
    pub fn waited_in_vain(&self, asked: &Asked) {
        let kind = asked.kind.unwrap_or(LockMode::Exclusive);
        let mut tables = self.tables.lock();
        tables.waited_in_vain(asked, kind, sys::mono_coarse_ms());
    }

    /// Grants what can be granted of this sort to those who wait for any of these bytes, in the
    /// order they came, as far as they do not stand against each other. Whether somebody outside
    /// stands against one of them.
    fn wake_in(&self, side: &BranchSide, sort: Sort, span: Span, answers: &mut Answers) -> bool {
        let mut fronts = self.tables.lock().of(sort).waiting.fronts(&span);
        let mut outside = false;
        while let Some((_, class)) = fronts.pop_first() {
            let mut tables = self.tables.lock();
            let Table { held, waiting } = tables.of(sort);
            let Some(turn) = waiting.grantable(&class, held) else {
                continue;
            };
            // Not the first of its class: others may have come before it.
            if fronts.first().is_some_and(|(first, _)| *first < turn) {
                fronts.insert((turn, class));
                continue;
            }
            let Some(waiter) = waiting.remove(class.0, class.1, turn) else {
                continue;
            };
            let (asked, kind) = (&waiter.asked, class.1);
            if let Some(next) = waiting.front(&class) {
                fronts.insert((next, class));
            }
            if tables.is_full_for(asked) {
                answers.push((waiter.token, Err(Errno::NOLCK)));
                continue;
            }
            let held = &mut tables.of(sort).held;
            let before = held.held_within(asked.owner, asked.span);
            held.set(asked.owner, asked.span, Some(kind));
            drop(tables);
            match self.confirm(side, asked, kind, &before) {
                Err(Errno::AGAIN) => {
                    outside = true;
                    fronts.retain(|(_, other)| *other != class);
                    let mut tables = self.tables.lock();
                    tables.outside = true;
                    // An interrupt that did not find it meanwhile has left a mark.
                    match waiter.is_interrupted() {
                        true => answers.push((waiter.token, Err(Errno::INTR))),
                        false => tables.of(sort).waiting.put_back(turn, waiter),
                    }
                }
                outcome => {
                    // Who wanted less than before makes room for those passed over above.
                    if outcome.is_ok() && is_less(kind, &before) {
                        let mut tables = self.tables.lock();
                        fronts.extend(tables.of(sort).waiting.fronts(&asked.span));
                    }
                    answers.push((waiter.token, outcome));
                }
            }
        }
        outside
    }

    /// Tries all that wait once more: somebody outside may have gone. Whether one of them still
    /// waits for that, or for a process that may be gone without anybody being told.
    pub fn retry(&self, answers: &mut Answers) -> bool {
        let side = self.side.lock();
        let dead: Vec<LockOwner> = {
            let mut tables = self.tables.lock();
            let fronts = tables.range.waiting.front_requests();
            let dead = fronts.iter().filter_map(|asked| Some((asked, asked.kind?)));
            dead.flat_map(|(asked, kind)| tables.dead_against(asked, kind))
                .collect()
        };
        for owner in dead {
            self.release_in(&side, owner, (Sort::Range, Span::ALL), answers);
        }
        let mut outside = self.wake_in(&side, Sort::Range, Span::ALL, answers);
        outside |= self.wake_in(&side, Sort::Whole, Span::ALL, answers);
        let tables = self.tables.lock();
        let fronts = tables.range.waiting.front_requests();
        outside || fronts.iter().any(|asked| tables.may_die_unseen(asked))
    }

    /// The first lock that stands against this one, and who holds it; the branch is asked through
    /// `model` if nobody here does.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn first_against(&self, cx: &Context<'_>, asked: &Asked) -> sys::Result<Option<Lock>> {
        let Some(kind) = asked.kind else {
            return Ok(None);
        };
        let side = self.side.try_lock().unwrap_or_else(|| {
            cx.may_block();
            self.side.lock()
        });
        let mut tables = self.tables.lock();
        let dead = tables.dead_against(asked, kind);
        let held = &tables.range.held;
        let against = held.against(asked.owner, asked.span, kind);
        let living = against.into_iter().find(|owner| !dead.contains(owner));
        if let Some(owner) = living {
            let pieces = held.held_within(owner, asked.span);
            let pid = tables.owners.get(&owner).map_or(0, |owned| owned.pid);
            let conflicts =
                |piece: &&Piece| kind == LockMode::Exclusive || piece.kind > LockMode::Shared;
            let piece = pieces.iter().find(conflicts).map(|piece| piece.span.start);
            let whole = held.pieces(owner).into_iter();
            let found = piece.and_then(|at| whole.rev().find(|piece| piece.span.start <= at));
            return Ok(found.map(|piece| from_range(to_range(piece.span, Some(piece.kind)), pid)));
        }
        drop(tables);
        let asked = side.with_file(|file| get_on(file, asked.span, kind))?;
        Ok(asked.flatten())
    }

    /// A description on another file that holds all that is held here.
    ///
    /// # Errors
    /// Those of `open(2)`; EAGAIN if somebody else holds a lock that stands against it.
    pub fn carried_to(&self, model: &OwnedFd) -> sys::Result<Option<OwnedFd>> {
        let side = self.side.lock();
        if side.file.is_none() {
            return Ok(None);
        }
        let file = open_for_locks(model)?;
        for (sort, span, kind) in self.all_held() {
            if kind.is_some() {
                set_on(&file, sort, span, kind)?;
            }
        }
        Ok(Some(file))
    }

    /// The file has moved: from now on this description is the pool's. Whoever locked or unlocked
    /// since it was made is in the tables.
    pub fn adopt(&self, file: Kept, may_hang: bool) {
        self.adopt_file(LockFile::Kept(file), may_hang);
    }

    /// Counts the description among the open files, by way of `keep`.
    pub(crate) fn keep_file(&self, keep: impl FnOnce(OwnedFd) -> Kept) {
        let mut side = self.side.lock();
        side.file = match side.file.take() {
            Some(LockFile::New(file)) => Some(LockFile::Kept(keep(file))),
            other => other,
        };
    }

    fn adopt_file(&self, file: LockFile, may_hang: bool) {
        let mut side = self.side.lock();
        side.file = Some(file);
        side.may_hang = may_hang;
        for (sort, span, kind) in self.all_held() {
            if let Err(errno) = side.set(sort, span, kind) {
                tracing::warn!(%errno, "a lock could not follow a file that moved");
            }
        }
    }

    fn all_held(&self) -> Vec<(Sort, Span, Option<LockMode>)> {
        let mut tables = self.tables.lock();
        let mut all = Vec::new();
        for sort in [Sort::Range, Sort::Whole] {
            let parts = tables.of(sort).held.union(Span::ALL);
            all.extend(parts.into_iter().map(|(span, kind)| (sort, span, kind)));
        }
        all
    }

    /// Whether there is a description to ask the branch with.
    pub fn has_asked_branch(&self) -> bool {
        self.side.lock().file.is_some()
    }
}

/// Whether somebody may get in who was kept out by what was held before.
fn is_less(kind: LockMode, before: &[Piece]) -> bool {
    before.iter().any(|piece| piece.kind > kind)
}

/// The first lock of somebody outside that stands against this one.
pub(crate) fn get_on(file: &OwnedFd, span: Span, kind: LockMode) -> sys::Result<Option<Lock>> {
    let held = sys::get_range_lock(file.as_fd(), to_range(span, Some(kind)))?;
    // Held by an open file description: of which process, nobody knows.
    Ok(held.map(|(range, pid)| from_range(range, u32::try_from(pid).unwrap_or(0))))
}

/// A description of the same file that can hold locks of either kind, if that is allowed.
///
/// # Errors
/// Those of `open(2)`; EAGAIN while somebody has a lease that stands against it.
fn open_for_locks(model: &OwnedFd) -> sys::Result<OwnedFd> {
    let flags = OFlags::NONBLOCK;
    match reopen(model.as_fd(), OFlags::RDWR | flags) {
        Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => {
            reopen(model.as_fd(), OFlags::RDONLY | flags)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
