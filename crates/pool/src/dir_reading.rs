//! Directories that are opened to be listed: the descriptor that is kept of one is read at once,
//! instead of a second one.
//!
//! What a directory shows may be what was there when it was opened (btrfs, some versions of tmpfs).
//! So only the listing that opened it reads it so, once, and names are remembered only if nothing
//! changed anywhere since.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::branch::Branch;
use crate::dir_set::open_dir;
use crate::node::DirEntry;
use crate::pool::{Pool, View};
use crate::sys;

/// Counts the listings, and the reports of changes.
#[derive(Default)]
pub(crate) struct Readings {
    begun: AtomicU64,
    reports: AtomicU64,
}

/// One making of a listing, begun before it opens anything.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    id: ReadingId,
    reports: u64,
    era: u64,
}

/// Which listing opened a directory to read it, if one did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadingId(u64);

impl Readings {
    /// To be called before what reports say is taken note of.
    pub fn note_reports(&self) {
        self.reports.fetch_add(1, Ordering::SeqCst);
    }

    fn begin(&self, era: u64) -> Reading {
        Reading {
            id: ReadingId(self.begun.fetch_add(1, Ordering::Relaxed) + 1),
            reports: self.reports.load(Ordering::SeqCst),
            era,
        }
    }

    fn none_since(&self, reading: &Reading) -> bool {
        self.reports.load(Ordering::SeqCst) == reading.reports
    }
}

impl Reading {
    /// Whether `dir` was opened for this listing, which is to read it once.
    pub fn opened(&self, dir: &DirEntry) -> bool {
        dir.opened_for == self.id
    }
}

impl Pool {
    /// The beginning of a listing.
    pub(crate) fn begin_reading(&self) -> Reading {
        let era = self.coherence.memories.era();
        self.coherence.readings.begin(era)
    }

    /// Whether, since the listing began, no change was reported and watching went on; as of a state
    /// of what is remembered that was asked for before.
    pub(crate) fn all_still_since(&self, reading: &Reading) -> bool {
        self.coherence.readings.none_since(reading) && self.coherence.memories.era() == reading.era
    }
}

/// Opens directory `name` in `parent` on a branch, to be kept; so that it can be read if that is for
/// a listing, and where a directory that stays open costs nobody anything.
pub(crate) fn open_to_keep(
    view: &View,
    branch: &Branch,
    parent: &DirEntry,
    name: &OsStr,
    reading: Option<&Reading>,
) -> sys::Result<(OwnedFd, ReadingId)> {
    if let Some(reading) = reading
        && may_stay_open(view, branch, parent)
    {
        match open_readable(parent.fd.as_fd(), name) {
            Ok(fd) => return Ok((fd, reading.id)),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => return Err(errno),
            // Not the server's own, or not for it to read: it can be looked into all the same.
            Err(_) => {}
        }
    }
    Ok((open_dir(parent.fd.as_fd(), name)?, ReadingId::default()))
}

/// Opens a directory that was just made on a branch, to be kept; so that it can be asked for its
/// attributes where one that stays open costs nobody anything.
///
/// # Errors
/// Those of `open(2)`.
pub(crate) fn open_made(
    view: &View,
    branch: &Branch,
    parent: &DirEntry,
    name: &OsStr,
) -> sys::Result<OwnedFd> {
    let dir = parent.fd.as_fd();
    match may_stay_open(view, branch, parent) {
        true => open_readable(dir, name).or_else(|_| open_dir(dir, name)),
        false => open_dir(dir, name),
    }
}

/// A directory open for reading, without a trace in its access time.
fn open_readable(dir: BorrowedFd<'_>, name: &OsStr) -> sys::Result<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOATIME;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Whether a directory is on the branch's own filesystem, and may stay open for reading there.
fn may_stay_open(view: &View, branch: &Branch, dir: &DirEntry) -> bool {
    let own = |root: &DirEntry| root.identity.volume == dir.identity.volume;
    branch.open_dirs_are_free() && view.root.on(branch.id).is_some_and(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listing_is_another_and_knows_of_later_reports() {
        let readings = Readings::default();
        let (first, second) = (readings.begin(0), readings.begin(0));
        assert_ne!(first.id, second.id);
        assert_ne!(first.id, ReadingId::default(), "that of no listing");
        assert!(readings.none_since(&second));
        readings.note_reports();
        assert!(!readings.none_since(&second));
        assert!(readings.none_since(&readings.begin(0)));
    }
}
