//! Making a listing: a directory read on every branch, and merged.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{FileType, RawDir, Statx};
use rustix::io::Errno;
use strandfs_fuse::{FileKind, NodeId};
use strandfs_options::readdir::Workers;
use strandfs_options::{OnMissing, ReaddirRule};

use crate::admin::control::file::is_control_name;
use crate::base::error::{Error, Result};
use crate::base::open::open_for_reading;
use crate::base::sys;
use crate::directory::listing::Listing;
use crate::directory::workers::Task;
use crate::mover::own_name;
use crate::pool::{Pool, View};
use crate::state::identity::Face;
use crate::state::node::{DirEntry, DirSet, Node};
use crate::watch::{Fill, Learnt};

/// Room for one `getdents64`.
const DENTS_BYTES: usize = 64 << 10;

impl Pool {
    /// Reads the directory on every branch. One branch that cannot be read fails the whole: a
    /// listing with names missing would be taken for the truth (and mirrored, and deleted).
    pub(crate) fn make_listing(&self, node: &Arc<Node>) -> Result<Listing> {
        let view = self.view();
        view.complete()?;
        let found = match self.dir_set(node) {
            // Directories that appeared on further branches belong into the listing.
            Ok(set) if view.branches.len() > 1 && !self.dirs_known(&set) => self.dir_set_now(node),
            other => other,
        };
        let set = match found {
            // Removed while open: nothing is in it any more.
            Err(Error {
                errno: Errno::NOENT,
                ..
            }) if node.id != NodeId::ROOT => return Ok(Listing::default()),
            other => other?,
        };
        if set.entries.is_empty() {
            tracing::error!("the pool has no usable branch; its root cannot be listed");
            return Err(Errno::IO.into());
        }
        let in_use;
        let set = match view.settings.on_missing {
            // A branch that is slow now would be left out when it is missing.
            OnMissing::Degrade if set.entries.iter().any(|e| e.branch.health().is_slow()) => {
                in_use = set.without(|branch| branch.health().is_slow());
                &in_use
            }
            _ => &*set,
        };
        let mut listing = match view.settings.func_readdir {
            _ if set.entries.len() == 1 => self.list_in_turn(&view, set)?,
            ReaddirRule::Sequential => self.list_in_turn(&view, set)?,
            ReaddirRule::OpenTogether(workers) => self.list_opened_together(set, workers)?,
            ReaddirRule::ReadTogether(workers) => self.list_read_together(set, workers)?,
        };
        if node.id == NodeId::ROOT {
            // A file on a branch that has the control file's name is hidden by it.
            listing.retain(|name| !is_control_name(NodeId::ROOT, name));
        }
        listing.retain(|name| own_name(name).is_none());
        if set.entries.len() > 1 {
            listing.keep_first_of_each_name();
        }
        listing.sort();
        listing.partial |= set.skipped;
        Ok(listing)
    }

    fn list_in_turn(&self, view: &View, set: &DirSet) -> Result<Listing> {
        let mut listing = Listing::default();
        let mut room = Vec::with_capacity(DENTS_BYTES);
        let remembered = self.remembered(view, set);
        let mut learnt = Vec::new();
        let degrades = view.settings.on_missing == OnMissing::Degrade;
        for dir in &set.entries {
            if degrades && dir.branch.medium().latency.may_hang() {
                let fd = Arc::clone(&dir.fd);
                match self.ask(view, move || list_one(fd)) {
                    Some(read) => self.add_names(dir, read, &mut listing)?,
                    None => listing.partial = true,
                }
                continue;
            }
            // What is read here need not be asked for again, as removing the tree would.
            let fill = remembered.begin(dir);
            let outcome = self
                .read_and_learn(dir, fill, (&mut listing, &mut room))
                .map(|read| learnt.extend(read.map(|read| (dir, read))));
            tolerate(dir, outcome)?;
        }
        self.remember(learnt);
        Ok(listing)
    }

    /// Adds the names of a directory; returns those that may be remembered of it.
    fn read_and_learn(
        &self,
        dir: &DirEntry,
        fill: Option<Fill>,
        (listing, room): (&mut Listing, &mut Vec<u8>),
    ) -> Result<Option<Learnt>> {
        let reader = dir.reader()?;
        let fd = reader.as_fd();
        let start = listing.len();
        self.read_branch(dir, fd, listing, room)?;
        let Some(fill) = fill.filter(|_| listing.len() - start <= Fill::LISTED_MAX) else {
            return Ok(None);
        };
        let names = (start..listing.len()).filter_map(|at| listing.get(at));
        Ok(self.learn_listed(dir, fill, fd, names.map(|(_, name)| name)))
    }

    fn list_opened_together(&self, set: &DirSet, workers: Workers) -> Result<Listing> {
        let opening = self.give_out(set, workers, |fd| open_for_reading(fd.as_fd()));
        let mut listing = Listing::default();
        let mut room = Vec::with_capacity(DENTS_BYTES);
        for (dir, task) in set.entries.iter().zip(opening) {
            let opened = task.finish();
            let outcome = opened
                .map_err(Error::from)
                .and_then(|fd| self.read_branch(dir, fd.as_fd(), &mut listing, &mut room));
            tolerate(dir, outcome)?;
        }
        Ok(listing)
    }

    fn list_read_together(&self, set: &DirSet, workers: Workers) -> Result<Listing> {
        let reading = self.give_out(set, workers, list_one);
        let mut listing = Listing::default();
        for (dir, task) in set.entries.iter().zip(reading) {
            self.add_names(dir, task.finish(), &mut listing)?;
        }
        Ok(listing)
    }

    /// Adds what was read of a branch's directory.
    fn add_names(
        &self,
        dir: &DirEntry,
        read: Result<(Statx, Listing)>,
        listing: &mut Listing,
    ) -> Result<()> {
        let outcome = read.and_then(|(stat, names)| {
            let start = listing.len();
            listing.append(&names);
            self.note_origin(dir, &stat, start, listing)
        });
        tolerate(dir, outcome)
    }

    /// Gives one task for each branch to the threads.
    fn give_out<T: Send + 'static>(
        &self,
        set: &DirSet,
        workers: Workers,
        work: fn(Arc<OwnedFd>) -> T,
    ) -> Vec<Arc<Task<T>>> {
        let crew = self.crews.get(workers);
        let give = |dir: &DirEntry| {
            let fd = Arc::clone(&dir.fd);
            let task = Task::new(move || work(fd));
            crew.offer(&task);
            task
        };
        set.entries.iter().map(give).collect()
    }

    fn read_branch(
        &self,
        dir: &DirEntry,
        fd: BorrowedFd<'_>,
        listing: &mut Listing,
        room: &mut Vec<u8>,
    ) -> Result<()> {
        let start = listing.len();
        if let Err(errno) = read_names(fd, listing, room) {
            listing.truncate(start);
            return Err(errno);
        }
        match dir.identity.face {
            Face::Own => {
                listing.set_origin(start, dir.branch.id, dir.identity.volume);
                Ok(())
            }
            // A link that is followed may lead to another filesystem than its own.
            Face::Other => self.note_origin(dir, &sys::statx_fd(fd)?, start, listing),
        }
    }

    /// Notes where the names from `start` on were found.
    fn note_origin(
        &self,
        dir: &DirEntry,
        stat: &Statx,
        start: usize,
        listing: &mut Listing,
    ) -> Result<()> {
        let (branch, here) = (&dir.branch, OsStr::new(""));
        // Whoever follows the link has looked where it leads.
        let volume =
            self.volumes
                .note_admitted(branch.id, branch.seed, stat, dir.fd.as_fd(), here)?;
        listing.set_origin(start, branch.id, volume);
        Ok(())
    }
}

/// The names in a directory, and its attributes.
fn list_one(dir: Arc<OwnedFd>) -> Result<(Statx, Listing)> {
    let mut listing = Listing::default();
    let fd = open_for_reading(dir.as_fd())?;
    let stat = sys::statx_fd(fd.as_fd())?;
    let mut room = Vec::with_capacity(DENTS_BYTES);
    read_names(fd.as_fd(), &mut listing, &mut room)?;
    Ok((stat, listing))
}

/// A branch that has lost the directory meanwhile is no error.
fn tolerate(dir: &DirEntry, outcome: Result<()>) -> Result<()> {
    match outcome {
        Ok(())
        | Err(Error {
            errno: Errno::NOENT,
            ..
        }) => Ok(()),
        Err(errno) => {
            tracing::warn!(branch = %dir.branch.path.display(), %errno, "a directory cannot be listed");
            Err(Error::at(&dir.branch, errno))
        }
    }
}

/// Adds the names in a directory, with the numbers they have there. Asks nothing of the pool, so
/// that any thread can do it. Reads on until nothing more comes: a read that leaves room in `room`
/// may have been cut short by a signal.
fn read_names(fd: BorrowedFd<'_>, listing: &mut Listing, room: &mut Vec<u8>) -> Result<()> {
    let mut entries = RawDir::new(fd, room.spare_capacity_mut());
    while let Some(found) = entries.next() {
        let found = found?;
        let name = found.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let kind = file_kind(found.file_type());
        listing.push(OsStr::from_bytes(name), found.ino(), kind);
    }
    Ok(())
}

/// The names in a directory on one branch.
///
/// # Errors
/// Those of reading it.
pub(crate) fn names_in(entry: &DirEntry) -> Result<Vec<OsString>> {
    let mut listing = Listing::default();
    let mut room = Vec::with_capacity(DENTS_BYTES);
    let reader = entry.reader()?;
    read_names(reader.as_fd(), &mut listing, &mut room)?;
    let names = (0..listing.len()).filter_map(|index| listing.get(index));
    Ok(names.map(|(_, name)| name.to_owned()).collect())
}

fn file_kind(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => return None,
    })
}
