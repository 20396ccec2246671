//! Making a directory on a branch that lacks it, like the one that exists elsewhere.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Mode, RawDir, Statx, StatxAttributes};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::FileKind;

use crate::base::access_list::ACCESS;
use crate::base::branch::Branch;
use crate::base::error::{Error, Result};
use crate::base::metadata::{copy_metadata, set_times};
use crate::base::step::step;
use crate::base::sys;
use crate::coherence::{Coherent, remembered};
use crate::directory::copy::Copies;
use crate::directory::reading::open_to_keep;
use crate::directory::{Directories, set};
use crate::state::identity::{Identity, kind_of};
use crate::state::node::{DirEntry, DirSet, Node};
use crate::state::paths;

/// Renames of directories above that a clone of a path outlives.
const RENAMES_MAX: usize = 1000;
/// Room for a few names.
const DENTS_BYTES: usize = 1024;

/// The mode of a directory that is being made like another. Nobody but its owner gets in, so that the
/// sticky bit is of no use: it says that a server died before the directory was finished.
pub(crate) const UNFINISHED: Mode = Mode::RWXU.union(Mode::SVTX);

/// Whether a directory may never have been finished: only its owner gets in and it is sticky, or nobody
/// does (see [`copy_metadata`]). It may have inherited a set-group-id bit, and fewer permissions.
pub(crate) fn is_unfinished(stat: &Statx) -> bool {
    kind_of(stat) == FileKind::Directory
        && !mode_of(stat).intersects(Mode::RWXG | Mode::RWXO)
        && (mode_of(stat).contains(Mode::SVTX) || is_closed(stat))
}

/// Whether nobody gets in, not even the owner: what people make of mountpoints, too.
fn is_closed(stat: &Statx) -> bool {
    !mode_of(stat).intersects(Mode::RWXU | Mode::RWXG | Mode::RWXO)
}

fn mode_of(stat: &Statx) -> Mode {
    Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777)
}

/// Finishes what a server that died had begun to make like another copy of the same directory.
#[cold]
pub(crate) fn finish_clones(pool: &Coherent, name: &OsStr, copies: &mut Copies<'_>) {
    let model = copies.iter().find(|copy| !is_unfinished(&copy.stat));
    let Some((branch, dir, seen)) = model.map(|copy| (&copy.dir.branch, copy.dir, copy.stat))
    else {
        return;
    };
    for copy in copies.iter_mut().filter(|copy| is_unfinished(&copy.stat)) {
        let finish = || -> sys::Result<Statx> {
            let model = set::open_dir_entry(pool, branch, dir.fd.as_fd(), name)?;
            let (at, found) = (&copy.dir.branch, copy.dir.fd.as_fd());
            let entry = set::open_dir_entry(pool, at, found, name)?;
            let is_same = pool.volumes.same(&model.identity, &seen)
                && pool.volumes.same(&entry.identity, &copy.stat);
            // Who is about to change the copies' attributes does so one after the other.
            let known = |id: &Identity| pool.nodes.find(id.volume, id.ino, id.presented);
            let node = known(&model.identity).or_else(|| known(&entry.identity));
            let held = node
                .as_ref()
                .map(|node| node.try_hold_attributes().ok_or(Errno::BUSY));
            let _held = held.transpose()?;
            let (from, to) = (model.fd.as_fd(), entry.fd.as_fd());
            let (wanted, unfinished) = (sys::statx_fd(from)?, sys::statx_fd(to)?);
            let theirs = (wanted.stx_uid, rustix::process::geteuid().as_raw());
            let ours = unfinished.stx_uid == theirs.0 || unfinished.stx_uid == theirs.1;
            let may_be = is_unfinished(&unfinished)
                && !is_unfinished(&wanted)
                && (!is_closed(&unfinished) || awaits_list((from, &wanted), (to, &unfinished)));
            if !is_same || !ours || !may_be || !is_empty(entry.reader()?.as_fd())? {
                return Err(Errno::NOTEMPTY);
            }
            copy_metadata((from, &wanted), (to, &unfinished))?;
            let finished = sys::statx_fd(to)?;
            entry.memory.note_rights(&finished);
            Ok(finished)
        };
        match finish() {
            Ok(stat) => {
                tracing::info!(branch = %copy.dir.branch.path.display(), ?name, "a directory that a server had begun to make is finished");
                copy.stat = stat;
            }
            Err(errno) => tracing::debug!(%errno, ?name, "it is left as it is"),
        }
    }
}

/// Whether a directory that nobody gets into lacks nothing but the access list of its model.
fn awaits_list(
    (model, wanted): (BorrowedFd<'_>, &Statx),
    (copy, unfinished): (BorrowedFd<'_>, &Statx),
) -> bool {
    let has_list = |dir| sys::getxattr(dir, OsStr::new(ACCESS), None).is_ok();
    (wanted.stx_uid, wanted.stx_gid) == (unfinished.stx_uid, unfinished.stx_gid)
        // Some filesystems keep whole seconds.
        && wanted.stx_mtime.tv_sec == unfinished.stx_mtime.tv_sec
        && mode_of(wanted).difference(Mode::RWXU | Mode::RWXG | Mode::RWXO) == mode_of(unfinished)
        && has_list(model)
        && !has_list(copy)
}

/// The directory of `node` on `branch`, made there (with its parents) if it is missing.
///
/// # Errors
/// Those of `mkdir(2)` on the branch; ENOENT if the directory is gone everywhere; EXDEV if the
/// branch has something else under that name, so that the directory cannot be there; EPERM if
/// it is immutable; EOPNOTSUPP if the branch cannot have it as it is elsewhere, with its
/// access lists or flags.
pub(crate) fn ensure_dir(
    pool: &Directories,
    node: &Arc<Node>,
    branch: &Arc<Branch>,
) -> Result<DirEntry> {
    for _ in 0..RENAMES_MAX {
        if let Some(entry) = ensure_dir_once(pool, node, branch)? {
            return Ok(entry);
        }
    }
    Err(Errno::STALE.into())
}

/// As [`ensure_dir`]; `None` if a directory above went elsewhere meanwhile.
fn ensure_dir_once(
    pool: &Directories,
    node: &Arc<Node>,
    branch: &Arc<Branch>,
) -> Result<Option<DirEntry>> {
    let mut missing = Vec::new();
    let mut at = Arc::clone(node);
    let mut here = loop {
        if let Some(entry) = set::dir_set(pool, &at)?.on(branch.id) {
            break entry.clone();
        }
        let parent = paths::parent_of(pool, &at).ok_or(Errno::NOENT)?;
        missing.push(at);
        at = parent;
    };
    while let Some(next) = missing.pop() {
        let is_above = !missing.is_empty();
        // Until it is one of the copies that a change of attributes would change, or a rename
        // take elsewhere.
        let _held = next.hold_attributes();
        let set = set::dir_set(pool, &next)?;
        if let Some(made) = set.on(branch.id) {
            here = made.clone();
            at = Arc::clone(&next);
            continue;
        }
        let place = next.name().ok_or(Errno::NOENT)?;
        if place.parent != at.id {
            return Ok(None);
        }
        let (above, name) = (Some(&*at), place.name);
        let model = set.entries.first().cloned().ok_or(Errno::NOENT)?;
        if !is_named(pool, &at, &set, &name) {
            tracing::debug!(branch = %branch.path.display(), ?name, "a directory that has another name by now is not made on a further branch");
            return Err(Errno::XDEV.into());
        }
        if is_immutable(&set)? {
            // Nothing may come into it; what lies deeper may, but not where it would first
            // have to be made.
            tracing::debug!(branch = %branch.path.display(), ?name, "an immutable directory is not made on a further branch");
            return Err(if is_above {
                Errno::OPNOTSUPP.into()
            } else {
                Errno::PERM.into()
            });
        }
        let cloned = clone_dir(pool, &model, (above, &here), branch, &name);
        here = cloned.map_err(|errno| {
            // The directory is like others of its kind, but the one above it is shut here.
            let shut = || is_shut(&here).unwrap_or(false);
            if errno.errno == Errno::PERM && shut() {
                tracing::debug!(branch = %branch.path.display(), ?name, "no directory is made in an immutable one");
                return Errno::OPNOTSUPP.into();
            }
            if errno.errno == Errno::OPNOTSUPP {
                tracing::warn!(branch = %branch.path.display(), ?name, "no directory is made here: the branch cannot keep its access lists or flags");
            }
            if errno.errno != Errno::NOTDIR {
                return errno;
            }
            tracing::warn!(branch = %branch.path.display(), ?name, "no directory can be made here: something else has its name");
            Errno::XDEV.into()
        })?;
        add_copy(pool, &next, here.clone());
        at = Arc::clone(&next);
    }
    Ok(Some(here))
}

/// Makes a directory like `model` in `parent` on `branch`; the node that `parent` is part of, if
/// it is part of one, comes with it.
pub(crate) fn clone_dir(
    pool: &Directories,
    model: &DirEntry,
    (above, parent): (Option<&Node>, &DirEntry),
    branch: &Arc<Branch>,
    name: &OsStr,
) -> Result<DirEntry> {
    let stat = sys::statx_fd(model.fd.as_fd())?;
    // It is made as root, for anybody.
    if branch.is_near_root_reserve() && rustix::fs::fstatvfs(branch.root())?.f_bavail == 0 {
        return Err(Errno::NOSPC.into());
    }
    let _making = pool.clones.begin(parent, name);
    let made = keeping_times(above, parent, || {
        // Closed to others until its owner and ACL are in place.
        Ok(sys::for_owner_alone(|| {
            rustix::fs::mkdirat(&parent.fd, name, UNFINISHED)
        })?)
    });
    match made {
        Ok(()) => {}
        // Made meanwhile by someone else: theirs to keep as it is.
        Err(Error {
            errno: Errno::EXIST,
            ..
        }) => return Ok(set::open_dir_entry(pool, branch, parent.fd.as_fd(), name)?),
        Err(errno) => return Err(errno),
    }
    step();
    let (fd, readable) = open_to_keep(&pool.view(), branch, parent, name)?;
    let made = sys::statx_fd(fd.as_fd())?;
    let entry = DirEntry {
        readable,
        ..set::dir_entry_of(pool, branch, fd, &made)?
    };
    // Whoever may rename names there can have put somebody else's in its place, and would get what is in that. Owner
    // and mode tell nothing, as FAT, FUSE and other machines make of them what they like.
    if !is_empty(entry.reader()?.as_fd())? {
        tracing::warn!(branch = %branch.path.display(), ?name, "somebody put another directory where one was being made; it stays as it is");
        return Err(Error::at(branch, Errno::STALE));
    }
    if let Err(errno) = copy_metadata((model.fd.as_fd(), &stat), (entry.fd.as_fd(), &made)) {
        // Half-made directories would show wrong permissions: better none.
        let is_it = |found: Statx| pool.volumes.same(&entry.identity, &found);
        if sys::statx_name(parent.fd.as_fd(), name).is_ok_and(is_it) {
            let _ = keeping_times(above, parent, || {
                Ok(rustix::fs::unlinkat(&parent.fd, name, AtFlags::REMOVEDIR)?)
            });
        }
        return Err(errno.into());
    }
    step();
    // What was seen of it before was nobody's.
    entry.memory.note_rights(&stat);
    // Most of what is about to be looked for here is on the branch it was cloned from.
    remembered::learn_new(pool, &entry);
    Ok(entry)
}

/// Adds a branch's directory to a node's, in branch order.
pub(crate) fn add_copy(pool: &Directories, node: &Arc<Node>, entry: DirEntry) {
    let view = pool.view();
    loop {
        let Ok(set) = set::dir_set(pool, node) else {
            return;
        };
        if set.on(entry.branch.id).is_some() {
            return;
        }
        let mut entries: SmallVec<[DirEntry; 2]> = set.entries.clone();
        entries.push(entry.clone());
        entries.sort_by_key(|entry| view.position(entry.branch.id));
        let structure = set.structure.load(Ordering::Acquire);
        let mut wider = DirSet::new(entries, sys::mono_coarse_ms(), set.generation, structure);
        wider.skipped = set.skipped;
        wider.probe_error = set.probe_error;
        if set::install(pool, node, wider, Some(&set)).is_some() {
            return;
        }
    }
}

/// Whether a directory, open for reading, has no entries.
///
/// # Errors
/// Those of `getdents64(2)`.
pub(crate) fn is_empty(reader: BorrowedFd<'_>) -> sys::Result<bool> {
    let mut room = Vec::with_capacity(DENTS_BYTES);
    let mut entries = RawDir::new(reader, room.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a copy of a directory still has its name in the directory above. Where each was renamed behind
/// the pool the name is another's, who would get what is made there.
fn is_named(pool: &Directories, above: &Arc<Node>, set: &DirSet, name: &OsStr) -> bool {
    let Ok(above) = set::dir_set(pool, above) else {
        return false;
    };
    set.entries.iter().any(|copy| {
        let stat = |dir: &DirEntry| sys::statx_name(dir.fd.as_fd(), name);
        let found = above.on(copy.branch.id).map(stat);
        found.is_some_and(|found| found.is_ok_and(|stat| pool.volumes.same(&copy.identity, &stat)))
    })
}

/// Whether one of the copies is immutable (`chattr +i`).
fn is_immutable(set: &DirSet) -> Result<bool> {
    for entry in &set.entries {
        if is_shut(entry)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_shut(dir: &DirEntry) -> sys::Result<bool> {
    let attributes = sys::statx_fd(dir.fd.as_fd())?.stx_attributes;
    Ok(attributes.contains(StatxAttributes::IMMUTABLE))
}

/// Makes a change in a directory that is none users made: its times stay, unless users set them
/// meanwhile.
fn keeping_times(
    node: Option<&Node>,
    dir: &DirEntry,
    change: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let _held = node.map(Node::hold_attributes);
    let before = sys::statx_fd(dir.fd.as_fd())?;
    change()?;
    let _ = set_times(dir.fd.as_fd(), &before);
    Ok(())
}
