//! The steps of a rename, run in order and undone in reverse.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::FileKind;

use crate::faults::blame;
use crate::node::DirEntry;
use crate::ops::create::unlink_flags;
use crate::relocate::{Record, step as step_passed};
use crate::sys;

/// Both names of a rename on one branch.
pub(crate) struct Ends<'a> {
    /// Directory of the old name.
    pub from: DirEntry,
    /// The old name.
    pub from_name: &'a OsStr,
    /// Directory of the new name.
    pub to: DirEntry,
    /// The new name.
    pub to_name: &'a OsStr,
}

impl Ends<'_> {
    fn rename(&self, flags: u32) -> sys::Result<()> {
        let (from, to) = (self.from.fd.as_fd(), self.to.fd.as_fd());
        sys::rename_flags(from, self.from_name, to, self.to_name, flags)
    }

    /// With `flags` where the branch knows them (network filesystems often do not), else plainly:
    /// what the flags guard against was looked for before.
    fn rename_if_able(&self, flags: u32) -> sys::Result<()> {
        match self.rename(flags) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.rename(0),
            outcome => outcome,
        }
    }

    /// The new name as a further one of the same file; where the branch has no such thing it
    /// loses the old one now.
    fn link(&self) -> sys::Result<()> {
        let none = AtFlags::empty();
        match rustix::fs::linkat(
            &self.from.fd,
            self.from_name,
            &self.to.fd,
            self.to_name,
            none,
        ) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                self.rename_if_able(libc::RENAME_NOREPLACE)
            }
            outcome => outcome,
        }
    }

    /// Takes [`Ends::link`] back.
    fn unlink_new(&self) -> sys::Result<()> {
        if sys::statx_name(self.from.fd.as_fd(), self.from_name).is_err() {
            return self.rename_back();
        }
        rustix::fs::unlinkat(&self.to.fd, self.to_name, AtFlags::empty())
    }

    /// Completes [`Ends::link`].
    fn unlink_old(&self) -> sys::Result<()> {
        match rustix::fs::unlinkat(&self.from.fd, self.from_name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn rename_back(&self) -> sys::Result<()> {
        let (from, to) = (self.from.fd.as_fd(), self.to.fd.as_fd());
        sys::rename_flags(to, self.to_name, from, self.from_name, 0)
    }
}

enum Step<'a> {
    /// The new name is free on this branch.
    Move(Ends<'a>),
    /// The new name is taken: swapped first, so that it can be swapped back.
    Replace(Ends<'a>, FileKind),
    /// Both names exist and are to be swapped.
    Swap(Ends<'a>),
    /// A copy of the target on a branch further ahead hides the new name until it is removed:
    /// up to then the file keeps the old one. If the new name is free here the file gets it as a
    /// further name, else it takes it at last.
    Behind(Ends<'a>, Option<FileKind>),
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
}

/// A rename over branches.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    steps: SmallVec<[Step<'a>; 2]>,
    stale: SmallVec<[Stale<'a>; 1]>,
    /// Of a step behind another branch: where it is, and what is noted of it.
    paths: Option<Paths>,
    record: Cell<Option<Record>>,
}

impl<'a> Plan<'a> {
    /// Moves a name, over a target of kind `target` if there is one on this branch.
    pub(crate) fn move_name(&mut self, ends: Ends<'a>, target: Option<FileKind>) {
        self.steps.push(match target {
            None => Step::Move(ends),
            Some(kind) => Step::Replace(ends, kind),
        });
    }

    /// Moves the name of a file that users see, where what it replaces lies (also) on a branch
    /// further ahead.
    pub(crate) fn move_behind(
        &mut self,
        ends: Ends<'a>,
        target: Option<FileKind>,
        paths: Option<Paths>,
    ) {
        self.steps.push(Step::Behind(ends, target));
        self.paths = paths;
    }

    /// Notes that a file is about to have two names. Without the note (a full branch) a server
    /// that is killed meanwhile leaves both.
    fn note(&self, ends: &Ends<'_>) {
        let noted = sys::statx_name(ends.from.fd.as_fd(), ends.from_name).and_then(|stat| {
            let paths = self.paths.as_ref().ok_or(Errno::NOENT)?;
            let (from, to) = (
                (paths.from.as_path(), ends.from_name),
                (paths.to.as_path(), ends.to_name),
            );
            Record::of_rename(&ends.from.branch, from, to, &stat)
        });
        match noted {
            Ok(record) => self.record.set(Some(record)),
            Err(errno) => {
                tracing::debug!(branch = %ends.from.branch.path.display(), %errno, "a rename goes on without a record");
            }
        }
    }

    /// Swaps two names on a branch.
    pub(crate) fn swap(&mut self, ends: Ends<'a>) {
        self.steps.push(Step::Swap(ends));
    }

    /// Removes a name that the moved one replaces, once all moves are made.
    pub(crate) fn drop_stale(&mut self, dir: DirEntry, name: &'a OsStr, kind: FileKind) {
        self.stale.push(Stale { dir, name, kind });
    }

    /// Runs the plan. A rename that concerns one branch is that branch's own rename, atomic and
    /// with its own errors.
    ///
    /// # Errors
    /// The first branch's refusal, after everything before it was undone.
    pub(crate) fn run(self, flags: u32) -> sys::Result<()> {
        let outcome = self.run_noted(flags);
        if let Some(record) = self.record.take() {
            record.end();
        }
        outcome
    }

    fn run_noted(&self, flags: u32) -> sys::Result<()> {
        if let ([step], []) = (&self.steps[..], &self.stale[..]) {
            return match step {
                Step::Move(ends) | Step::Replace(ends, _) | Step::Behind(ends, _) => {
                    ends.rename(flags & !libc::RENAME_EXCHANGE)
                }
                Step::Swap(ends) => ends.rename(libc::RENAME_EXCHANGE),
            };
        }
        for (index, step) in self.steps.iter().enumerate() {
            let outcome = match step {
                Step::Move(ends) => ends.rename_if_able(libc::RENAME_NOREPLACE),
                Step::Replace(ends, _) => ends.rename_if_able(libc::RENAME_EXCHANGE),
                Step::Swap(ends) => ends.rename(libc::RENAME_EXCHANGE),
                Step::Behind(ends, None) => {
                    self.note(ends);
                    step_passed();
                    ends.link()
                }
                Step::Behind(_, Some(_)) => Ok(()),
            };
            if let Err(errno) = outcome {
                self.undo(index);
                return Err(errno);
            }
        }
        self.finish(flags)
    }

    fn undo(&self, count: usize) {
        for step in self.steps.iter().take(count).rev() {
            let (ends, outcome) = match step {
                Step::Move(ends) => (ends, ends.rename_back()),
                Step::Swap(ends) | Step::Replace(ends, _) => {
                    (ends, ends.rename(libc::RENAME_EXCHANGE))
                }
                Step::Behind(ends, None) => (ends, ends.unlink_new()),
                Step::Behind(_, Some(_)) => continue,
            };
            if let Err(errno) = outcome {
                tracing::error!(branch = %ends.from.branch.path.display(), from = ?ends.from_name, to = ?ends.to_name, %errno, "a rename could not be undone");
            }
        }
    }

    /// Removes what was replaced. While nothing is removed yet a refusal still undoes everything;
    /// after that the rest stays and is reported.
    fn finish(&self, flags: u32) -> sys::Result<()> {
        let mut any_removed = false;
        step_passed();
        // From the last branch to the first: what users see goes last.
        for stale in self.stale.iter().rev() {
            match remove(&stale.dir, stale.name, stale.kind) {
                Ok(()) => any_removed = true,
                Err(errno) if !any_removed => {
                    self.undo(self.steps.len());
                    return Err(blame(&stale.dir.branch, errno));
                }
                Err(errno) => unremoved(&stale.dir, stale.name, errno),
            }
        }
        step_passed();
        for step in &self.steps {
            let (ends, outcome) = match step {
                Step::Replace(ends, kind) => (ends, remove(&ends.from, ends.from_name, *kind)),
                Step::Behind(ends, None) => (ends, ends.unlink_old()),
                // The file itself: without this there was no rename.
                Step::Behind(ends, Some(_)) => {
                    ends.rename(0)
                        .map_err(|errno| blame(&ends.from.branch, errno))?;
                    continue;
                }
                Step::Move(_) | Step::Swap(_) => continue,
            };
            match outcome {
                Ok(()) => any_removed = true,
                Err(errno) if !any_removed => {
                    self.undo(self.steps.len());
                    return Err(blame(&ends.from.branch, errno));
                }
                Err(errno) => unremoved(&ends.from, ends.from_name, errno),
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
}

fn unremoved(dir: &DirEntry, name: &OsStr, errno: Errno) {
    tracing::error!(branch = %dir.branch.path.display(), ?name, %errno, "a replaced name could not be removed");
}

fn remove(dir: &DirEntry, name: &OsStr, kind: FileKind) -> sys::Result<()> {
    let flags = unlink_flags(kind == FileKind::Directory);
    match rustix::fs::unlinkat(&dir.fd, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
