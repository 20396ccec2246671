//! What a branch has to be like to take a file: on it nobody may do what they may not do where the
//! file is.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::NodeId;

use crate::base::branch::Branch;
use crate::base::error::Result;
use crate::base::metadata::{is_fixed, may_have_capability};
use crate::base::sys;
use crate::directory::{Directories, likeness, set};
use crate::mover::MoveError;
use crate::mover::source::{Source, SourceName};
use crate::state::mounts::Forbids;
use crate::state::node::{DirEntry, Node};
use crate::state::paths;

const SET_ID_BITS: u16 = 0o6000;
const X_BITS: u16 = 0o111;

/// Checks that every name can be taken away where the file is.
///
/// # Errors
/// [`MoveError::FixedDirectory`].
pub(super) fn check_source_dirs(names: &[SourceName]) -> Result<(), MoveError> {
    for name in names {
        if is_fixed(&sys::statx_fd(name.dir.fd.as_fd())?) {
            return Err(MoveError::FixedDirectory);
        }
    }
    Ok(())
}

/// Checks that the file may go to `dirs`, its directories on `branch`, the first of which (or the
/// branch's root) is `at`.
///
/// # Errors
/// EPERM: the mount there lets it be run, or run with more rights, where its own does not; a name
/// could not be taken back there; or a directory there is in other hands than that of the file, or
/// lets others in. Those of `statx(2)`.
pub(super) fn check<'a>(
    pool: &Directories,
    source: &Source,
    (branch, at): (&Branch, &OwnedFd),
    dirs: impl Iterator<Item = (&'a DirEntry, &'a SourceName)>,
) -> Result<()> {
    check_mount(pool, source, at)?;
    let mut checked = Checked::new();
    for (dir, name) in dirs {
        if checked.contains(&name.parent.id) {
            continue;
        }
        let stat = sys::statx_fd(dir.fd.as_fd())?;
        if is_fixed(&stat) {
            return Err(Errno::PERM.into());
        }
        check_mount(pool, source, &dir.fd)?;
        check_dirs_alike(pool, &name.parent, (&source.branch, branch), &mut checked)?;
    }
    Ok(())
}

/// What the mount of the file denies it, the new one has to deny as well.
fn check_mount(pool: &Directories, source: &Source, dir: &OwnedFd) -> Result<()> {
    let new = sys::statx_fd(dir.as_fd())?;
    // Mounts that were not met: the worst of each.
    let here = pool.volumes.mounts.forbidden_on(&source.stat);
    let there = pool.volumes.mounts.forbidden_on(&new);
    let gained = here
        .unwrap_or(Forbids::all())
        .difference(there.unwrap_or_default());
    let mode = source.stat.stx_mode;
    let gains_rights = gained.contains(Forbids::SUID)
        && (mode & SET_ID_BITS != 0 || may_have_capability(source.file.as_fd()));
    match gains_rights || gained.contains(Forbids::EXEC) && mode & X_BITS != 0 {
        true => Err(Errno::PERM.into()),
        false => Ok(()),
    }
}

/// Directories that were found alike, with all above them: names of a file share many.
type Checked = SmallVec<[NodeId; 8]>;

/// Who may write a directory on the new branch could take the file for their own, and who may
/// search it look at the file: from the one of the file's name up to the branch's root.
fn check_dirs_alike(
    pool: &Directories,
    dir: &Arc<Node>,
    (from, to): (&Branch, &Branch),
    checked: &mut Checked,
) -> Result<()> {
    let mut at = Arc::clone(dir);
    while !checked.contains(&at.id) {
        let set = set::dir_set(pool, &at)?;
        let (Some(model), Some(made)) = (set.on(from.id), set.on(to.id)) else {
            return Err(Errno::STALE.into());
        };
        if !likeness::is_like(model, made)? {
            tracing::debug!(branch = %to.path.display(), directory = ?paths::relative_path(pool, &at), "a directory has another owner, or lets others in: no file comes there");
            return Err(Errno::PERM.into());
        }
        checked.push(at.id);
        if at.id == NodeId::ROOT {
            break;
        }
        at = paths::parent_of(pool, &at).ok_or(Errno::STALE)?;
    }
    Ok(())
}
