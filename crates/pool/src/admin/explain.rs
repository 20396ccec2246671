//! What the pool says of one path (`strandfs explain`): its copies, how they differ, and
//! what each operation would do on which branch, asked of the policies in force.

mod decisions;
mod parts;

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Statx;
use rustix::io::Errno;
use strandfs_fuse::{Context, FileKind, NodeId};

use crate::admin::{Admin, status};
use crate::base::branch::Branch;
use crate::base::error::Result;
use crate::base::status::{CopyFacts, Explanation, FoundCopy, count, rfc3339};
use crate::base::sys;
use crate::directory::set::{self, Freshness, SlowBranches};
use crate::directory::{Directories, attr};
use crate::ops::privilege::caller_uid;
use crate::ops::xattr::give;
use crate::state::identity::kind_of;
use crate::state::node::{DirSet, Node};
use crate::state::view::View;
use crate::state::{State, paths};
pub(crate) use parts::Parts;

/// Attributes through which the pool speaks of itself. Unlike `user.*` the kernel hands
/// `system.*` on for every kind of file and without a permission check, so each is guarded here.
pub(crate) const SELF_PREFIX: &[u8] = b"system.strandfs.";

/// What one branch has under the path asked for.
pub(super) struct OnBranch {
    pub(super) branch: Arc<Branch>,
    /// ENOENT if there is nothing.
    pub(super) found: sys::Result<Statx>,
    /// The directory that holds the path is there.
    pub(super) parent: bool,
}

impl OnBranch {
    /// Whether a copy is here that counts as the node's: of its kind.
    pub(super) fn holds(&self, kind: FileKind) -> Option<&Statx> {
        self.found
            .as_ref()
            .ok()
            .filter(|stat| kind_of(stat) == kind)
    }
}

/// GETXATTR of `system.strandfs.explain`, for root, the server's user and the file's owner. An
/// answer that no attribute can hold is given in parts, `explain.TOKEN.NUMBER`.
///
/// # Errors
/// EACCES for others, ENODATA for another name, ERANGE if `out` is too short, ENODATA for what has no
/// name any more.
pub(crate) fn getxattr_of_self(
    pool: &Admin,
    cx: &Context<'_>,
    id: NodeId,
    name: &OsStr,
    out: Option<&mut [u8]>,
) -> Result<usize> {
    let key = name.as_bytes().strip_prefix(SELF_PREFIX);
    let part = key.and_then(|key| key.strip_prefix(b"explain."));
    if part.is_none() && key != Some(b"explain") {
        return Err(Errno::NODATA.into());
    }
    let node = pool.node(id)?;
    let uid = caller_uid(cx).ok_or(Errno::ACCESS)?;
    let trusted = uid == 0 || uid == rustix::process::geteuid().as_raw();
    if !trusted && attr::attr(pool, &node)?.uid != uid {
        return Err(Errno::ACCESS.into());
    }
    let answer = match part {
        Some(part) => pool.explained.part(id, part)?,
        None => {
            let text = explain(pool, &node)?.to_string();
            pool.explained.fit(id, text).into_bytes()
        }
    };
    give(&answer, out)
}

/// All about the path of a node.
///
/// # Errors
/// ENODATA if it has no name any more; ENOENT if it is gone from every branch; the error of
/// the branch that could not answer.
pub(crate) fn explain(pool: &Directories, node: &Arc<Node>) -> Result<Explanation> {
    let view = pool.view();
    let here = on_every_branch(pool, &view, node)?;
    let relative = paths::relative_path(pool, node).ok_or(Errno::NODATA)?;
    let shown = self::shown(pool, node, &here);
    let copies = here
        .iter()
        .enumerate()
        .filter_map(|(index, on)| copy(index, on, node.kind, &relative, shown))
        .collect();
    let differences = differences(&here, node.kind).into_iter();
    let mountpoint = pool.mountpoint.get();
    Ok(Explanation {
        mountpoint: mountpoint.map(|path| path.to_string_lossy().into_owned()),
        path: relative.to_string_lossy().into_owned(),
        kind: kind_name(node.kind).to_owned(),
        copies,
        differences: differences.map(str::to_owned).collect(),
        branches: status::branches_status(pool, &view),
        decisions: decisions::decisions(pool, &view, node, &here, shown)?,
    })
}

/// What each branch has under the node's newest name.
fn on_every_branch(pool: &Directories, view: &View, node: &Arc<Node>) -> Result<Vec<OnBranch>> {
    let parent = match node.id {
        NodeId::ROOT => None,
        _ => {
            let name = node.name().ok_or(Errno::NODATA)?;
            let parent = pool.nodes.get(name.parent).ok_or(Errno::NODATA)?;
            Some((
                set::dir_set_of(pool, &parent, Freshness::Now, SlowBranches::Ask)?,
                name.name,
            ))
        }
    };
    let at = |branch: &Arc<Branch>| match &parent {
        None => (true, sys::statx_fd(branch.root())),
        Some((set, name)) => match set.on(branch.id) {
            Some(dir) => (true, sys::statx_name(dir.fd.as_fd(), name)),
            None => match set.probe_error {
                Some(error) if error.branch == Some(branch.id) => (false, Err(error.errno)),
                _ => (false, Err(Errno::NOENT)),
            },
        },
    };
    Ok(view
        .branches
        .iter()
        .map(|branch| {
            let (parent, found) = at(branch);
            OnBranch {
                branch: Arc::clone(branch),
                found,
                parent,
            }
        })
        .collect())
}

/// The branch whose copy users see: for a directory the one whose attributes lead.
fn shown(pool: &State, node: &Node, here: &[OnBranch]) -> Option<usize> {
    let primary = node.primary()?;
    here.iter().position(|on| {
        on.holds(node.kind)
            .is_some_and(|stat| pool.volumes.same(&primary, stat))
    })
}

/// The directory in which new names beside or inside the node would be made.
pub(super) fn place_for_new(
    pool: &Directories,
    node: &Arc<Node>,
) -> Result<(Arc<Node>, Arc<DirSet>)> {
    let dir = if node.is_dir() {
        Arc::clone(node)
    } else {
        paths::parent_of(pool, node).ok_or(Errno::NODATA)?
    };
    let set = set::dir_set_now(pool, &dir)?;
    Ok((dir, set))
}

/// One copy; something of another kind under the name is listed too, as hidden.
fn copy(
    index: usize,
    on: &OnBranch,
    kind: FileKind,
    relative: &Path,
    shown: Option<usize>,
) -> Option<FoundCopy> {
    let (error, facts) = match &on.found {
        Err(Errno::NOENT | Errno::NOTDIR) => return None,
        Err(errno) => (Some(errno.to_string()), None),
        Ok(stat) => {
            let facts = CopyFacts {
                kind: kind_name(kind_of(stat)).to_owned(),
                shown: shown == Some(index),
                hidden: kind_of(stat) != kind,
                inode: stat.stx_ino,
                links: stat.stx_nlink.into(),
                mode: format!("{:04o}", stat.stx_mode & 0o7777),
                uid: stat.stx_uid,
                gid: stat.stx_gid,
                size_bytes: stat.stx_size,
                allocated_bytes: stat.stx_blocks.saturating_mul(512),
                modified: rfc3339(stat.stx_mtime.tv_sec),
                modified_s: stat.stx_mtime.tv_sec,
                modified_ns: stat.stx_mtime.tv_nsec,
            };
            (None, Some(facts))
        }
    };
    let path = on.branch.full_path(relative);
    Some(FoundCopy {
        branch: count(index),
        path: path.to_string_lossy().into_owned(),
        error,
        facts,
    })
}

/// In what the copies differ that should be alike. Directories have sizes and times of their own.
fn differences(here: &[OnBranch], kind: FileKind) -> Vec<&'static str> {
    let copies: Vec<&Statx> = here.iter().filter_map(|on| on.holds(kind)).collect();
    let differ = |of: fn(&Statx) -> (i64, u64)| {
        copies
            .windows(2)
            .any(|pair| matches!(pair, [one, other] if of(one) != of(other)))
    };
    let mut found = Vec::new();
    if here
        .iter()
        .any(|on| on.found.is_ok() && on.holds(kind).is_none())
    {
        found.push("kind");
    }
    if differ(|stat| (0, u64::from(stat.stx_mode))) {
        found.push("mode");
    }
    if differ(|stat| (i64::from(stat.stx_uid), u64::from(stat.stx_gid))) {
        found.push("owner");
    }
    if kind != FileKind::Directory && differ(|stat| (0, stat.stx_size)) {
        found.push("size");
    }
    if kind != FileKind::Directory
        && differ(|stat| (stat.stx_mtime.tv_sec, u64::from(stat.stx_mtime.tv_nsec)))
    {
        found.push("modification time");
    }
    found
}

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "pipe",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}
