//! Directories on their branches: finding and keeping their descriptors.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{FileKind, NodeId};

use crate::base::branch::Branch;
use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::open::open_dir;
use crate::base::sys;
use crate::coherence::{Coherent, copies, invalidate, validity};
use crate::directory::reading::open_to_keep;
use crate::directory::{Directories, follow};
use crate::state::State;
use crate::state::figures::Cache;
use crate::state::identity::{Identity, Presented, kind_of};
use crate::state::node::{DirEntry, DirSet, Node};
use crate::state::paths::{self, DEPTH_MAX};
use crate::state::view::View;

/// How long a directory's branches are trusted where nothing tells of changes.
const TRUSTED: Duration = Duration::from_secs(1);
/// Others changed the same directory this often meanwhile: give up rather than spin.
const RACES_MAX: usize = 64;

/// How old what is known of a directory may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Checked no longer ago than names may be trusted.
    Trusted,
    /// Checked this moment, with all directories above it.
    Now,
}

/// What becomes of branches that are slow to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowBranches {
    /// They are asked as the others are.
    Ask,
    /// They are passed over: see [`DirSet::skipped`].
    PassOver,
}

/// The directory's descriptors, checked no longer ago than names may be trusted.
///
/// # Errors
/// ENOENT if it is gone from every branch; the error of the branch that could not answer:
/// without it the directory would look as if it had fewer names.
pub(crate) fn dir_set(pool: &Directories, node: &Arc<Node>) -> Result<Arc<DirSet>> {
    dir_set_of(pool, node, Freshness::Trusted, SlowBranches::Ask).and_then(complete)
}

/// The directory's descriptors, checked this moment, with all directories above it.
///
/// # Errors
/// As for [`dir_set`].
pub(crate) fn dir_set_now(pool: &Directories, node: &Arc<Node>) -> Result<Arc<DirSet>> {
    dir_set_of(pool, node, Freshness::Now, SlowBranches::Ask).and_then(complete)
}

/// As [`dir_set`] of the branches that answer, for what may be found on them: who does
/// not find it there must heed [`DirSet::probe_error`].
///
/// # Errors
/// ENOENT if it is gone from every branch; a branch's error if none has it.
pub(crate) fn dir_set_of(
    pool: &Directories,
    node: &Arc<Node>,
    freshness: Freshness,
    slow: SlowBranches,
) -> Result<Arc<DirSet>> {
    let now_ms = sys::mono_coarse_ms();
    let is_fresh = |node: &Arc<Node>| fresh_set(pool, node, now_ms, slow);
    match freshness {
        Freshness::Now => refresh_chain(pool, node, (now_ms, slow), |parent| {
            parent.id == NodeId::ROOT
        }),
        Freshness::Trusted => match counted(pool, is_fresh(node)) {
            Some(set) => Ok(set),
            None => refresh_chain(pool, node, (now_ms, slow), |parent| {
                is_fresh(parent).is_some()
            }),
        },
    }
}

/// Whether the descriptors of a directory could be used as they are.
fn counted(pool: &State, found: Option<Arc<DirSet>>) -> Option<Arc<DirSet>> {
    pool.figures.looked(Cache::Directories, found.is_some());
    found
}

/// Looks again at `node` and the directories above it, up to one that is `good_enough`.
fn refresh_chain(
    pool: &Directories,
    node: &Arc<Node>,
    (now_ms, slow): (u64, SlowBranches),
    good_enough: impl Fn(&Arc<Node>) -> bool,
) -> Result<Arc<DirSet>> {
    if node.id == NodeId::ROOT {
        return fresh_set(pool, node, now_ms, slow).ok_or(Errno::IO.into());
    }
    // Not recursive: a tree may be deeper than a thread's stack.
    let mut chain = vec![Arc::clone(node)];
    while let Some(parent) = chain.last().and_then(|node| paths::parent_of(pool, node)) {
        if good_enough(&parent) {
            break;
        }
        if chain.len() == DEPTH_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        chain.push(parent);
    }
    let mut newest = Err(Errno::STALE.into());
    while let Some(next) = chain.pop() {
        newest = refresh(pool, &next, (now_ms, slow));
        // A parent that is gone leaves its children to their handles.
        if chain.is_empty() {
            break;
        }
    }
    newest
}

fn fresh_set(
    pool: &Coherent,
    node: &Arc<Node>,
    now_ms: u64,
    slow: SlowBranches,
) -> Option<Arc<DirSet>> {
    let view = pool.view();
    if node.id == NodeId::ROOT {
        return Some(Arc::clone(&view.root));
    }
    let place = node.place();
    let set = place.dirs.as_ref()?;
    if set.generation < view.branches_since
        || !still_true(pool, &view, set, now_ms)
        || set.skipped && slow == SlowBranches::Ask
        || set.probe_error.is_some()
    {
        return None;
    }
    if !set.recently_used.load(Ordering::Relaxed) {
        set.recently_used.store(true, Ordering::Relaxed);
    }
    Some(Arc::clone(set))
}

/// Whether the set was verified recently enough, or could not change without our notice.
fn still_true(pool: &Coherent, view: &View, set: &DirSet, now_ms: u64) -> bool {
    if pool.coherence.strict() {
        return false;
    }
    if validity::dirs_reported(pool, view) {
        return validity::dirs_known(pool, set);
    }
    let age_ms = now_ms.saturating_sub(set.verified_ms.load(Ordering::Relaxed));
    let trusted = view.settings.caching.entry.unwrap_or(TRUSTED);
    u128::from(age_ms) <= trusted.as_millis()
}

/// Looks again on which branches the directory is.
fn refresh(pool: &Directories, node: &Arc<Node>, at: (u64, SlowBranches)) -> Result<Arc<DirSet>> {
    for _ in 0..RACES_MAX {
        if let Some(set) = refresh_once(pool, node, at)? {
            return Ok(set);
        }
    }
    Err(Errno::STALE.into())
}

/// As [`refresh`]; `None` if another thread was faster, with what this one may have
/// looked at too early.
fn refresh_once(
    pool: &Directories,
    node: &Arc<Node>,
    (now_ms, slow): (u64, SlowBranches),
) -> Result<Option<Arc<DirSet>>> {
    let structure = pool.coherence.changes.structure();
    let (name, old, copies) = {
        let place = node.place();
        (
            place.names.newest().cloned(),
            place.dirs.clone(),
            place.copies.clone(),
        )
    };
    let view = pool.view();
    let parent_set = name.as_ref().and_then(|name| match name.parent {
        NodeId::ROOT => Some(Arc::clone(&view.root)),
        parent => Option::clone(&pool.nodes.get(parent)?.place().dirs),
    });
    let mut finder = Finder {
        pool,
        view: &view,
        old: old.as_deref(),
        copies: &copies,
        slow,
        // What is beneath a directory that is not known of a branch is not known either.
        probe_error: parent_set.as_ref().and_then(|set| set.probe_error),
        skipped: parent_set.as_ref().is_some_and(|set| set.skipped),
    };
    let mut entries: SmallVec<[DirEntry; 2]> = SmallVec::new();
    if let (Some(set), Some(name)) = (&parent_set, &name) {
        let beneath = view.branches.iter().filter_map(|branch| {
            let parent = set.on(branch.id)?;
            finder.by_name(branch, parent, &name.name)
        });
        entries.extend(beneath);
    }
    // A copy that left while others stay belongs elsewhere now; only where all have left is
    // it the directory itself that moved, and a process standing in it goes on. So it is
    // where another directory has taken its name.
    let is_known = |entry: &DirEntry| copies.contains(&entry.identity);
    if !entries.iter().any(is_known) {
        let elsewhere: SmallVec<[DirEntry; 2]> = view
            .branches
            .iter()
            .filter_map(|branch| finder.by_identity(branch, name.is_some()))
            .collect();
        if !elsewhere.is_empty() {
            entries = elsewhere;
        }
    }
    if entries.is_empty() {
        return Err(finder.probe_error.unwrap_or(Errno::NOENT.into()));
    }
    let mut set = DirSet::new(entries, now_ms, view.generation, structure);
    set.skipped = finder.skipped;
    set.probe_error = finder.probe_error;
    Ok(install(pool, node, set, old.as_ref()))
}

/// Makes `set` the directory's descriptors in the place of `expected`; `None`, and no change,
/// if they are others by now.
pub(crate) fn install(
    pool: &Directories,
    node: &Arc<Node>,
    mut set: DirSet,
    expected: Option<&Arc<DirSet>>,
) -> Option<Arc<DirSet>> {
    let count = set.entries.len();
    let lets_in_others = expected.is_some_and(|old| set.note_narrowed(old));
    set.kept_for = expected.and_then(|old| old.kept_for.clone());
    pool.note_narrowed(&set);
    let set = Arc::new(set);
    let mut place = node.place_mut();
    // Checked under the lock that the sweep after a change takes: a descriptor on a branch
    // that left the pool would keep its filesystem busy.
    if node.id == NodeId::ROOT || set.generation < pool.view().branches_since {
        return Some(set);
    }
    if place.dirs.as_ref().map(Arc::as_ptr) != expected.map(Arc::as_ptr) {
        return None;
    }
    place.copies = set.entries.iter().map(|entry| entry.identity).collect();
    let replaced = place.dirs.replace(Arc::clone(&set));
    drop(place);
    if lets_in_others {
        // What the kernel was shown is no longer the strictest of all copies.
        invalidate::drop_attributes(pool, node);
    }
    copies::note_copies(pool, node);
    pool.dir_fds
        .note(pool, node.id, count, replaced.map(|old| old.entries.len()));
    Some(set)
}

/// Opens directory `name` in `dir` and learns who it is.
pub(crate) fn open_dir_entry(
    pool: &Coherent,
    branch: &Arc<Branch>,
    dir: BorrowedFd<'_>,
    name: &OsStr,
) -> sys::Result<DirEntry> {
    dir_entry(pool, branch, open_dir(dir, name)?)
}

/// The entry of an open directory.
pub(crate) fn dir_entry(
    pool: &Coherent,
    branch: &Arc<Branch>,
    fd: OwnedFd,
) -> sys::Result<DirEntry> {
    let stat = sys::statx_fd(fd.as_fd())?;
    dir_entry_of(pool, branch, fd, &stat)
}

/// The same, whose attributes were just asked for.
pub(crate) fn dir_entry_of(
    pool: &Coherent,
    branch: &Arc<Branch>,
    fd: OwnedFd,
    stat: &Statx,
) -> sys::Result<DirEntry> {
    let empty = OsStr::new("");
    let identity = pool
        .volumes
        .identify(branch.id, branch.seed, stat, fd.as_fd(), empty)?;
    Ok(entry_known_as(pool, branch, fd, stat, identity))
}

pub(crate) fn entry_known_as(
    pool: &Coherent,
    branch: &Arc<Branch>,
    fd: OwnedFd,
    stat: &Statx,
    identity: Identity,
) -> DirEntry {
    let memory = pool.coherence.lookups.dir_caches.of(stat);
    memory.note_rights(stat);
    DirEntry {
        branch: Arc::clone(branch),
        identity,
        fd: Arc::new(fd),
        readable: false,
        memory,
    }
}

/// A directory of which every branch has said whether it holds it.
fn complete(set: Arc<DirSet>) -> Result<Arc<DirSet>> {
    match set.probe_error {
        Some(error) => Err(error),
        None => Ok(set),
    }
}

/// Finds one directory branch by branch, using what was known.
struct Finder<'a> {
    pool: &'a Directories,
    view: &'a View,
    old: Option<&'a DirSet>,
    copies: &'a [Identity],
    slow: SlowBranches,
    /// The first branch that failed to answer.
    probe_error: Option<Error>,
    /// A slow branch was passed over.
    skipped: bool,
}

impl Finder<'_> {
    /// The directory under its name.
    fn by_name(
        &mut self,
        branch: &Arc<Branch>,
        parent: &DirEntry,
        name: &OsStr,
    ) -> Option<DirEntry> {
        let old = self.old.and_then(|set| set.on(branch.id));
        if branch.health().is_slow() {
            // What was known before it was slow will do.
            if self.old.is_some_and(|set| !set.skipped) {
                return old.map(|entry| entry.under(branch));
            }
            if self.slow == SlowBranches::PassOver {
                self.skipped = true;
                return None;
            }
        }
        if old.is_none() {
            match self.open(branch, parent, name) {
                // A file, or a link.
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(Errno::NOENT) => return None,
                // Nobody's yet: its attributes are still to come.
                Ok(_) if self.pool.clones.is_making(parent, name) => return None,
                opened => return self.heard(branch, opened),
            }
        }
        match branch.call(Call::Lookup, || sys::statx_name(parent.fd.as_fd(), name)) {
            Ok(stat) if kind_of(&stat) == FileKind::Directory => {
                if let Some(known) = old.filter(|e| self.pool.volumes.same(&e.identity, &stat)) {
                    return Some(known.under(branch));
                }
                let opened = self.open(branch, parent, name);
                self.heard(branch, opened)
            }
            Ok(stat) if kind_of(&stat) == FileKind::Symlink => {
                follow::followed_dir(self.pool, branch, parent, name, &stat)
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => None,
            // What was known holds until the branch says otherwise.
            Err(errno) => match old {
                Some(known) => Some(known.under(branch)),
                None => self.heard(branch, Err(errno)),
            },
        }
    }

    /// Opens what is under the name. A copy that the node is known to have needs no further look.
    fn open(&self, branch: &Arc<Branch>, parent: &DirEntry, name: &OsStr) -> sys::Result<DirEntry> {
        let open = || open_to_keep(self.view, branch, parent, name);
        let (fd, readable) = branch.call(Call::Lookup, open)?;
        let stat = sys::statx_fd(fd.as_fd())?;
        let shown = (branch.id, Presented::Own);
        let entry = match self.pool.volumes.recognise(self.copies, shown, &stat) {
            Some(known) => entry_known_as(self.pool, branch, fd, &stat, known),
            None => dir_entry_of(self.pool, branch, fd, &stat)?,
        };
        Ok(DirEntry { readable, ..entry })
    }

    /// The directory is not where it was: someone moved it on the branch, or its name is not
    /// known.
    fn by_identity(&mut self, branch: &Arc<Branch>, named: bool) -> Option<DirEntry> {
        let old = self.old.and_then(|set| set.on(branch.id));
        if let Some(entry) = old {
            let alive = branch.call(Call::Stat, || sys::statx_fd(entry.fd.as_fd()));
            let alive = alive.map(|stat| stat.stx_nlink > 0);
            let alive = self.heard(branch, alive).unwrap_or_default();
            return (alive || !named).then(|| entry.under(branch));
        }
        let copy = self.copies.iter().find(|copy| copy.branch == branch.id)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let opened = self
            .pool
            .volumes
            .open(copy.volume, copy.ino, copy.generation, flags)
            .and_then(|fd| dir_entry(self.pool, branch, fd));
        let entry = self.heard(branch, opened)?;
        (entry.identity == *copy).then_some(entry)
    }

    fn heard<T, E: Into<Error>>(&mut self, branch: &Branch, answer: Result<T, E>) -> Option<T> {
        heard(&mut self.probe_error, branch, answer)
    }
}

/// What a branch answered, if it has it; the first that failed to say is `probe_error`.
pub(crate) fn heard<T, E: Into<Error>>(
    probe_error: &mut Option<Error>,
    branch: &Branch,
    answer: Result<T, E>,
) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) => {
            let error = error.into();
            if !is_absence(error.errno) && probe_error.is_none() {
                *probe_error = Some(Error::at(branch, error));
            }
            None
        }
    }
}

/// Whether an error says that the directory is not there: such a name may not be possible there
/// (too long, or of characters that the filesystem does not take), or the filesystem cannot be
/// asked by number. Any other error leaves open whether it is.
pub(crate) fn is_absence(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::STALE
            | Errno::NAMETOOLONG
            | Errno::INVAL
            | Errno::ILSEQ
            | Errno::OPNOTSUPP
    )
}
