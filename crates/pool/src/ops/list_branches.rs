//! Making a listing: a directory read on every branch, and merged.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::Statx;
use rustix::io::Errno;
use strandfs_fuse::NodeId;
use strandfs_options::readdir::Workers;
use strandfs_options::{OnMissing, ReaddirRule};

use crate::base::branch::Branch;
use crate::base::calls::{self, Call};
use crate::base::error::{Error, Result};
use crate::base::open::open_for_reading;
use crate::base::own_names::own_name;
use crate::base::sys;
use crate::coherence::{Coherent, Fill, Learnt, remembered, validity};
use crate::directory::listing::Listing;
use crate::directory::reading::{DENTS_BYTES, read_names};
use crate::directory::workers::Task;
use crate::directory::{Directories, deadline, set};
use crate::ops::control_names::is_control_name;
use crate::state::State;
use crate::state::identity::Presented;
use crate::state::node::{DirEntry, DirSet, Node};
use crate::state::view::View;

/// Reads the directory on every branch. One branch that cannot be read fails the whole: a
/// listing with names missing would be taken for the truth (and mirrored, and deleted).
pub(crate) fn make_listing(pool: &Directories, node: &Arc<Node>) -> Result<Listing> {
    let view = pool.view();
    view.complete()?;
    let found = match set::dir_set(pool, node) {
        // Directories that appeared on further branches belong into the listing.
        Ok(set) if view.branches.len() > 1 && !validity::dirs_known(pool, &set) => {
            set::dir_set_now(pool, node)
        }
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
    let set = match view.settings.health.on_missing {
        // A branch that is slow now would be left out when it is missing.
        OnMissing::Degrade if set.entries.iter().any(|e| e.branch.health().is_slow()) => {
            in_use = set.without(|branch| branch.health().is_slow());
            &in_use
        }
        _ => &*set,
    };
    let mut listing = match view.settings.policies.readdir {
        _ if set.entries.len() == 1 => list_in_turn(pool, &view, set)?,
        ReaddirRule::Sequential => list_in_turn(pool, &view, set)?,
        ReaddirRule::OpenTogether(workers) => list_opened_together(pool, set, workers)?,
        ReaddirRule::ReadTogether(workers) => list_read_together(pool, set, workers)?,
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

fn list_in_turn(pool: &Coherent, view: &View, set: &DirSet) -> Result<Listing> {
    let mut listing = Listing::default();
    let mut room = Vec::with_capacity(DENTS_BYTES);
    let remembered = remembered::remembered(pool, view, set);
    let mut learnt = Vec::new();
    let degrades = view.settings.health.on_missing == OnMissing::Degrade;
    for dir in &set.entries {
        if degrades && dir.branch.medium().latency.may_hang() {
            let (branch, fd) = (Arc::clone(&dir.branch), Arc::clone(&dir.fd));
            match deadline::ask(pool, view, &dir.branch, move || list_one(branch, fd)) {
                Some(read) => add_names(pool, dir, read, &mut listing)?,
                None => listing.partial = true,
            }
            continue;
        }
        // What is read here need not be asked for again, as removing the tree would.
        let fill = remembered.begin(dir);
        let outcome = read_and_learn(pool, dir, fill, (&mut listing, &mut room))
            .map(|read| learnt.extend(read.map(|read| (dir, read))));
        tolerate(dir, outcome)?;
    }
    remembered::remember(pool, learnt);
    Ok(listing)
}

/// Adds the names of a directory; returns those that may be remembered of it.
fn read_and_learn(
    pool: &Coherent,
    dir: &DirEntry,
    fill: Option<Fill>,
    (listing, room): (&mut Listing, &mut Vec<u8>),
) -> Result<Option<Learnt>> {
    let reader = dir.reader()?;
    let fd = reader.as_fd();
    let start = listing.len();
    read_branch(pool, dir, fd, listing, room)?;
    let Some(fill) = fill.filter(|_| listing.len() - start <= Fill::LISTED_MAX) else {
        return Ok(None);
    };
    let names = (start..listing.len()).filter_map(|at| listing.get(at));
    Ok(remembered::learn_listed(
        pool,
        dir,
        fill,
        fd,
        names.map(|(_, name)| name),
    ))
}

fn list_opened_together(pool: &Directories, set: &DirSet, workers: Workers) -> Result<Listing> {
    let opening = give_out(pool, set, workers, |branch, fd| {
        branch.call(Call::List, || open_for_reading(fd.as_fd()))
    });
    let mut listing = Listing::default();
    let mut room = Vec::with_capacity(DENTS_BYTES);
    for (dir, task) in set.entries.iter().zip(opening) {
        let opened = calls::waiting(dir.branch.health().calls(), || task.finish());
        let outcome = opened
            .map_err(Error::from)
            .and_then(|fd| read_branch(pool, dir, fd.as_fd(), &mut listing, &mut room));
        tolerate(dir, outcome)?;
    }
    Ok(listing)
}

fn list_read_together(pool: &Directories, set: &DirSet, workers: Workers) -> Result<Listing> {
    let reading = give_out(pool, set, workers, list_one);
    let mut listing = Listing::default();
    for (dir, task) in set.entries.iter().zip(reading) {
        let read = calls::waiting(dir.branch.health().calls(), || task.finish());
        add_names(pool, dir, read, &mut listing)?;
    }
    Ok(listing)
}

/// Adds what was read of a branch's directory.
fn add_names(
    pool: &State,
    dir: &DirEntry,
    read: Result<(Statx, Listing)>,
    listing: &mut Listing,
) -> Result<()> {
    let outcome = read.and_then(|(stat, names)| {
        let start = listing.len();
        listing.append(&names);
        note_origin(pool, dir, &stat, start, listing)
    });
    tolerate(dir, outcome)
}

/// Gives one task for each branch to the threads.
fn give_out<T: Send + 'static>(
    pool: &Directories,
    set: &DirSet,
    workers: Workers,
    work: fn(Arc<Branch>, Arc<OwnedFd>) -> T,
) -> Vec<Arc<Task<T>>> {
    let worker_pool = pool.worker_pools.get(workers);
    let give = |dir: &DirEntry| {
        let (branch, fd) = (Arc::clone(&dir.branch), Arc::clone(&dir.fd));
        let task = Task::new(move || work(branch, fd));
        worker_pool.offer(&task);
        task
    };
    set.entries.iter().map(give).collect()
}

fn read_branch(
    pool: &State,
    dir: &DirEntry,
    fd: BorrowedFd<'_>,
    listing: &mut Listing,
    room: &mut Vec<u8>,
) -> Result<()> {
    let start = listing.len();
    if let Err(errno) = (dir.branch).call(Call::List, || read_names(fd, listing, room)) {
        listing.truncate(start);
        return Err(errno);
    }
    match dir.identity.presented {
        Presented::Own => {
            listing.set_origin(start, dir.branch.id, dir.identity.volume);
            Ok(())
        }
        // A link that is followed may lead to another filesystem than its own.
        Presented::Other => note_origin(pool, dir, &sys::statx_fd(fd)?, start, listing),
    }
}

/// Notes where the names from `start` on were found.
fn note_origin(
    pool: &State,
    dir: &DirEntry,
    stat: &Statx,
    start: usize,
    listing: &mut Listing,
) -> Result<()> {
    let (branch, here) = (&dir.branch, OsStr::new(""));
    // Whoever follows the link has looked where it leads.
    let volume = pool
        .volumes
        .note_admitted(branch.id, branch.seed, stat, dir.fd.as_fd(), here)?;
    listing.set_origin(start, branch.id, volume);
    Ok(())
}

/// The names in a directory, and its attributes.
fn list_one(branch: Arc<Branch>, dir: Arc<OwnedFd>) -> Result<(Statx, Listing)> {
    branch.call(Call::List, || {
        let mut listing = Listing::default();
        let fd = open_for_reading(dir.as_fd())?;
        let stat = sys::statx_fd(fd.as_fd())?;
        let mut room = Vec::with_capacity(DENTS_BYTES);
        read_names(fd.as_fd(), &mut listing, &mut room)?;
        Ok((stat, listing))
    })
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
