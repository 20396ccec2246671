//! OPENDIR, READDIR, READDIRPLUS, FSYNCDIR, SYNCFS.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use strandfs_options::Function;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{
    Context, DirPlusSink, DirSink, FileKind, Handle, NodeId, OpenFlags, OpenReply, SyncScope,
};

use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::open::open_for_reading;
use crate::base::sys;
use crate::coherence::series::Series;
use crate::coherence::{Coherent, Epoch, Keeping, kept_listings, validity};
use crate::directory::copy::Copies;
use crate::directory::listing::{DOTS, Listed, Listing, Offset};
use crate::directory::listing_cache::Snapshot;
use crate::directory::lookup::{self, Presentations};
use crate::directory::{Directories, follow, forget, set};
use crate::health::Health;
use crate::ops::walkers::Wants;
use crate::ops::{Ops, closed_copies, list_branches, list_number, retry};
use crate::state::figures::Cache;
use crate::state::identity::kind_of;
use crate::state::node::{DirEntry, DirSet, Node};
use crate::state::view::View;
use crate::state::{State, paths};

/// What OPENDIR answers where the kernel must not keep the listing: it collects nothing then.
const UNKEPT: Handle = Handle(1);
const KEPT: Handle = Handle(0);

/// A reader of a directory, as far as one request tells.
struct Reader {
    node: Arc<Node>,
    /// The kernel collects what it reads.
    collects: bool,
    /// Where it goes on.
    position: u64,
    series: Series,
    snapshot: Arc<Snapshot>,
}

impl Reader {
    /// What is left to read.
    fn rest(&self) -> impl Iterator<Item = (Listed, &OsStr)> {
        self.snapshot.listing.after(self.position)
    }

    /// The offset that goes on after `position`.
    fn offset(&self, position: u64) -> u64 {
        Offset::after(self.series, position)
    }

    /// `.` and `..`, as far as they are left to read, with the offsets after them.
    fn dots(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let dots = [".", ".."].into_iter().zip(DOTS);
        let left = dots.filter(|(_, position)| *position > self.position);
        left.map(|(name, position)| (name, self.offset(position)))
    }
}

/// OPENDIR. Nothing is held for an open directory; where the kernel may keep listings it is
/// told never to ask again, which is what ENOSYS means.
pub(crate) fn opendir(pool: &Coherent, id: NodeId) -> Result<OpenReply> {
    let node = pool.node(id)?;
    if !node.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    let keeping = kept_listings::keeping(pool, &pool.view(), &node);
    if keeping == Keeping::WhileWatched && kept_listings::opens_unasked(pool) {
        return Err(Error::expected(Errno::NOSYS));
    }
    let (handle, flags) = match keeping {
        Keeping::Not => (UNKEPT, OpenFlags::empty()),
        _ => (KEPT, OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE),
    };
    Ok(OpenReply {
        handle,
        flags,
        backing: None,
    })
}

/// READDIR.
pub(crate) fn readdir(
    pool: &Health,
    cx: &Context<'_>,
    directory: (NodeId, Handle),
    offset: u64,
    sink: &mut DirSink<'_>,
) -> Result<()> {
    let reader = self::reader(pool, cx, directory, offset)?;
    for (name, next) in reader.dots() {
        let kind = Some(FileKind::Directory);
        if !sink.push(
            dot_ino(pool, &reader.node, name),
            next,
            kind,
            OsStr::new(name),
        ) {
            return Ok(());
        }
    }
    if reader.rest().next().is_some() {
        let view = pool.view();
        // Removed meanwhile: what was listed is still told.
        let gone = |_| Arc::new(DirSet::new(SmallVec::new(), 0, 0, 0));
        let set = set::dir_set(pool, &reader.node).unwrap_or_else(gone);
        let place = list_number::place(pool, &view, &reader.node, &set);
        for (entry, name) in reader.rest() {
            let (ino, kind) = list_number::listed_as(pool, &place, name, &entry);
            if !sink.push(ino, reader.offset(entry.position), kind, name) {
                return Ok(());
            }
        }
    }
    if sink.used() == 0 {
        end_of(pool, cx, &reader);
    }
    Ok(())
}

/// READDIRPLUS: each name is looked up as it is listed, but files for whoever reads names alone. One
/// that vanished meanwhile is left out; one that cannot be looked up is listed without attributes,
/// so that nothing hides.
pub(crate) fn readdirplus(
    pool: &Ops,
    cx: &Context<'_>,
    directory: (NodeId, Handle),
    offset: u64,
    sink: &mut DirPlusSink<'_>,
) -> Result<()> {
    let reader = self::reader(pool, cx, directory, offset)?;
    for (name, next) in reader.dots() {
        let kind = Some(FileKind::Directory);
        if !sink.push_plain(
            dot_ino(pool, &reader.node, name),
            next,
            kind,
            OsStr::new(name),
        ) {
            return Ok(());
        }
    }
    let wants = pool.walkers.lists(cx.pid, offset);
    let withheld = look_up_listed(pool, cx, &reader, wants, sink)?;
    pool.walkers.withheld(cx.pid, reader.node.id, withheld);
    if sink.used() == 0 {
        end_of(pool, cx, &reader);
    }
    Ok(())
}

/// Lists with attributes what `wants` does not take out. How many files were listed without.
fn look_up_listed(
    pool: &Health,
    cx: &Context<'_>,
    reader: &Reader,
    wants: Wants,
    sink: &mut DirPlusSink<'_>,
) -> Result<usize> {
    let mut withheld = 0;
    if reader.rest().next().is_none() {
        return Ok(withheld);
    }
    let view = pool.view();
    let set = retry::finding(pool, cx, || set::dir_set(pool, &reader.node))?;
    let place = list_number::place(pool, &view, &reader.node, &set);
    for (entry, name) in reader.rest() {
        if !sink.has_room(name.len()) {
            return Ok(withheld);
        }
        let is_file = entry.kind.is_some_and(|kind| kind != FileKind::Directory);
        if is_file && (wants == Wants::Names || wants == Wants::Trial && withheld == 0) {
            let (ino, kind) = list_number::listed_as(pool, &place, name, &entry);
            if !sink.push_plain(ino, reader.offset(entry.position), kind, name) {
                return Ok(withheld);
            }
            withheld += 1;
            continue;
        }
        let since = pool.coherence.changes.now();
        // A copy that counts more may have come since the name was listed.
        let begun = reader.snapshot.listing.begun;
        let dir = set
            .on(entry.branch)
            .filter(|_| !validity::name_changed_since(pool, &reader.node, name, begun));
        let listed = (entry.kind, name);
        let found = lookup_listed(pool, &view, &reader.node, dir, listed, since);
        match found.and_then(there) {
            // It was removed since it was listed, or its branch vanished.
            Err(Error {
                errno: Errno::NOENT,
                ..
            }) if pool.view().complete().is_ok() => {}
            Err(_) => {
                let (ino, kind) = list_number::listed_as(pool, &place, name, &entry);
                if !sink.push_plain(ino, reader.offset(entry.position), kind, name) {
                    return Ok(withheld);
                }
            }
            Ok(found) => {
                let kind = Some(crate::state::identity::kind_of_mode(found.attr.mode));
                if !sink.push(
                    &found,
                    found.attr.ino,
                    reader.offset(entry.position),
                    kind,
                    name,
                ) {
                    forget::take_back(pool, &found);
                    return Ok(withheld);
                }
            }
        }
    }
    Ok(withheld)
}

/// Looks up a listed name on the branch that listed it; directories and policies that
/// compare copies take the full look-up.
fn lookup_listed(
    pool: &Directories,
    view: &View,
    parent: &Arc<Node>,
    dir: Option<&DirEntry>,
    (kind, name): (Option<FileKind>, &OsStr),
    since: Epoch,
) -> Result<strandfs_fuse::Entry> {
    // Who lists a directory does not wait for the servers of those who have mounted there.
    if let Some(dir) = dir
        && (pool.volumes.mounts).waits_for_a_user(dir.branch.id, dir.fd.as_fd(), name)?
    {
        return Err(Errno::AGAIN.into());
    }
    let several = view.branches.len() > 1;
    if several && kind == Some(FileKind::Directory) {
        return retry::steady(pool, || lookup::lookup(pool, parent.id, name));
    }
    let first_wins = crate::base::policy::same_search(
        view.policy(Function::Getattr),
        strandfs_options::Policy::Ff,
    );
    let Some(dir) = dir.filter(|_| first_wins) else {
        return lookup::lookup(pool, parent.id, name);
    };
    let stat = match (dir.branch).call(Call::Lookup, || sys::statx_name(dir.fd.as_fd(), name)) {
        // It may have moved to another branch.
        Err(Errno::NOENT) => return retry::steady(pool, || lookup::lookup(pool, parent.id, name)),
        other => lookup::admitted(pool, dir, name, other?)?,
    };
    let copy = follow::shown_copy(pool, view, dir, name, stat);
    if several && kind_of(&copy.stat) == FileKind::Directory {
        return lookup::lookup(pool, parent.id, name);
    }
    let mut copies = Copies::new();
    copies.push(copy);
    lookup::adopt_entry(
        pool,
        view,
        parent,
        name,
        &copies,
        Presentations::ByOptions,
        since,
    )
    .or_else(|_| lookup::lookup(pool, parent.id, name))
}

fn dot_ino(pool: &State, node: &Arc<Node>, name: &str) -> u64 {
    if name == "." {
        node.ino
    } else {
        paths::parent_of(pool, node).map_or(node.ino, |parent| parent.ino)
    }
}

/// Whoever reads on at `offset`, with a listing that is made anew when reading starts.
fn reader(
    pool: &Health,
    cx: &Context<'_>,
    (id, handle): (NodeId, Handle),
    offset: u64,
) -> Result<Reader> {
    let node = pool.node(id)?;
    if !node.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    let collects = handle == KEPT;
    let Offset { series, position } = Offset::of(offset);
    let series = match offset {
        // Before the listing is made: what changes from here on is seen at its end.
        0 if collects => kept_listings::begin_series(pool, &node),
        // Where the kernel collects nothing, offsets are the same however often they are read.
        0 => Series::passing(0),
        _ => series,
    };
    let held = match offset {
        0 => None,
        _ => {
            let held = pool.listing_cache.get(id, sys::mono_coarse_ms());
            pool.figures.looked(Cache::Listings, held.is_some());
            held
        }
    };
    let snapshot = match held {
        Some(snapshot) => snapshot,
        None => {
            let made = retry::finding(pool, cx, || listing_between_moves(pool, &node))?;
            let begins = offset == 0;
            pool.listing_cache
                .put(id, made, begins, sys::mono_coarse_ms())
        }
    };
    // After it is made, which finds the copies that are new.
    let set = closed_copies::current_set(pool, id);
    let set = set.filter(|set| closed_copies::are_listed_by_others(set));
    let is_not_for_all = set.is_some();
    if let Some(set) = set {
        closed_copies::check_lister(pool, cx, &set)?;
    }
    let series = match series.is_keepable() && (snapshot.listing.partial || is_not_for_all) {
        true => kept_listings::passing_series(pool),
        false => series,
    };
    Ok(Reader {
        node,
        collects,
        position,
        series,
        snapshot,
    })
}

/// The reader is about to be told that nothing is left.
fn end_of(pool: &Directories, cx: &Context<'_>, reader: &Reader) {
    pool.listing_cache.end(reader.node.id);
    if reader.collects && !kept_listings::stays(pool, &reader.node, reader.series) {
        // Dropping pages waits for whoever copies from them, perhaps to memory that is a file
        // of this pool.
        cx.may_block();
        kept_listings::drop_listing(pool, &reader.node, reader.series);
    }
}

/// A file that changes branches while they are read one after the other may be missed on
/// both: then they are read again.
fn listing_between_moves(pool: &Directories, node: &Arc<Node>) -> Result<Listing> {
    loop {
        let (moves, begun) = (pool.moves(), pool.coherence.changes.now());
        let number = pool.listing_cache.begin();
        let mut listing = list_branches::make_listing(pool, node)?;
        (listing.begun, listing.number) = (begun, number);
        if pool.moves() == moves {
            return Ok(listing);
        }
    }
}

/// FSYNCDIR: on every branch that holds the directory.
pub(crate) fn fsyncdir(
    pool: &Directories,
    cx: &Context<'_>,
    id: NodeId,
    scope: SyncScope,
) -> Result<()> {
    let node = pool.node(id)?;
    cx.may_block();
    let set = set::dir_set(pool, &node)?;
    for entry in &set.entries {
        let fd = open_for_reading(entry.fd.as_fd())?;
        entry.branch.call(Call::Sync, || match scope {
            SyncScope::DataOnly => rustix::fs::fdatasync(&fd),
            SyncScope::All => rustix::fs::fsync(&fd),
        })?;
    }
    Ok(())
}

/// SYNCFS: every branch's filesystem, the first error after all were tried.
pub(crate) fn syncfs(pool: &State, cx: &Context<'_>) -> Result<()> {
    cx.may_block();
    let mut outcome = Ok(());
    for branch in &pool.view().branches {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let synced = branch.call(Call::Sync, || {
            rustix::fs::openat(branch.root(), c".", flags, Mode::empty())
                .and_then(rustix::fs::syncfs)
        });
        outcome = outcome.and(synced);
    }
    Ok(outcome?)
}

/// What was found under a name, where a look-up may also answer that nothing is there, for the
/// kernel to remember.
fn there(found: strandfs_fuse::Entry) -> Result<strandfs_fuse::Entry> {
    match found.node {
        NodeId(0) => Err(Errno::NOENT.into()),
        _ => Ok(found),
    }
}
