//! The copy before it has the file's names.
//!
//! Where the filesystem makes nameless files it has no name at all until it is whole: a server that
//! dies leaves nothing of it, wherever its directory has been renamed to meanwhile. Elsewhere (most
//! network filesystems) it has one of our names, beside the one it is to get, and a record.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::base::branch::{Branch, may_be_kept_on};
use crate::base::step::{may_be_nameless, step};
use crate::base::sys;
use crate::mover::record::Record;
use crate::state::node::DirEntry;

/// A file that is to become the moved one.
pub(super) struct StagingCopy {
    /// Open for reading and writing.
    pub(super) file: OwnedFd,
    branch: Arc<Branch>,
    dir: Arc<OwnedFd>,
    /// Its name, if it has one of ours.
    part: Option<OsString>,
    record: Option<Record>,
    /// One of its names could not be taken back.
    named_still: bool,
}

impl StagingCopy {
    /// An empty file in a directory of a branch, `path` below its root.
    ///
    /// # Errors
    /// Those of making files.
    pub(super) fn make(
        branch: &Arc<Branch>,
        dir: &Arc<OwnedFd>,
        path: &Path,
    ) -> sys::Result<StagingCopy> {
        step();
        let nameless = match may_be_nameless() {
            true => StagingCopy::nameless(branch, dir),
            false => Err(Errno::OPNOTSUPP),
        };
        let staging = match nameless {
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                StagingCopy::named(branch, dir, path)
            }
            other => other,
        };
        step();
        staging
    }

    /// One that can be nameless only.
    ///
    /// # Errors
    /// Those of `O_TMPFILE`; EOPNOTSUPP and others where there is no such thing.
    pub(super) fn nameless(branch: &Arc<Branch>, dir: &Arc<OwnedFd>) -> sys::Result<StagingCopy> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR)?;
        Ok(StagingCopy {
            file,
            branch: Arc::clone(branch),
            dir: Arc::clone(dir),
            part: None,
            record: None,
            named_still: false,
        })
    }

    fn named(branch: &Arc<Branch>, dir: &Arc<OwnedFd>, path: &Path) -> sys::Result<StagingCopy> {
        let record = Record::begin(branch, path)?;
        step();
        let part = record.part_name();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = sys::with_umask(0, || {
            rustix::fs::openat(dir, &part, flags, Mode::RUSR | Mode::WUSR)
        });
        match made {
            Ok(file) => Ok(StagingCopy {
                file,
                branch: Arc::clone(branch),
                dir: Arc::clone(dir),
                part: Some(part),
                record: Some(record),
                named_still: false,
            }),
            Err(errno) => {
                record.end();
                Err(errno)
            }
        }
    }

    /// The directory of its (first) name.
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Notes that the file is whole and about to get these names, which lead to it as `made`;
    /// those of the original, `source`, are to go then.
    ///
    /// # Errors
    /// Those of making, locking and syncing a file.
    pub(super) fn note(
        &mut self,
        names: &[(PathBuf, OsString)],
        source: (&Branch, &Statx),
        made: &Statx,
    ) -> sys::Result<()> {
        match &mut self.record {
            Some(record) => record.complete(names, source, made),
            None => {
                self.record = Some(Record::of_switch(&self.branch, names, source, made)?);
                Ok(())
            }
        }
    }

    /// Gives it a name, replacing nothing: one of several, or the last.
    ///
    /// # Errors
    /// Those of `link(2)` and `rename(2)`; EEXIST among them.
    pub(super) fn take_name(
        &mut self,
        dir: &DirEntry,
        name: &OsStr,
        last: bool,
    ) -> sys::Result<()> {
        // Nobody asked root for it: the directory does not grow into what is kept for root.
        let payer = match may_be_kept_on(dir.fd.as_fd()) {
            true => sys::NOBODY,
            false => 0,
        };
        sys::on_account_with_powers(payer, || match self.part.take_if(|_| last) {
            None => link(&self.file, dir, name),
            Some(part) => rename_new(dir, &part, name).inspect_err(|_| self.part = Some(part)),
        })
    }

    /// It keeps a name though the move is undone: the record stays, for the next server.
    pub(super) fn leave_record(&mut self) {
        self.named_still = true;
    }

    /// The move is over, or undone: takes away what was only for it.
    pub(super) fn end(self) {
        if let Some(part) = &self.part
            && let Err(errno) = rustix::fs::unlinkat(&self.dir, part, AtFlags::empty())
            // It has the file's name by now, or had: a server did it, and its answer was lost.
            && errno != Errno::NOENT
        {
            // The record stays with it, for the next server.
            tracing::warn!(branch = %self.branch.path.display(), ?part, %errno, "the copy of a file that stays could not be removed");
            return;
        }
        step();
        if let Some(record) = self.record {
            match self.named_still {
                true => drop(record.leave()),
                false => record.end(),
            }
        }
    }
}

/// Gives an open file a (further) name.
pub(super) fn link(file: &OwnedFd, dir: &DirEntry, name: &OsStr) -> sys::Result<()> {
    let path = sys::ProcPath::new(file);
    let follow = AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), &dir.fd, name, follow)
}

/// Renames within a directory, never over anything.
fn rename_new(dir: &DirEntry, from: &OsStr, to: &OsStr) -> sys::Result<()> {
    let fd = dir.fd.as_fd();
    match sys::rename_flags(fd, from, fd, to, libc::RENAME_NOREPLACE) {
        // A filesystem without the flag: a link does not replace either.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::linkat(fd, from, fd, to, AtFlags::empty())?;
            rustix::fs::unlinkat(fd, from, AtFlags::empty())
        }
        outcome => outcome,
    }
}
