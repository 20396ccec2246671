//! What is noted of a plan before it runs, for the server after one that is killed.

use std::cmp::Reverse;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::FileKind;

use crate::base::branch::Branch;
use crate::base::error::Result;
use crate::base::sys;
use crate::mover::{Record, Role};
use crate::ops::durable;
use crate::ops::rename_plan::{Doomed, Ends, RenamePlan, Step};

impl RenamePlan<'_> {
    /// Notes that a file is about to have two names. Without the note (a full branch) a server
    /// that is killed meanwhile leaves both.
    pub(super) fn note(&self, ends: &Ends<'_>) {
        let noted = sys::statx_name(ends.from.fd.as_fd(), ends.from_name).and_then(|stat| {
            let paths = self.paths.as_ref().ok_or(Errno::NOENT)?;
            let (from, to) = (
                (paths.from.as_path(), ends.from_name),
                (paths.to.as_path(), ends.to_name),
            );
            let ahead = || self.stale.iter().filter(|stale| stale.rank < ends.rank);
            let on_other_disks = ahead().any(|stale| !durable::same_disk(&stale.dir, &ends.to));
            let ahead: SmallVec<[&Branch; 2]> = ahead().map(|stale| &*stale.dir.branch).collect();
            Record::of_rename(&ends.from.branch, from, to, &stat, &ahead, on_other_disks)
        });
        match noted {
            Ok(record) => self.record.set(Some(record)),
            Err(errno) => {
                tracing::debug!(branch = %ends.from.branch.path.display(), %errno, "a rename goes on without a record");
            }
        }
    }

    /// Notes what is about to change on all branches, where a part of it would be neither the old
    /// state nor the new one. Without the note (full branches) that is what a server leaves that is
    /// killed meanwhile.
    pub(super) fn note_changes(&self) {
        let needs = |step: &Step<'_>| match step {
            Step::Replace(..) => true,
            // What lies behind the moved name, seen by nobody, would show again one day.
            Step::Move(_) => !self.stale.is_empty(),
            Step::Swap(_) | Step::Behind(..) => false,
        };
        // Otherwise the only change is one name's, or has a note of its own.
        if self.steps.len() == 1 && !self.steps.iter().any(needs) {
            return;
        }
        match self.undo_record() {
            Ok(record) => self.undo_record.set(Some(record)),
            Err(errno) => {
                tracing::debug!(%errno, "a rename over several branches goes on without a record");
            }
        }
        if self.outlives_power_cut
            && let Err(errno) = self.sync_undo_record()
        {
            tracing::warn!(%errno, "the record of a rename may not outlive a power cut");
        }
    }

    /// What is noted is of no use any more, once no power cut can undo a part of the rename.
    pub(super) fn end_undo_record(&self) {
        let Some(record) = self.undo_record.take() else {
            return;
        };
        if let Err((branch, errno)) = self.sync_names() {
            let left = record.leave();
            tracing::warn!(branch = %branch.path.display(), ?left, %errno, "a power cut may undo a part of a rename; its record stays for the next mount");
            return;
        }
        record.end();
    }

    fn sync_names(&self) -> std::result::Result<(), (&Branch, Errno)> {
        for ends in self.steps.iter().map(Step::ends) {
            if !self.outlives_power_cut {
                break;
            }
            let sync = |dir| durable::dir(dir).map_err(|errno| (&*ends.from.branch, errno));
            sync(&ends.from)?;
            if ends.from.identity != ends.to.identity {
                sync(&ends.to)?;
            }
        }
        Ok(())
    }

    /// Has what is noted outlive a power cut, before what is replaced goes from another disk: that
    /// one may come back with it.
    pub(super) fn sync_undo_record(&self) -> sys::Result<()> {
        let Some(record) = self.undo_record.take() else {
            return Ok(());
        };
        let outcome = record.sync();
        self.undo_record.set(Some(record));
        outcome
    }

    /// Waits until the last copy of what is replaced is gone for good, where a power cut could bring
    /// it back behind a renamed file of another disk, with no record left that tells of it.
    pub(super) fn outlast(&self, last: &Doomed<'_, '_>) {
        let dir = last.dir();
        let is_behind = |shown: &&Ends<'_>| shown.rank < last.rank();
        if last.kind() == FileKind::Directory
            || self.shown_elsewhere(dir).filter(is_behind).is_none()
        {
            return;
        }
        // A copy that changed places with the moved name lay in the other directory.
        let outcome = durable::dir(dir).and_then(|()| match last {
            Doomed::Of(_, ends, _) => durable::dir(&ends.to),
            Doomed::Stale(_) | Doomed::Behind(..) => Ok(()),
        });
        if let Err(errno) = outcome {
            let left = self.undo_record.take().map(Record::leave);
            tracing::warn!(branch = %dir.branch.path.display(), ?left, %errno, "what a rename replaced may come back after a power cut; the record of the rename stays for the next mount");
        }
    }

    fn undo_record(&self) -> Result<Record> {
        let mut changes: SmallVec<[(&Arc<Branch>, Role); 4]> = SmallVec::new();
        // The number, place and kind of what is removed.
        let mut doomed: SmallVec<[(usize, usize, FileKind); 4]> = SmallVec::new();
        for step in &self.steps {
            match step {
                Step::Move(ends) | Step::Swap(ends) => {
                    changes.push((&ends.from.branch, Role::Swapped));
                }
                Step::Replace(ends, kind) => {
                    doomed.push((changes.len(), ends.rank, *kind));
                    changes.push((&ends.from.branch, Role::Replaced));
                }
                Step::Behind(ends, _) => changes.push((&ends.from.branch, Role::Apart)),
            }
        }
        for stale in &self.stale {
            doomed.push((changes.len(), stale.rank, stale.kind));
            changes.push((&stale.dir.branch, Role::Dropped));
        }
        let kept = self.kept.iter();
        changes.extend(kept.map(|branch| (branch, Role::Apart)));
        // What is removed goes from the last branch to the first, which users see. Of directories,
        // which are empty, the last is as good, and none has to be made again.
        let all_dirs = doomed
            .iter()
            .all(|(_, _, kind)| *kind == FileKind::Directory);
        let decisive = match all_dirs {
            true => doomed.iter().min_by_key(|(_, rank, _)| Reverse(*rank)),
            false => doomed.iter().min_by_key(|(_, rank, _)| *rank),
        };
        let paths = self.paths.as_ref().ok_or(Errno::NOENT)?;
        // Of an exchange, too, the first step is from the old name to the new one.
        let ends = self.steps.first().ok_or(Errno::INVAL)?.ends();
        let (old, new) = (
            (paths.from.as_path(), ends.from_name),
            (paths.to.as_path(), ends.to_name),
        );
        Ok(Record::of_changes(
            old,
            new,
            &changes,
            decisive.map(|(number, ..)| *number),
        )?)
    }
}
