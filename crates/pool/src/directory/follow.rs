//! `follow-symlinks`: symlinks of a branch shown as what they lead to.
//!
//! Such a link is a node of its own, found by the identity of the link and never by that of its
//! target: the target may be anywhere, and may be in the pool under its own name too. Every use
//! follows the link anew, as programs would that open it by path.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
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
use crate::state::mounts::{key_of, look};
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
/// through the descriptors of a process, into `/proc` or into a pool, which would have the server
/// wait for its own answer.
fn target(pool: &State, dir: &DirEntry, name: &OsStr) -> Option<Target> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let on_its_mount = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let fd = match rustix::fs::openat2(&dir.fd, name, flags, Mode::empty(), on_its_mount) {
        Err(Errno::XDEV) => walk(pool, dir.fd.as_fd(), name)?,
        other => other.ok()?,
    };
    if is_proc(fd.as_fd()) {
        return None;
    }
    let stat = sys::statx_fd(fd.as_fd()).ok()?;
    let mounts = &pool.volumes.mounts;
    (kind_of(&stat) != FileKind::Symlink && mounts.admits_target(fd.as_fd(), &stat))
        .then_some(Target { fd, stat })
}

/// Symlinks in a row, as many as the kernel follows.
const MOST_LINKS: usize = 40;

/// Follows the symlink `name` step by step, as the kernel does, and looks at each mount before
/// anything in it is asked for: a path may pass through the pool and lead out of it again, by its
/// own text or by that of a symlink anywhere. None if it does; the link stays one then. What is
/// found is what the last step opened, whatever its path leads to by now.
fn walk(pool: &State, dir: BorrowedFd<'_>, name: &OsStr) -> Option<OwnedFd> {
    let mounts = &pool.volumes.mounts;
    let mut here = rustix::io::fcntl_dupfd_cloexec(dir, 0).ok()?;
    // The next one is last.
    let mut steps = vec![name.to_owned()];
    let mut links = 0;
    let mut mount = None;
    while let Some(step) = steps.pop() {
        let there = open_step(here.as_fd(), &step, steps.is_empty()).ok()?;
        let stat = look(there.as_fd()).ok()?;
        if mount != Some(key_of(&stat)) {
            if !mounts.admits_step(there.as_fd(), &stat) || is_proc(there.as_fd()) {
                return None;
            }
            mount = Some(key_of(&stat));
        }
        if kind_of(&stat) != FileKind::Symlink {
            here = there;
            continue;
        }
        links += 1;
        // The first one was followed by the kernel before, so it may be.
        if links > MOST_LINKS || links > 1 && is_bait(here.as_fd(), &stat) {
            return None;
        }
        let text = rustix::fs::readlinkat(&there, c"", Vec::with_capacity(256)).ok()?;
        let names = text.as_bytes().split(|byte| *byte == b'/').enumerate();
        let names = names.map(|(at, name)| match (at, name) {
            (0, []) => OsStr::new("/"),
            // As with a slash at the end, only a directory will do.
            (_, []) => OsStr::new("."),
            (_, name) => OsStr::from_bytes(name),
        });
        let names: Vec<&OsStr> = names.collect();
        steps.extend(names.into_iter().rev().map(OsStr::to_owned));
    }
    Some(here)
}

/// One step of a path. A directory with more behind it is mounted if that is due (autofs).
fn open_step(here: BorrowedFd<'_>, step: &OsStr, is_last: bool) -> sys::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(here, step, flags, Mode::empty());
    if is_last {
        return open(flags);
    }
    match open(flags | OFlags::DIRECTORY) {
        Err(Errno::NOTDIR) => open(flags),
        other => other,
    }
}

/// A symlink that somebody left in a directory like `/tmp` for others to follow: the kernel does not
/// follow it either (`fs.protected_symlinks`).
fn is_bait(dir: BorrowedFd<'_>, link: &Statx) -> bool {
    const STICKY_FOR_ALL: u16 = 0o1002;
    look(dir).map_or(true, |dir| {
        dir.stx_mode & STICKY_FOR_ALL == STICKY_FOR_ALL
            && link.stx_uid != dir.stx_uid
            && link.stx_uid != rustix::process::geteuid().as_raw()
    })
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

#[cfg(test)]
mod tests {
    use super::*;

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
