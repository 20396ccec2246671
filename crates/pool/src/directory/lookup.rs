//! Finding names: which branches have one, which of them counts, and the node it leads to.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Statx;
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::{Entry, FileAttr, FileKind, NodeId};
use strandfs_options::{FollowSymlinks, Function, Policy};

use crate::base::error::{Error, Result};
use crate::base::own_names::own_name;
use crate::base::policy::{self, BranchFacts, Category};
use crate::base::sys::{self, btime_ns};
use crate::coherence::{Coherent, Epoch, copies, remembered, validity};
use crate::directory::clone_path::{self, is_unfinished};
use crate::directory::copy::{Copies, Copy};
use crate::directory::do_without::{self, rights_elsewhere};
use crate::directory::set::{self, Freshness, SlowBranches, is_absence};
use crate::directory::{Directories, attr, choose, clones, follow};
use crate::state::State;
use crate::state::attr::merge_dirs;
use crate::state::identity::{Identity, Presented, kind_of};
use crate::state::inode_number::{self, Numbered};
use crate::state::node::{DirEntry, DirSet, Names, Node};
use crate::state::view::View;

/// A name changed hands this often between two looks: give up rather than go on.
const RACES_MAX: usize = 64;
/// From so many on each look is put off, so that whoever is in the middle of a change gets a CPU.
const RACES_AT_ONCE: usize = 8;
const RACE_PAUSE: Duration = Duration::from_millis(1);

/// Whether names are shown as what they are on the branch, or as the options say
/// (`follow-symlinks`, `symlinkify`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presentations {
    Own,
    ByOptions,
}

/// LOOKUP.
pub(crate) fn lookup(pool: &Directories, parent: NodeId, name: &OsStr) -> Result<Entry> {
    look_up(pool, parent, name, Presentations::ByOptions)
}

/// LOOKUP of what was just made. The kernel insists on the type it asked for, also where the
/// options show it as something else from the next look on.
pub(crate) fn look_up_made(pool: &Directories, parent: NodeId, name: &OsStr) -> Result<Entry> {
    let mut entry = look_up(pool, parent, name, Presentations::Own)?;
    let follows = pool.view().settings.presentation.follow_symlinks != FollowSymlinks::Never;
    if follows && entry.attr.mode & libc::S_IFMT == libc::S_IFLNK {
        entry.entry_valid = Duration::ZERO;
    }
    Ok(entry)
}

fn look_up(
    pool: &Directories,
    parent: NodeId,
    name: &OsStr,
    presentations: Presentations,
) -> Result<Entry> {
    let parent = pool.node(parent)?;
    if !parent.is_dir() {
        return if name == "." {
            entry_of(pool, parent)
        } else {
            Err(Errno::NOTDIR.into())
        };
    }
    let view = pool.view();
    let since = pool.coherence.changes.now();
    if own_name(name).is_some() {
        return Err(Errno::NOENT.into());
    }
    let mut set = do_without::dir_set_quickly(pool, &parent)?;
    for race in 0..RACES_MAX {
        if race >= RACES_AT_ONCE {
            std::thread::sleep(RACE_PAUSE);
        }
        let moves = pool.moves();
        let wider;
        if set.skipped && !do_without::leads_to_dir(pool, &view, &set, name, presentations)? {
            set = set::dir_set_of(pool, &parent, Freshness::Trusted, SlowBranches::Ask)?;
        }
        let mut searched = &set;
        let mut copies = find_copies(pool, &view, searched, name, presentations)?;
        if copies.is_empty()
            && set.entries.len() < view.branches.len()
            && !validity::dirs_known(pool, &set)
        {
            // The directory may have appeared on a further branch since it was looked at.
            wider = set::dir_set_of(pool, &parent, Freshness::Now, SlowBranches::Ask)?;
            searched = &wider;
            copies = find_copies(pool, &view, searched, name, presentations)?;
        }
        if copies.is_empty() && pool.moves() != moves {
            continue;
        }
        if copies.is_empty() {
            return no_such_name(pool, &view, &parent, searched, name, since);
        }
        match adopt_entry(pool, &view, &parent, name, &copies, presentations, since) {
            Err(Error {
                errno: Errno::STALE | Errno::NOENT,
                ..
            }) => {}
            answer => return answer,
        }
    }
    Err(Errno::STALE.into())
}

fn no_such_name(
    pool: &Coherent,
    view: &View,
    parent: &Arc<Node>,
    set: &DirSet,
    name: &OsStr,
    since: Epoch,
) -> Result<Entry> {
    let valid = validity::negative_valid(pool, view, parent, set, name, since);
    if valid.is_zero() {
        return Err(Errno::NOENT.into());
    }
    pool.coherence.misses.note(parent.id, name, valid);
    Ok(Entry {
        node: NodeId(0),
        generation: 0,
        entry_valid: valid,
        attr_valid: Duration::ZERO,
        attr: FileAttr::default(),
    })
}

/// The reply for a node that gained a reference, found in `place` if that is known; all of it
/// learnt after `since`.
pub(crate) fn entry(
    pool: &Coherent,
    view: &View,
    node: &Arc<Node>,
    mut attr: FileAttr,
    place: Option<(&Arc<Node>, &OsStr)>,
    since: Epoch,
) -> Entry {
    view.tell(node, &mut attr);
    let entry_valid = match node.counts() {
        Ok(()) => validity::entry_valid(pool, view, node, place, since),
        Err(_) => Duration::ZERO,
    };
    Entry {
        node: node.id,
        generation: u64::from(pool.volumes.handle_generation(node)),
        entry_valid,
        attr_valid: validity::attr_valid(pool, view, node, attr.mode, since),
        attr,
    }
}

/// A known node as an entry, with one more reference.
pub(crate) fn entry_of(pool: &Directories, node: Arc<Node>) -> Result<Entry> {
    let since = pool.coherence.changes.now();
    let attr = attr::attr(pool, &node)?;
    if node.id != NodeId::ROOT && !node.try_ref() {
        return Err(Errno::STALE.into());
    }
    Ok(self::entry(pool, &pool.view(), &node, attr, None, since))
}

/// Where `name` exists, the copy that the search policy of getattr picks first. A directory
/// is followed by its other copies; a file stands alone unless the policy had to compare.
///
/// # Errors
/// A branch's error other than "not there", if no other branch has the name: a name that
/// may exist must not look absent.
pub(crate) fn find_copies<'a>(
    pool: &Directories,
    view: &View,
    set: &'a DirSet,
    name: &OsStr,
    presentations: Presentations,
) -> Result<Copies<'a>> {
    let rule = view.policy(Function::Getattr);
    let first_wins = matches!(
        rule,
        Policy::Ff | Policy::EpFf | Policy::All | Policy::EpAll
    );
    let mut copies = Copies::new();
    let mut error = set.probe_error;
    let mut slow: SmallVec<[&DirEntry; 2]> = SmallVec::new();
    let mut asked_slow = false;
    let mut entries = set.entries.iter();
    let remembered = remembered::remembered(pool, view, set);
    loop {
        let dir = match entries.next() {
            Some(dir) if dir.branch.health().is_slow() => {
                if !remembered.lacks(dir, name) {
                    slow.push(dir);
                }
                continue;
            }
            Some(dir) => dir,
            None if do_without::can_do_without(pool, view, &slow, name, &copies) => break,
            // Its copy may be the one that counts, or the only one.
            None => {
                asked_slow = true;
                slow.remove(0)
            }
        };
        let mounts = &pool.volumes.mounts;
        let found = mounts
            .waits_for_a_user(dir.branch.id, dir.fd.as_fd(), name)
            .and_then(|_| clones::look_at_finished(pool, &remembered, dir, name));
        match found.and_then(|stat| admitted(pool, dir, name, stat)) {
            Ok(stat) => {
                let copy = match presentations {
                    Presentations::Own => Copy {
                        dir,
                        stat,
                        link: None,
                        instead_of: None,
                    },
                    Presentations::ByOptions => follow::shown_copy(pool, view, dir, name, stat),
                };
                let directory = kind_of(&copy.stat) == FileKind::Directory;
                if directory && copies.is_empty() {
                    copies.reserve(set.entries.len());
                }
                copies.push(copy);
                if first_wins && !directory {
                    entries = [].iter();
                }
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => error = Some(Error::at(&dir.branch, errno)),
        }
    }
    if copies.is_empty() {
        return error.map_or(Ok(copies), Err);
    }
    if asked_slow {
        copies.sort_by_key(|copy| view.position(copy.dir.branch.id));
    }
    if !first_wins {
        prefer(pool, view, rule, &mut copies)?;
    }
    keep_one_kind(&mut copies);
    if copies.len() > 1 && copies.iter().any(|copy| is_unfinished(&copy.stat)) {
        clone_path::finish_clones(pool, name, &mut copies);
    }
    if let (Some(first), Some(error)) = (copies.first_mut(), error) {
        first.instead_of = Some(error.errno).filter(|errno| !is_absence(*errno));
    }
    Ok(copies)
}

/// Moves the copy that the policy picks to the front.
fn prefer(pool: &State, view: &View, rule: Policy, copies: &mut Copies<'_>) -> Result<()> {
    let needs = policy::needs(rule, Category::Search);
    let facts: SmallVec<[BranchFacts; 4]> = copies
        .iter()
        .map(|copy| {
            choose::facts(
                pool,
                view,
                &copy.dir.branch,
                true,
                needs.space,
                Some(&copy.stat),
            )
        })
        .collect();
    let choice = policy::search(rule, &facts, &mut policy::random())?;
    let picked = choice
        .first()
        .copied()
        .filter(|index| *index < copies.len());
    let picked = copies.remove(picked.ok_or(Errno::NOENT)?);
    copies.insert(0, picked);
    Ok(())
}

/// The entry of what was found, see [`adopt`].
pub(crate) fn adopt_entry(
    pool: &Coherent,
    view: &View,
    parent: &Arc<Node>,
    name: &OsStr,
    copies: &Copies<'_>,
    presentations: Presentations,
    since: Epoch,
) -> Result<Entry> {
    let (node, attr) = adopt(pool, view, parent, name, copies, presentations)?;
    let place = Some((parent, name));
    let mut entry = entry(pool, view, &node, attr, place, since);
    // The copy that counts may be back at any moment.
    if copies
        .first()
        .is_some_and(|first| first.instead_of.is_some())
    {
        entry.entry_valid = Duration::ZERO;
    }
    Ok(entry)
}

/// The node of what was found, with one more reference, and its attributes.
///
/// # Errors
/// ESTALE if a name changed hands meanwhile: look again.
pub(crate) fn adopt(
    pool: &Coherent,
    view: &View,
    parent: &Arc<Node>,
    name: &OsStr,
    copies: &Copies<'_>,
    presentations: Presentations,
) -> Result<(Arc<Node>, FileAttr)> {
    let first = copies.first().ok_or(Errno::NOENT)?;
    let mut kind = kind_of(&first.stat);
    if kind == FileKind::Directory {
        return adopt_dir(pool, view, parent, name, copies);
    }
    if presentations == Presentations::ByOptions
        && first.link.is_none()
        && view.symlinkifies(&first.stat)
    {
        kind = FileKind::Symlink;
    }
    let node = adopt_file(pool, view, parent, name, first, kind)?;
    node.note_stand_in(first.stands_in());
    let attr = attr::shown_attr(pool, view, &node, &first.stat)?;
    Ok((node, attr))
}

/// The node of a file, shown as `kind`, with one more reference. A known one costs no system
/// call.
fn adopt_file(
    pool: &State,
    view: &View,
    parent: &Arc<Node>,
    name: &OsStr,
    copy: &Copy<'_>,
    kind: FileKind,
) -> Result<Arc<Node>> {
    let (dir, stat) = (copy.dir, copy.own_stat());
    let presented = match kind == kind_of(stat) {
        true => Presented::Own,
        false => Presented::Other,
    };
    if let Some(node) = self::known(pool, dir, stat, name, presented)?
        && node.kind == kind
        && node.try_ref()
    {
        node.add_name(parent.id, name);
        return Ok(node);
    }
    let branch = &dir.branch;
    let identity = pool
        .volumes
        .identify(branch.id, branch.seed, stat, dir.fd.as_fd(), name)?
        .with_presented(presented);
    file_node(
        pool,
        view,
        parent,
        Some(name),
        identity,
        (kind, stat.stx_nlink),
    )
}

/// The node of this inode of a branch, no directory, made if need be; with one more reference.
pub(crate) fn file_node(
    pool: &State,
    view: &View,
    parent: &Arc<Node>,
    name: Option<&OsStr>,
    identity: Identity,
    (kind, links): (FileKind, u32),
) -> Result<Arc<Node>> {
    let numbered = Numbered::file(&identity, links);
    let path = || Some(inode_number::path_hash(pool, parent)?.child(name?));
    let ino = inode_number::inode_number(pool, view, numbered, path);
    let names = name.map_or_else(Names::default, |name| Names::one(parent.id, name));
    let node = pool
        .nodes
        .find_or_make(smallvec![identity], kind, ino, names)
        .ok_or(Errno::NOMEM)?;
    inode_number::keep(pool, view, &node);
    if let Some(name) = name {
        node.add_name(parent.id, name);
    }
    Ok(node)
}

/// The live node whose inode `stat` shows, judged by number and birth time.
pub(crate) fn known(
    pool: &State,
    dir: &DirEntry,
    stat: &Statx,
    name: &OsStr,
    presented: Presented,
) -> Result<Option<Arc<Node>>> {
    let branch = &dir.branch;
    let volume = pool
        .volumes
        .note(branch.id, branch.seed, stat, dir.fd.as_fd(), name)?;
    let born = btime_ns(stat);
    // Without a birth time the generation must tell old from new.
    if born == 0 {
        return Ok(None);
    }
    Ok(pool
        .nodes
        .find(volume, stat.stx_ino, presented)
        .filter(|node| {
            node.place().copies.iter().any(|copy| {
                copy.volume == volume
                    && copy.ino == stat.stx_ino
                    && copy.btime_ns == born
                    && copy.presented == presented
            })
        }))
}

/// Who a name found on a branch is.
///
/// # Errors
/// As for [`crate::state::identity::Volumes::identify`].
pub(crate) fn identity_of(pool: &State, copy: &Copy<'_>, name: &OsStr) -> Result<Identity> {
    let (branch, dir) = (&copy.dir.branch, copy.dir.fd.as_fd());
    let identity = pool
        .volumes
        .identify(branch.id, branch.seed, copy.own_stat(), dir, name)?;
    Ok(identity.with_presented(copy.presented()))
}

fn adopt_dir(
    pool: &Coherent,
    view: &View,
    parent: &Arc<Node>,
    name: &OsStr,
    copies: &Copies<'_>,
) -> Result<(Arc<Node>, FileAttr)> {
    let mut known: Option<Arc<Node>> = None;
    for copy in copies {
        known = self::known(pool, copy.dir, copy.own_stat(), name, copy.presented())?
            .filter(|node| node.is_dir() && !node.retired());
        if known.is_some() {
            break;
        }
    }
    let mut identities: SmallVec<[Identity; 1]> = SmallVec::new();
    for copy in copies {
        let shown = (copy.dir.branch.id, copy.presented());
        let identity = known.as_ref().and_then(|node| {
            let copies = &node.place().copies;
            pool.volumes.recognise(copies, shown, copy.own_stat())
        });
        identities.push(match identity {
            Some(identity) => identity,
            None => identity_of(pool, copy, name)?,
        });
    }
    let node = match known.filter(|node| node.try_ref_or_root()) {
        Some(node) => node,
        None => {
            let eldest = pool.volumes.eldest_first(&identities);
            let first = eldest.first().ok_or(Errno::NOENT)?;
            let path = || Some(inode_number::path_hash(pool, parent)?.child(name));
            let ino = inode_number::inode_number(pool, view, Numbered::directory(first), path);
            let names = Names::one(parent.id, name);
            let node = pool
                .nodes
                .find_or_make(eldest, FileKind::Directory, ino, names)
                .ok_or(Errno::NOMEM)?;
            inode_number::keep(pool, view, &node);
            node
        }
    };
    if node.id == NodeId::ROOT {
        // A branch nested in the pool's own tree: refuse rather than loop.
        return Err(Errno::LOOP.into());
    }
    node.add_name(parent.id, name);
    parent.kernel_cache.note_dir(name);
    settle_dir(pool, &node, &identities);
    let unseen = rights_elsewhere(&node, copies);
    let stats = copies.iter().map(|copy| &copy.stat);
    let attr = merge_dirs(stats, &unseen, node.ino).ok_or(Errno::NOENT)?;
    Ok((node, attr))
}

/// Takes over the branches a directory was just found on.
fn settle_dir(pool: &Coherent, node: &Arc<Node>, identities: &[Identity]) {
    let now_ms = sys::mono_coarse_ms();
    let view = pool.view();
    let mut ordered: SmallVec<[Identity; 1]> = SmallVec::from_slice(identities);
    // A slow branch was not asked: what was known there still holds.
    let is_slow = |id| view.branch(id).is_some_and(|b| b.health().is_slow());
    for copy in &node.place().copies {
        if is_slow(copy.branch) && ordered.iter().all(|known| known.branch != copy.branch) {
            ordered.push(*copy);
        }
    }
    ordered.sort_by_key(|identity| view.position(identity.branch));
    {
        let place = node.place();
        if place.copies == ordered {
            if let Some(set) = &place.dirs {
                set.verified_ms
                    .store(now_ms, std::sync::atomic::Ordering::Relaxed);
            }
            drop(place);
            copies::note_copies(pool, node);
            return;
        }
    }
    let mut place = node.place_mut();
    place.copies = ordered;
    // Stale descriptors are reused by the refresh that must follow.
    if let Some(set) = &place.dirs {
        set.distrust();
    }
    drop(place);
    copies::note_copies(pool, node);
}

/// Where a name is a directory on one branch and a file on another, the first one's kind counts.
fn keep_one_kind(copies: &mut Copies<'_>) {
    let Some(first) = copies.first() else { return };
    if kind_of(&first.stat) == FileKind::Directory {
        copies.retain(|copy| kind_of(&copy.stat) == FileKind::Directory);
    } else {
        copies.truncate(1);
    }
}

/// What was found under a name, unless it is on a mount that is not crossed.
pub(crate) fn admitted(
    pool: &State,
    dir: &DirEntry,
    name: &OsStr,
    stat: Statx,
) -> sys::Result<Statx> {
    let mounts = &pool.volumes.mounts;
    mounts.admit(dir.branch.id, &stat, dir.fd.as_fd(), name)?;
    Ok(stat)
}
