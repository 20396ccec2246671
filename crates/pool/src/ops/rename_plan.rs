//! The steps of a rename, run in order and undone in reverse.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::FileKind;

use crate::faults::blame;
use crate::node::DirEntry;
use crate::ops::create::unlink_flags;
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
}

impl<'a> Plan<'a> {
    /// Moves a name, over a target of kind `target` if there is one on this branch.
    pub(crate) fn move_name(&mut self, ends: Ends<'a>, target: Option<FileKind>) {
        self.steps.push(match target {
            None => Step::Move(ends),
            Some(kind) => Step::Replace(ends, kind),
        });
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
        if let ([step], []) = (&self.steps[..], &self.stale[..]) {
            return match step {
                Step::Move(ends) | Step::Replace(ends, _) => {
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
            };
            if let Err(errno) = outcome {
                tracing::error!(branch = %ends.from.branch.path.display(), from = ?ends.from_name, to = ?ends.to_name, %errno, "a rename could not be undone");
            }
        }
    }

    /// Removes what was replaced. While nothing is removed yet a refusal still undoes everything;
    /// after that the rest stays and is reported.
    fn finish(&self, flags: u32) -> sys::Result<()> {
        // Those that would show again before those that the moved name hides.
        let stale = self
            .stale
            .iter()
            .map(|stale| (&stale.dir, stale.name, stale.kind));
        let replaced = self.steps.iter().filter_map(|step| match step {
            Step::Replace(ends, kind) => Some((&ends.from, ends.from_name, *kind)),
            Step::Move(_) | Step::Swap(_) => None,
        });
        let mut any_removed = false;
        for (dir, name, kind) in stale.chain(replaced) {
            match remove(dir, name, kind) {
                Ok(()) => any_removed = true,
                Err(errno) if !any_removed => {
                    self.undo(self.steps.len());
                    return Err(blame(&dir.branch, errno));
                }
                Err(errno) => {
                    tracing::error!(branch = %dir.branch.path.display(), ?name, %errno, "a replaced name could not be removed");
                }
            }
        }
        if flags & libc::RENAME_WHITEOUT != 0
            && let Some(Step::Move(ends) | Step::Replace(ends, _)) = self.steps.first()
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

fn remove(dir: &DirEntry, name: &OsStr, kind: FileKind) -> sys::Result<()> {
    let flags = unlink_flags(kind == FileKind::Directory);
    match rustix::fs::unlinkat(&dir.fd, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
