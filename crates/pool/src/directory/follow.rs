//! `follow-symlinks`: symlinks of a branch shown as what they lead to.
//!
//! Such a link is a node of its own, found by the identity of the link and never by that of its
//! target: the target may be anywhere, and may be in the pool under its own name too. Every use
//! follows the link anew, as programs would that open it by path.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, Statx};
use rustix::io::Errno;
use strandfs_fuse::FileKind;
use strandfs_options::FollowSymlinks;

use crate::base::branch::Branch;
use crate::base::sys;
use crate::directory::copy::Copy;
use crate::state::State;
use crate::state::identity::{Identity, Presented, kind_of};
use crate::state::node::{DirEntry, DirSet};
use crate::state::view::View;

/// What a symlink leads to.
pub(crate) struct Target {
    /// `O_PATH`.
    pub fd: OwnedFd,
    /// Its attributes; not a symlink.
    pub stat: Statx,
}

/// Whether links that lead to this kind are followed.
fn covers(rule: FollowSymlinks, kind: FileKind) -> bool {
    match rule {
        FollowSymlinks::Never => false,
        FollowSymlinks::Directory => kind == FileKind::Directory,
        FollowSymlinks::Regular => kind == FileKind::Regular,
        FollowSymlinks::All => true,
    }
}

/// A name found on a branch, as it is shown.
pub(crate) fn shown_copy<'a>(
    pool: &State,
    view: &View,
    dir: &'a DirEntry,
    name: &OsStr,
    stat: Statx,
) -> Copy<'a> {
    let target = match kind_of(&stat) {
        FileKind::Symlink => followed(pool, view, dir, name),
        _ => None,
    };
    let (stat, link) = match target {
        Some(target) => (target.stat, Some(Box::new(stat))),
        None => (stat, None),
    };
    Copy {
        dir,
        stat,
        link,
        instead_of: None,
    }
}

/// What a symlink leads to, if the option has it followed.
fn followed(pool: &State, view: &View, dir: &DirEntry, name: &OsStr) -> Option<Target> {
    let rule = view.settings.presentation.follow_symlinks;
    if rule == FollowSymlinks::Never {
        return None;
    }
    self::target(pool, dir, name).filter(|target| covers(rule, kind_of(&target.stat)))
}

/// What the symlink `link` leads to, if it is still under this name and leads to this kind.
pub(crate) fn target_of(
    pool: &State,
    dir: &DirEntry,
    name: &OsStr,
    link: &Identity,
    kind: FileKind,
) -> Option<Target> {
    let stat = sys::statx_name(dir.fd.as_fd(), name).ok()?;
    if !pool.volumes.same(link, &stat) {
        return None;
    }
    self::target(pool, dir, name).filter(|target| kind_of(&target.stat) == kind)
}

/// The directory that a symlink is shown as.
pub(crate) fn followed_dir(
    pool: &State,
    branch: &Arc<Branch>,
    parent: &DirEntry,
    name: &OsStr,
    link: &Statx,
) -> Option<DirEntry> {
    let target = followed(pool, &pool.view(), parent, name)?;
    if kind_of(&target.stat) != FileKind::Directory {
        return None;
    }
    let identity = pool
        .volumes
        .identify(branch.id, branch.seed, link, parent.fd.as_fd(), name)
        .ok()?;
    Some(DirEntry {
        branch: Arc::clone(branch),
        identity: identity.with_presented(Presented::Other),
        fd: Arc::new(target.fd),
        readable: false,
        memory: Arc::default(),
    })
}

/// Follows a symlink wherever it leads: out of the branch and to other filesystems, but not
/// through the descriptors of a process, into `/proc` or into the pool itself, which would
/// have the server wait for its own answer.
fn target(pool: &State, dir: &DirEntry, name: &OsStr) -> Option<Target> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let follow = |resolve| rustix::fs::openat2(&dir.fd, name, flags, Mode::empty(), resolve);
    let anywhere = ResolveFlags::NO_MAGICLINKS;
    let fd = match follow(anywhere | ResolveFlags::NO_XDEV) {
        Err(Errno::XDEV) if !leads_into_pool(pool, dir, name) => follow(anywhere),
        other => other,
    };
    let fd = fd.ok().filter(|fd| !is_proc(fd.as_fd()))?;
    let stat = sys::statx_fd(fd.as_fd()).ok()?;
    let mounts = &pool.volumes.mounts;
    (kind_of(&stat) != FileKind::Symlink && mounts.admits_target(fd.as_fd(), &stat))
        .then_some(Target { fd, stat })
}

/// Judged by the link's text, without asking the filesystem.
fn leads_into_pool(pool: &State, dir: &DirEntry, name: &OsStr) -> bool {
    let read = |at: BorrowedFd<'_>, name: &OsStr| {
        let text = rustix::fs::readlinkat(at, name, Vec::with_capacity(256)).ok()?;
        Some(PathBuf::from(OsString::from_vec(text.into_bytes())))
    };
    let own = sys::ProcPath::new(&dir.fd);
    let place = rustix::fs::readlink(own.as_c_str(), Vec::new())
        .map(|path| PathBuf::from(OsString::from_vec(path.into_bytes())));
    match (read(dir.fd.as_fd(), name), place, pool.mountpoint.get()) {
        (Some(text), Ok(place), Some(mountpoint)) => {
            tidy(&place.join(text)).starts_with(mountpoint)
        }
        _ => true,
    }
}

/// Whether a name that `rmdir(2)` was called with is on some branch a symlink that is shown
/// as a directory.
pub(crate) fn shows_a_link(
    pool: &State,
    view: &View,
    set: &DirSet,
    name: &OsStr,
    found: &[(Arc<Branch>, Statx)],
) -> bool {
    view.settings.presentation.follow_symlinks != FollowSymlinks::Never
        && found
            .iter()
            .any(|(branch, stat)| is_followed_dir(pool, view, set, name, branch, stat))
}

pub(crate) fn is_followed_dir(
    pool: &State,
    view: &View,
    set: &DirSet,
    name: &OsStr,
    branch: &Branch,
    stat: &Statx,
) -> bool {
    let target = match set.on(branch.id) {
        Some(dir) if kind_of(stat) == FileKind::Symlink => followed(pool, view, dir, name),
        _ => None,
    };
    target.is_some_and(|target| kind_of(&target.stat) == FileKind::Directory)
}

/// What lies in `/proc` is the server's own or that of a process it may look into.
fn is_proc(fd: BorrowedFd<'_>) -> bool {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    rustix::fs::fstatfs(fd).map_or(true, |fs| fs.f_type as u64 == PROC_SUPER_MAGIC)
}

/// An absolute path without `.` and `..`.
fn tidy(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                tidied.pop();
            }
            other => tidied.push(other),
        }
    }
    tidied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_tidied_by_their_text() {
        for (path, tidied) in [
            ("/a/b/../c", "/a/c"),
            ("/a/./b/", "/a/b"),
            ("/../../a", "/a"),
        ] {
            assert_eq!(tidy(Path::new(path)), Path::new(tidied));
        }
    }

    #[test]
    fn a_rule_covers_what_its_name_says() {
        let kinds = [FileKind::Directory, FileKind::Regular, FileKind::Fifo];
        let covered = |rule| kinds.map(|kind| covers(rule, kind));
        assert_eq!(covered(FollowSymlinks::Never), [false, false, false]);
        assert_eq!(covered(FollowSymlinks::Directory), [true, false, false]);
        assert_eq!(covered(FollowSymlinks::Regular), [false, true, false]);
        assert_eq!(covered(FollowSymlinks::All), [true, true, true]);
    }
}
