//! The steps of a rename, run in order and undone in reverse.

mod noted;

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, Statx};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::FileKind;

use crate::base::branch::Branch;
use crate::base::error::{Error, Result};
use crate::base::step::step as step_passed;
use crate::base::sys;
use crate::mover::{Decisive, Displaced, NameOnBranch, Record};
use crate::ops::create::unlink_flags;
use crate::ops::durable;
use crate::ops::remove::{self, open_kept, restore_dir};
pub(crate) use crate::ops::rename_ends::Ends;
use crate::state::node::DirEntry;

enum Step<'a> {
    /// The new name is free on this branch.
    Move(Ends<'a>),
    /// The new name is taken: swapped first, so that it can be swapped back.
    Replace(Ends<'a>, FileKind),
    /// Both names exist and are to be swapped.
    Swap(Ends<'a>),
    /// A copy of the target on a branch further ahead hides the new name until it is removed:
    /// up to then the file keeps the old one and has the new one as a further name. A copy of the
    /// target that has the new name here is hidden, and goes before.
    Behind(Ends<'a>, Option<FileKind>),
}

impl<'a> Step<'a> {
    fn ends(&self) -> &Ends<'a> {
        match self {
            Step::Move(ends)
            | Step::Replace(ends, _)
            | Step::Swap(ends)
            | Step::Behind(ends, _) => ends,
        }
    }
}

/// The directories of both names below the branches' roots.
pub(crate) struct Paths {
    /// Of the old name.
    pub from: PathBuf,
    /// Of the new name.
    pub to: PathBuf,
}

/// What is left under the new name on a branch where nothing moves.
struct Stale<'a> {
    dir: DirEntry,
    name: &'a OsStr,
    kind: FileKind,
    rank: usize,
}

/// An empty directory that was removed, with all that is needed to make it again.
type RemovedDir = Box<(Statx, OwnedFd)>;

/// How far a step came.
enum Stage {
    /// Nothing was done, or nothing that could be undone.
    Begun,
    /// The name is changed; what it replaces is still there.
    Made,
    /// What the name replaces is removed.
    Cleared(Option<RemovedDir>),
}

/// A copy of the target that is to be removed.
enum Doomed<'p, 'a> {
    Stale(&'p Stale<'a>),
    /// Of the step of this number.
    Of(usize, &'p Ends<'a>, FileKind),
    /// The same where the moved file has yet to get the name.
    Behind(usize, &'p Ends<'a>, FileKind),
}

impl Doomed<'_, '_> {
    fn rank(&self) -> usize {
        match self {
            Doomed::Stale(stale) => stale.rank,
            Doomed::Of(_, ends, _) | Doomed::Behind(_, ends, _) => ends.rank,
        }
    }

    fn dir(&self) -> &DirEntry {
        match self {
            Doomed::Stale(stale) => &stale.dir,
            Doomed::Of(_, ends, _) | Doomed::Behind(_, ends, _) => &ends.from,
        }
    }

    /// Where it is: the exchange of a step has given it the old name.
    fn spot(&self) -> (&DirEntry, &OsStr) {
        match self {
            Doomed::Of(_, ends, _) => (&ends.from, ends.from_name),
            Doomed::Stale(_) | Doomed::Behind(..) => self.home(),
        }
    }

    /// The same, and where that is on its branch.
    fn place<'s>(&'s self, paths: &'s Paths) -> NameOnBranch<'s> {
        let (dir, name) = self.spot();
        let path = match self {
            Doomed::Of(..) => &paths.from,
            Doomed::Stale(_) | Doomed::Behind(..) => &paths.to,
        };
        NameOnBranch { dir, path, name }
    }

    /// Where it belongs as long as nothing is renamed.
    fn home(&self) -> (&DirEntry, &OsStr) {
        match self {
            Doomed::Stale(stale) => (&stale.dir, stale.name),
            Doomed::Of(_, ends, _) | Doomed::Behind(_, ends, _) => (&ends.to, ends.to_name),
        }
    }

    fn kind(&self) -> FileKind {
        match self {
            Doomed::Stale(stale) => stale.kind,
            Doomed::Of(_, _, kind) | Doomed::Behind(_, _, kind) => *kind,
        }
    }
}

/// What a plan has done.
#[derive(Default)]
struct Done<'p, 'a> {
    /// For each step begun.
    stages: SmallVec<[Stage; 2]>,
    /// Stale names that are removed.
    stale: SmallVec<[(&'p Stale<'a>, Option<RemovedDir>); 1]>,
    /// Copies of a file that can be put back.
    aside: SmallVec<[Displaced; 1]>,
    /// Copies of a file are gone for good.
    files_gone: bool,
}

/// A rename over branches.
#[derive(Default)]
pub(crate) struct RenamePlan<'a> {
    steps: SmallVec<[Step<'a>; 2]>,
    stale: SmallVec<[Stale<'a>; 1]>,
    /// Where the old name stays.
    kept: SmallVec<[Arc<Branch>; 1]>,
    /// Where what is noted of the rename is.
    paths: Option<Paths>,
    /// Of a step behind another branch.
    record: Cell<Option<Record>>,
    /// Of all the others.
    undo_record: Cell<Option<Record>>,
    /// Disks that come back each with a past of its own must not leave it half made.
    outlives_power_cut: bool,
}

impl<'a> RenamePlan<'a> {
    /// Moves a name, over a target of kind `target` if there is one on this branch.
    pub(crate) fn move_name(&mut self, ends: Ends<'a>, target: Option<FileKind>) {
        self.steps.push(match target {
            None => Step::Move(ends),
            Some(kind) => Step::Replace(ends, kind),
        });
    }

    /// Moves the name of a file that users see, where what it replaces lies (also) on a branch
    /// further ahead.
    pub(crate) fn move_behind(&mut self, ends: Ends<'a>, target: Option<FileKind>) {
        self.steps.push(Step::Behind(ends, target));
    }

    /// Tells the directories of both names: needed for [`RenamePlan::move_behind`], and wherever a change
    /// of one name is not all.
    pub(crate) fn set_paths(&mut self, paths: Option<Paths>) {
        self.paths = paths;
    }

    /// Tells of a branch that keeps the old name.
    pub(crate) fn keep(&mut self, branch: &Arc<Branch>) {
        self.kept.push(Arc::clone(branch));
    }

    /// Has a power cut leave all of it or nothing where it changes names on several disks: a directory
    /// would have two names, or one of two files that change places would hide the other. Costs a sync of
    /// the record and two of each branch. Whether it does.
    pub(crate) fn outlive_power_cut(&mut self) -> bool {
        let mut dirs = self.steps.iter().map(|step| &step.ends().from);
        let first = dirs.next();
        self.outlives_power_cut =
            first.is_some_and(|first| dirs.any(|dir| !durable::same_disk(first, dir)));
        self.outlives_power_cut
    }

    /// Swaps two names on a branch.
    pub(crate) fn swap(&mut self, ends: Ends<'a>) {
        self.steps.push(Step::Swap(ends));
    }

    /// Removes a name that the moved one replaces, once all moves are made.
    pub(crate) fn drop_stale(
        &mut self,
        dir: DirEntry,
        name: &'a OsStr,
        kind: FileKind,
        rank: usize,
    ) {
        self.stale.push(Stale {
            dir,
            name,
            kind,
            rank,
        });
    }

    /// Runs the plan. A rename that concerns one branch is that branch's own rename, atomic and
    /// with its own errors.
    ///
    /// # Errors
    /// The first branch's refusal, after everything before it was undone; but a branch that fails
    /// again is left as it is, copies that the target's shown one hides may be gone from a branch
    /// too full to note that they are set aside, and the moved file keeps both names where only
    /// the old one could not be removed.
    pub(crate) fn run(self, flags: u32) -> Result<()> {
        let outcome = self.run_noted(flags);
        self.record.take().into_iter().for_each(Record::end);
        self.end_undo_record();
        outcome
    }

    fn run_noted(&self, flags: u32) -> Result<()> {
        if let ([step], []) = (&self.steps[..], &self.stale[..]) {
            let flags = match step {
                Step::Move(_) | Step::Replace(..) | Step::Behind(..) => {
                    flags & !libc::RENAME_EXCHANGE
                }
                Step::Swap(_) => libc::RENAME_EXCHANGE,
            };
            let ends = step.ends();
            return match ends.rename(flags) {
                Ok(()) => Ok(()),
                Err(errno) => ends.after_failure(errno),
            };
        }
        self.note_changes();
        step_passed();
        let mut done = Done::default();
        for step in &self.steps {
            let outcome = match step {
                Step::Move(ends) => ends.rename_if_able(libc::RENAME_NOREPLACE),
                Step::Replace(ends, _) => ends.rename_if_able(libc::RENAME_EXCHANGE),
                Step::Swap(ends) => ends.rename(libc::RENAME_EXCHANGE),
                Step::Behind(ends, None) => self.link(ends),
                Step::Behind(_, Some(_)) => {
                    done.stages.push(Stage::Begun);
                    continue;
                }
            };
            if let Err(errno) = outcome {
                let ends = step.ends();
                let mut error = Error::from(errno);
                if ends.is_made() {
                    done.stages.push(Stage::Made);
                } else if let Err(told) = ends.after_failure(errno) {
                    // Perhaps it is, and cannot be taken back.
                    error = told;
                }
                return Err(self.undone(done, error));
            }
            done.stages.push(Stage::Made);
            step_passed();
        }
        self.finish(flags, done)
    }

    fn link(&self, ends: &Ends<'_>) -> sys::Result<()> {
        self.note(ends);
        step_passed();
        ends.link()
    }

    /// What a branch's power cut takes back must not hide the file: the names ahead of it are gone
    /// for good before it has the new name alone.
    fn unlink_old(&self, ends: &Ends<'_>) -> sys::Result<()> {
        let ahead = self.stale.iter().filter(|stale| stale.rank < ends.rank);
        for stale in ahead.filter(|stale| !durable::same_disk(&stale.dir, &ends.to)) {
            durable::dir(&stale.dir)?;
        }
        ends.unlink_old()
    }

    /// The first branch that has the file under its new name, if it is not on the disk of `dir`:
    /// after a power cut each disk has its own past.
    fn shown_elsewhere(&self, dir: &DirEntry) -> Option<&Ends<'a>> {
        let all = self.steps.iter().map(Step::ends);
        let shown = all.min_by_key(|ends| ends.rank);
        shown.filter(|shown| !durable::same_disk(&shown.to, dir))
    }

    /// The failure of a plan that is undone as far as it came; one that cannot be has an effect.
    fn undone(&self, done: Done<'_, '_>, error: Error) -> Error {
        match self.undo(done) {
            true => error,
            false => error.after_effect(),
        }
    }

    /// Whether all is as it was.
    fn undo(&self, mut done: Done<'_, '_>) -> bool {
        let mut all = true;
        for (step, stage) in self.steps.iter().zip(&done.stages).rev() {
            let ends = step.ends();
            let branch = &ends.from.branch;
            let outcome = match (step, stage) {
                (_, Stage::Begun) => continue,
                (Step::Behind(..), _) => undone_in_the_end(branch, || ends.unlink_new()),
                (Step::Swap(_), _) | (Step::Replace(..), Stage::Made) => {
                    undone_in_the_end(branch, || ends.rename(libc::RENAME_EXCHANGE))
                }
                (Step::Move(_), _) | (_, Stage::Cleared(None)) => {
                    undone_in_the_end(branch, || ends.rename_back())
                }
                // Each by itself: a name that is back cannot be taken back once more.
                (_, Stage::Cleared(Some(dir))) => undone_in_the_end(branch, || ends.rename_back())
                    .and_then(|()| {
                        undone_in_the_end(branch, || put_back(&ends.to, ends.to_name, dir))
                    }),
            };
            if let Err(errno) = outcome {
                all = false;
                tracing::error!(branch = %ends.from.branch.path.display(), from = ?ends.from_name, to = ?ends.to_name, %errno, "a rename could not be undone");
            }
        }
        for (stale, dir) in &done.stale {
            if let Some(Err(errno)) = dir.as_ref().map(|dir| {
                let branch = &stale.dir.branch;
                undone_in_the_end(branch, || put_back(&stale.dir, stale.name, dir))
            }) {
                all = false;
                tracing::error!(branch = %stale.dir.branch.path.display(), name = ?stale.name, %errno, "an empty directory could not be put back");
            }
        }
        while let Some(copy) = done.aside.pop() {
            copy.put_back();
        }
        all
    }

    /// Removes what was replaced, from the last branch to the first: should one refuse, what users
    /// see under the new name is still there, and the moves can be undone.
    fn finish<'p>(&'p self, flags: u32, done: Done<'p, 'a>) -> Result<()> {
        self.remove_replaced(done)?;
        // What is left goes forward.
        self.end_undo_record();
        step_passed();
        for step in &self.steps {
            if let Step::Behind(ends, _) = step
                && let Err(errno) = self.unlink_old(ends)
            {
                tracing::error!(branch = %ends.from.branch.path.display(), name = ?ends.from_name, %errno, "a renamed file keeps its old name too");
                return Err(Error::at(&ends.from.branch, errno).after_effect());
            }
        }
        step_passed();
        if flags & libc::RENAME_WHITEOUT != 0
            && let Some(Step::Move(ends) | Step::Replace(ends, _) | Step::Behind(ends, _)) =
                self.steps.first()
        {
            let whiteout = (FileType::CharacterDevice, Mode::empty());
            let outcome =
                rustix::fs::mknodat(&ends.from.fd, ends.from_name, whiteout.0, whiteout.1, 0);
            if let Err(errno) = outcome {
                tracing::error!(name = ?ends.from_name, %errno, "the whiteout could not be made");
            }
        }
        Ok(())
    }

    fn remove_replaced<'p>(&'p self, mut done: Done<'p, 'a>) -> Result<()> {
        let steps = self.steps.iter().enumerate();
        let mut doomed: SmallVec<[Doomed<'p, 'a>; 2]> = steps
            .filter_map(|(number, step)| match step {
                Step::Replace(ends, kind) => Some(Doomed::Of(number, ends, *kind)),
                Step::Behind(ends, Some(kind)) => Some(Doomed::Behind(number, ends, *kind)),
                Step::Move(_) | Step::Swap(_) | Step::Behind(_, None) => None,
            })
            .chain(self.stale.iter().map(Doomed::Stale))
            .collect();
        doomed.sort_by_key(|one| std::cmp::Reverse(one.rank()));
        let last = doomed.len().saturating_sub(1);
        // A single copy goes in one step.
        let decisive = match (&self.paths, doomed.last()) {
            (Some(paths), Some(one)) if last > 0 => Decisive::at(one.place(paths)),
            _ => None,
        };
        for (index, one) in doomed.iter().enumerate() {
            let decisive = decisive.as_ref().filter(|_| index < last);
            let mut dir = one.dir();
            let mut outcome = Ok(());
            if index == last
                && one.kind() != FileKind::Directory
                && let Some(shown) = self.shown_elsewhere(dir)
            {
                outcome = self
                    .sync_undo_record()
                    .and_then(|()| durable::name(&shown.to, shown.to_name));
                dir = outcome.map_or(&shown.to, |()| dir);
            }
            let outcome = outcome.and_then(|()| self.remove_one(one, decisive, &mut done));
            if let Err(errno) = outcome {
                if done.files_gone {
                    tracing::error!(branch = %dir.branch.path.display(), %errno, "a replaced name could not be removed here; its copies on later branches are gone");
                }
                return Err(self.undone(done, Error::at(&dir.branch, errno)));
            }
            step_passed();
        }
        if let Some(one) = doomed.last() {
            self.outlast(one);
        }
        done.aside.into_iter().for_each(Displaced::remove);
        Ok(())
    }

    fn remove_one<'p>(
        &self,
        one: &Doomed<'p, 'a>,
        decisive: Option<&Decisive>,
        done: &mut Done<'p, 'a>,
    ) -> sys::Result<()> {
        let removed = self.take_away(one, decisive, done)?;
        let (number, stage) = match one {
            Doomed::Stale(stale) => {
                done.stale.push((stale, removed));
                return Ok(());
            }
            Doomed::Of(number, ..) => (number, Stage::Cleared(removed)),
            Doomed::Behind(number, ends, _) => {
                self.link(ends)?;
                (number, Stage::Made)
            }
        };
        if let Some(slot) = done.stages.get_mut(*number) {
            *slot = stage;
        }
        Ok(())
    }

    /// Removes a copy, or sets it aside if another is `decisive`; returns what a directory can be
    /// put back from.
    fn take_away(
        &self,
        one: &Doomed<'_, 'a>,
        decisive: Option<&Decisive>,
        done: &mut Done<'_, 'a>,
    ) -> sys::Result<Option<RemovedDir>> {
        let kind = one.kind();
        if let (Some(decisive), Some(paths)) = (decisive, &self.paths)
            && kind != FileKind::Directory
        {
            match Displaced::put(one.place(paths), one.home(), decisive) {
                Ok(Some(copy)) => {
                    done.aside.push(copy);
                    return Ok(None);
                }
                Err(Errno::NOENT) => return Ok(None),
                Ok(None) => {}
                Err(errno) => return Err(errno),
            }
        }
        let (dir, name) = one.spot();
        let removed = remove(dir, name, kind)?;
        done.files_gone |= removed.is_none();
        Ok(removed)
    }
}

/// Takes a change back. btrfs at its quota refuses even that, until a commit has given back what was set
/// apart for the changes before it.
fn undone_in_the_end(
    branch: &Branch,
    mut undo: impl FnMut() -> sys::Result<()>,
) -> sys::Result<()> {
    const TRIES: usize = 4;
    let mut outcome = undo();
    for _ in 1..TRIES {
        if !matches!(outcome, Err(Errno::NOSPC | Errno::DQUOT)) {
            break;
        }
        if let Err(errno) = branch.commit_freed() {
            tracing::debug!(branch = %branch.path.display(), %errno, "nothing is given back");
        }
        outcome = undo();
    }
    outcome
}

/// Makes an empty directory again.
fn put_back(dir: &DirEntry, name: &OsStr, removed: &RemovedDir) -> sys::Result<()> {
    let (stat, kept) = &**removed;
    restore_dir(dir, name, stat, Some(kept))
}

/// Removes a name; returns what a directory can be put back from.
fn remove(dir: &DirEntry, name: &OsStr, kind: FileKind) -> sys::Result<Option<RemovedDir>> {
    let is_dir = kind == FileKind::Directory;
    let kept = match is_dir {
        true => open_kept(dir, name)
            .and_then(|fd| Some(Box::new((sys::statx_fd(fd.as_fd()).ok()?, fd)))),
        false => None,
    };
    match rustix::fs::unlinkat(&dir.fd, name, unlink_flags(is_dir)) {
        Ok(()) => Ok(kept),
        Err(Errno::NOENT) => Ok(None),
        // It is done, and its answer was lost.
        Err(_) if remove::is_gone(dir, name) => Ok(kept),
        Err(errno) => Err(errno),
    }
}
