//! File handles: finding a node again that the kernel has forgotten (LOOKUP of `.` and `..`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, Statx};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::{Entry, FileKind, NodeId};

use crate::base::branch::Branch;
use crate::base::error::{Error, Result};
use crate::base::sys;
use crate::coherence::Coherent;
use crate::directory::set::{self, heard};
use crate::directory::{Directories, attr, forget, lookup};
use crate::state::identity::{Identity, Presented, VolumeId, kind_of, split_id};
use crate::state::inode_number::{self, Numbered, PathHash};
use crate::state::node::{DirSet, Names};
use crate::state::view::View;
use crate::state::{State, paths};

/// LOOKUP of `.`: the node itself, found by its id alone if it was forgotten. The kernel
/// compares the generation with that of the handle.
pub(crate) fn lookup_self(pool: &Directories, id: NodeId) -> Result<Entry> {
    let since = pool.coherence.changes.now();
    if let Some(node) = pool.nodes.get(id)
        && node.try_ref_or_root()
    {
        let attr = attr::attr(pool, &node).inspect_err(|_| forget::unref(pool, &node, 1))?;
        return Ok(lookup::entry(pool, &pool.view(), &node, attr, None, since));
    }
    let structure = pool.coherence.changes.structure();
    let (volume, ino) = split_id(id).ok_or(Errno::STALE)?;
    let branch_id = pool.volumes.branch_of(volume).ok_or(Errno::STALE)?;
    let view = pool.view();
    let branch = Arc::clone(view.branch(branch_id).ok_or(Errno::STALE)?);
    let (fd, generation) = pool.volumes.open_any_generation(volume, ino)?;
    let stat = sys::statx_fd(fd.as_fd())?;
    if stat.stx_nlink == 0 || stat.stx_ino != ino {
        return Err(Errno::STALE.into());
    }
    let path = match beneath(pool, &branch, volume, fd.as_fd()) {
        Err(Error {
            errno: Errno::STALE,
            ..
        }) if is_nameless(pool, volume, generation, fd.as_fd(), &stat) => None,
        path => path?,
    };
    let btime_ns = crate::base::sys::btime_ns(&stat);
    let identity = Identity {
        branch: branch_id,
        volume,
        generation,
        ino,
        btime_ns,
        presented: Presented::Own,
    };
    let kind = kind_of(&stat);
    let mut set = DirSet::new(
        SmallVec::new(),
        sys::mono_coarse_ms(),
        view.generation,
        structure,
    );
    if kind == FileKind::Directory {
        find_same_dir(pool, &view, &branch, fd, path.as_deref(), &mut set)?;
    }
    let numbered = match kind {
        FileKind::Directory => Numbered::directory(&identity),
        _ => Numbered::file(&identity, stat.stx_nlink),
    };
    let known_path = || path.as_deref().map(PathHash::of);
    let shown = inode_number::inode_number(pool, &view, numbered, known_path);
    let node = pool
        .nodes
        .find_or_make(smallvec![identity], kind, shown, Names::default())
        .ok_or(Errno::NOMEM)?;
    inode_number::keep(pool, &view, &node);
    if kind == FileKind::Directory {
        let known = Option::clone(&node.place().dirs);
        // Where another look-up was faster, its set stays.
        set::install(pool, &node, set, known.as_ref());
    }
    let attr = attr::attr(pool, &node)?;
    Ok(lookup::entry(pool, &view, &node, attr, None, since))
}

/// Finds the directory and its namesakes on the other branches, in branch order.
fn find_same_dir(
    pool: &Coherent,
    view: &View,
    own: &Arc<Branch>,
    fd: OwnedFd,
    path: Option<&Path>,
    set: &mut DirSet,
) -> Result<()> {
    let mut own_fd = Some(fd);
    for branch in &view.branches {
        let found = if branch.id == own.id {
            own_fd.take()
        } else {
            path.and_then(|path| {
                let opened = open_beneath(branch, path).map_err(|errno| match errno {
                    // The path leads out of the branch.
                    Errno::XDEV => Errno::NOENT,
                    other => other,
                });
                heard(&mut set.probe_error, branch, opened)
            })
        };
        if let Some(fd) = found {
            set.entries.push(set::dir_entry(pool, branch, fd)?);
        }
    }
    Ok(())
}

/// LOOKUP of `..`: the parent of a directory.
pub(crate) fn lookup_parent(pool: &Directories, id: NodeId) -> Result<Entry> {
    let node = pool.node(id)?;
    if node.id == NodeId::ROOT {
        return Err(Errno::NOENT.into());
    }
    if let Some(parent) = paths::parent_of(pool, &node) {
        return lookup::entry_of(pool, parent);
    }
    let set = set::dir_set(pool, &node)?;
    let first = set.entries.first().ok_or(Errno::STALE)?;
    let path = beneath(pool, &first.branch, first.identity.volume, first.fd.as_fd())?;
    let path = path.ok_or(Errno::STALE)?;
    let mut at = pool.nodes.get(NodeId::ROOT).ok_or(Errno::STALE)?;
    let mut found = None;
    for name in path.parent().ok_or(Errno::STALE)?.components() {
        let entry = lookup::lookup(pool, at.id, name.as_os_str())?;
        let next = pool.node(entry.node)?;
        if let Some(passed) = found.replace(next.clone()) {
            forget::unref(pool, &passed, 1);
        }
        at = next;
    }
    match found {
        // The look-up's own reference is the reply's.
        Some(parent) => {
            let since = pool.coherence.changes.now();
            let attr = attr::attr(pool, &parent)?;
            Ok(lookup::entry(
                pool,
                &pool.view(),
                &parent,
                attr,
                None,
                since,
            ))
        }
        None => lookup::entry_of(pool, at),
    }
}

fn open_beneath(branch: &Branch, path: &Path) -> sys::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(branch.root(), path, flags, Mode::empty(), resolve)
}

/// The path of an inode below its branch, as the kernel knows it; `None` if the kernel does not
/// (a file opened by handle has no name until someone looks it up) but the branch is the whole
/// filesystem, so that nothing on it lies outside.
///
/// # Errors
/// ESTALE if it may lie outside the branch: a made-up handle must not lead there.
fn beneath(
    pool: &State,
    branch: &Branch,
    volume: VolumeId,
    fd: BorrowedFd<'_>,
) -> Result<Option<PathBuf>> {
    let (root, path) = (sys::path_of(branch.root())?, sys::path_of(fd)?);
    if let Ok(relative) = path.strip_prefix(&root)
        && !relative.as_os_str().is_empty()
    {
        return Ok(Some(relative.to_path_buf()));
    }
    match pool.volumes.is_whole(volume) {
        true => Ok(None),
        false => Err(Errno::STALE.into()),
    }
}

/// Whether a file that the kernel knows no name of (or perhaps another one than the pool's) was
/// in the pool before it was forgotten: its handle is none that was made up.
fn is_nameless(
    pool: &State,
    volume: VolumeId,
    generation: u32,
    fd: BorrowedFd<'_>,
    stat: &Statx,
) -> bool {
    let unconnected = || sys::path_of(fd).is_ok_and(|path| path == Path::new("/"));
    kind_of(stat) != FileKind::Directory
        && (stat.stx_nlink > 1 || unconnected())
        && pool.volumes.was_shown(volume, stat.stx_ino, generation)
}
