//! From a node to its inode on a branch: by name where the name still leads there, else through
//! an open handle, else by file handle. Never to another inode.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, Statx};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::FileKind;

use crate::base::branch::Branch;
use crate::base::calls::Call;
use crate::base::error::Result;
use crate::base::open::{past_own_leases, reopen};
use crate::base::sys;
use crate::directory::set::{self, Freshness, SlowBranches};
use crate::directory::{Directories, follow};
use crate::state::State;
use crate::state::identity::{Identity, Presented};
use crate::state::node::{DirEntry, DirSet, Node};

/// An inode found on its branch.
pub(crate) struct Located {
    /// The branch.
    pub branch: Arc<Branch>,
    /// `O_PATH`, or an open handle's descriptor.
    pub fd: Arc<OwnedFd>,
}

impl Located {
    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A name copied off a node's lock, without allocating for usual lengths.
type NameBytes = SmallVec<[u8; 64]>;

/// Calls `attempt` with the directory and name of each known name of a file, newest first,
/// on its own branch, until one answers `Some`.
fn by_name<T>(
    pool: &Directories,
    node: &Arc<Node>,
    identity: &Identity,
    mut attempt: impl FnMut(&DirEntry, &OsStr) -> Option<T>,
) -> Option<T> {
    use std::os::unix::ffi::OsStrExt;
    let names: SmallVec<[(strandfs_fuse::NodeId, NameBytes); 1]> = {
        let place = node.place();
        place
            .names
            .iter()
            .map(|name| (name.parent, NameBytes::from_slice(name.name.as_bytes())))
            .collect()
    };
    names.iter().find_map(|(parent, name)| {
        let parent = pool.nodes.get(*parent)?;
        let set = set::dir_set_of(pool, &parent, Freshness::Trusted, SlowBranches::Ask).ok()?;
        attempt(set.on(identity.branch)?, OsStr::from_bytes(name))
    })
}

/// An `O_PATH` descriptor of the node's primary inode.
///
/// # Errors
/// ESTALE if it cannot be found any more.
pub(crate) fn locate(pool: &Directories, node: &Arc<Node>) -> Result<Located> {
    if node.is_dir() {
        let set = set::dir_set_of(pool, node, Freshness::Trusted, SlowBranches::Ask)?;
        let first = set.entries.first().ok_or(Errno::STALE)?;
        return Ok(Located {
            branch: Arc::clone(&first.branch),
            fd: Arc::clone(&first.fd),
        });
    }
    let identity = node.primary().ok_or(Errno::STALE)?;
    match locate_open(pool, node, &identity) {
        Some(found) => Ok(found),
        None => locate_shown(pool, node),
    }
}

/// As [`locate`] of a file, whatever is open of another copy of it.
///
/// # Errors
/// The same.
pub(crate) fn locate_shown(pool: &Directories, node: &Arc<Node>) -> Result<Located> {
    let identity = node.primary().ok_or(Errno::STALE)?;
    if follows(node, &identity) {
        let by_name = self::by_name(pool, node, &identity, |dir, name| {
            let target = follow::target_of(pool, dir, name, &identity, node.kind)?;
            Some(Located {
                branch: Arc::clone(&dir.branch),
                fd: Arc::new(target.fd),
            })
        });
        return by_name.map_or_else(|| locate_nameless(pool, node, &identity), Ok);
    }
    locate_named(pool, node, &identity).map_or_else(|| locate_nameless(pool, node, &identity), Ok)
}

/// The symlink of a node that is shown as what the link leads to.
///
/// # Errors
/// ESTALE if no name leads to it any more.
pub(crate) fn locate_link(pool: &Directories, node: &Arc<Node>) -> Result<Located> {
    let identity = node.primary().ok_or(Errno::STALE)?;
    locate_named(pool, node, &identity).ok_or(Errno::STALE.into())
}

fn locate_named(pool: &Directories, node: &Arc<Node>, identity: &Identity) -> Option<Located> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    self::by_name(pool, node, identity, |dir, name| {
        let fd = rustix::fs::openat(&dir.fd, name, flags, Mode::empty()).ok()?;
        let stat = sys::statx_fd(fd.as_fd()).ok()?;
        pool.volumes.same(identity, &stat).then(|| Located {
            branch: Arc::clone(&dir.branch),
            fd: Arc::new(fd),
        })
    })
}

/// An open handle's descriptor costs nothing to find. Not one on another branch: of another copy, which
/// `func.open` has opened, or which is read while the one that is shown fails.
fn locate_open(pool: &State, node: &Arc<Node>, identity: &Identity) -> Option<Located> {
    let (branch, fd) = (node.open.lock().as_ref()?).open_on(identity.branch)?;
    let view = pool.view();
    // A branch taken out of the pool serves on for what is open.
    let branch = view.branch(identity.branch).cloned().unwrap_or(branch);
    Some(Located { branch, fd })
}

fn locate_nameless(pool: &Directories, node: &Arc<Node>, identity: &Identity) -> Result<Located> {
    // It moved while it was looked for: this inode has lost its names, and another has them.
    if node.primary() != Some(*identity) {
        return Err(Errno::STALE.into());
    }
    let view = pool.view();
    if let Some(found) = locate_open(pool, node, identity) {
        return Ok(found);
    }
    if follows(node, identity) {
        // Where a relative link leads depends on its directory, which only a name tells.
        return Err(Errno::STALE.into());
    }
    let branch = Arc::clone(view.branch(identity.branch).ok_or(Errno::STALE)?);
    if let Some(fd) = pool.removed_files.get(node) {
        return Ok(Located { branch, fd });
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let fd = pool
        .volumes
        .open(identity.volume, identity.ino, identity.generation, flags)?;
    let stat = sys::statx_fd(fd.as_fd())?;
    if !pool.volumes.same(identity, &stat) {
        return Err(Errno::STALE.into());
    }
    Ok(Located {
        branch,
        fd: Arc::new(fd),
    })
}

/// Attributes of a file's inode: one system call while its name stands.
pub(crate) fn stat_file(pool: &Directories, node: &Arc<Node>) -> Result<Statx> {
    let identity = node.primary().ok_or(Errno::STALE)?;
    let follows = follows(node, &identity);
    let by_name = self::by_name(pool, node, &identity, |dir, name| {
        if follows {
            let target = follow::target_of(pool, dir, name, &identity, node.kind)?;
            return Some(target.stat);
        }
        let ask = || sys::statx_name(dir.fd.as_fd(), name);
        let stat = dir.branch.call(Call::Stat, ask).ok()?;
        pool.volumes.same(&identity, &stat).then_some(stat)
    });
    match by_name {
        Some(stat) => Ok(stat),
        None => {
            let located = locate_nameless(pool, node, &identity)?;
            Ok((located.branch).call(Call::Stat, || sys::statx_fd(located.fd()))?)
        }
    }
}

/// Whether a name in a directory leads to the file's own inode, as far as its branch can tell.
pub(crate) fn leads_to(pool: &Directories, node: &Node, set: &DirSet, name: &OsStr) -> bool {
    let Some(identity) = node.primary() else {
        return false;
    };
    let Some(dir) = set.on(identity.branch) else {
        return false;
    };
    if follows(node, &identity) {
        return follow::target_of(pool, dir, name, &identity, node.kind).is_some();
    }
    is_its_name(pool, &identity, dir, name)
}

/// The same for the inode of this identity.
fn is_its_name(pool: &Directories, identity: &Identity, dir: &DirEntry, name: &OsStr) -> bool {
    match sys::statx_name(dir.fd.as_fd(), name) {
        Ok(stat) => pool.volumes.same(identity, &stat),
        Err(Errno::NOENT | Errno::NOTDIR) => false,
        // A branch that fails says nothing against it: another copy is to be read then.
        Err(_) => true,
    }
}

/// What the right to write to a file depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owned {
    /// Its mode.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
}

impl From<&Statx> for Owned {
    fn from(stat: &Statx) -> Owned {
        Owned {
            mode: u32::from(stat.stx_mode),
            uid: stat.stx_uid,
        }
    }
}

/// Opens the node's primary inode for I/O and tells its attributes; never `O_TRUNC`, never another inode.
///
/// # Errors
/// Those of `open(2)` on the branch; ESTALE if the inode is gone.
pub(crate) fn open_inode(
    pool: &Directories,
    node: &Arc<Node>,
    flags: OFlags,
) -> Result<(Arc<Branch>, OwnedFd, Statx)> {
    let identity = node.primary().ok_or(Errno::STALE)?;
    // O_NONBLOCK keeps a fifo swapped in under the name from holding this thread; regular
    // files ignore it, except when a lease would have to be broken first.
    let by_name_flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut refusal = None;
    let by_name = self::by_name(pool, node, &identity, |dir, name| {
        let open = || rustix::fs::openat(&dir.fd, name, by_name_flags, Mode::empty());
        match (dir.branch).call(Call::Open, || past_own_leases(open)) {
            Ok(fd) => {
                let stat = sys::statx_fd(fd.as_fd()).ok()?;
                pool.volumes
                    .same(&identity, &stat)
                    .then(|| (Arc::clone(&dir.branch), fd, stat))
            }
            Err(errno) => {
                // The name may be another's by now, who is refused.
                if is_its_name(pool, &identity, dir, name) {
                    refusal = Some(errno);
                }
                None
            }
        }
    });
    match (by_name, refusal) {
        (Some(found), _) => Ok(found),
        (None, Some(errno)) if definite_refusal(errno) => Err(errno.into()),
        (None, Some(Errno::AGAIN)) => Err(Errno::AGAIN.into()),
        _ => {
            let located = locate(pool, node)?;
            let fd = (located.branch).call(Call::Open, || reopen(located.fd(), flags))?;
            let stat = sys::statx_fd(fd.as_fd())?;
            Ok((located.branch, fd, stat))
        }
    }
}

/// Whether the node, of this identity, is a symlink shown as what it leads to.
fn follows(node: &Node, identity: &Identity) -> bool {
    identity.presented == Presented::Other && node.kind != FileKind::Symlink
}

/// Whether opening failed for a reason that opening by another way would meet too.
fn definite_refusal(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::NOENT | Errno::AGAIN | Errno::LOOP | Errno::STALE | Errno::NOTDIR
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn no_open_fails_because_the_server_asks_who_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let asker = File::create(&path).unwrap();
        if sys::written_by_others(asker.as_fd(), sys::Own::Writer).is_err() {
            return;
        }
        let at = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = sys::written_by_others(asker.as_fd(), sys::Own::Writer);
                }
            });
            let opened: Vec<_> = (0..20_000)
                .map(|_| reopen(at.as_fd(), OFlags::RDWR).map(drop))
                .collect();
            done.store(true, Ordering::Relaxed);
            assert!(opened.iter().all(|opened| *opened == Ok(())));
        });
    }
}
