//! UNLINK and RMDIR: every copy the policy picks, after all has been checked.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Context, FileKind, NodeId};
use strandfs_options::Policy;

use crate::branch::Branch;
use crate::faults::blame;
use crate::identity::{Face, kind_of};
use crate::node::{DirEntry, DirSet, Held, Node};
use crate::ops::create::unlink_flags;
use crate::pool::{Pool, View};
use crate::sys;

/// The nodes of one inode: as it is and as it is shown.
pub(crate) type Faced = SmallVec<[Arc<Node>; 1]>;

impl Pool {
    /// UNLINK.
    pub(crate) fn do_unlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &OsStr,
    ) -> sys::Result<()> {
        let moves = self.moves();
        let parent = self.node(parent)?;
        let view = self.view();
        let set = self.dir_set(&parent)?;
        let rule = view.settings.policies.unlink;
        if let [only] = &set.entries[..]
            && rule != Policy::ErofsAlways
        {
            if only.branch.read_only() {
                return Err(Errno::ROFS);
            }
            let nodes = self.nodes_at(only, name);
            let _held = self.hold_found(cx, file_among(&nodes), moves)?;
            rustix::fs::unlinkat(&only.fd, name, AtFlags::empty())?;
            forget_name(&nodes, &parent, name);
            return Ok(());
        }
        let found = self.branches_with(&set, name)?;
        let nodes = self.nodes_of_first(&set, name, &found);
        let _held = self.hold_found(cx, file_among(&nodes), moves)?;
        self.remove_from(&view, rule, &set, name, &found, false)?;
        forget_name(&nodes, &parent, name);
        Ok(())
    }

    /// Keeps a file that was found by name from moving.
    ///
    /// # Errors
    /// ESTALE if a file moved since there had been `moves`: what was found must be looked for
    /// again.
    pub(crate) fn hold_found<'a>(
        &self,
        cx: &Context<'_>,
        node: Option<&'a Arc<Node>>,
        moves: u64,
    ) -> sys::Result<Option<Held<'a>>> {
        let held = node.map(|node| node.hold(cx));
        if self.moves() == moves {
            Ok(held)
        } else {
            Err(Errno::STALE)
        }
    }

    /// RMDIR: only if the directory is empty on every branch; undone where a branch refuses.
    pub(crate) fn do_rmdir(&self, parent: NodeId, name: &OsStr) -> sys::Result<()> {
        let parent = self.node(parent)?;
        let view = self.view();
        let set = self.dir_set(&parent)?;
        let found = self.branches_with(&set, name)?;
        match found.first() {
            None => return Err(Errno::NOENT),
            Some(_) if self.shows_a_link(&view, &set, name, &found) => {
                return self.remove_shown_dir(&view, &parent, &set, name, &found);
            }
            Some((_, stat)) if kind_of(stat) != FileKind::Directory => return Err(Errno::NOTDIR),
            Some(_) => {}
        }
        let nodes = self.nodes_of_first(&set, name, &found);
        self.remove_dirs(&view, &set, name, &found)?;
        forget_name(&nodes, &parent, name);
        Ok(())
    }

    /// Removes the directories among what was found, if all of them are empty.
    pub(crate) fn remove_dirs(
        &self,
        view: &View,
        set: &DirSet,
        name: &OsStr,
        found: &[(Arc<Branch>, Statx)],
    ) -> sys::Result<()> {
        let directories: SmallVec<[(Arc<Branch>, Statx); 2]> = found
            .iter()
            .filter(|(_, stat)| kind_of(stat) == FileKind::Directory)
            .cloned()
            .collect();
        if directories.len() > 1 {
            for (branch, _) in &directories {
                let dir = set.on(branch.id).ok_or(Errno::STALE)?;
                if !dir_is_empty(dir, name)? {
                    return Err(Errno::NOTEMPTY);
                }
            }
        }
        let rule = view.settings.policies.rmdir;
        let removed = self.remove_from(view, rule, set, name, &directories, true);
        if view.branches.len() > 1 {
            // Some copies may be left, or be put back as new ones.
            self.coherence.structure_changed();
        }
        removed
    }

    /// Removes a name from the branches the policy picks out of those that have it. With the
    /// policies that mean "all", one that may not be changed stops everything: removing the
    /// others would only make that copy show again.
    pub(crate) fn remove_from(
        &self,
        view: &View,
        rule: Policy,
        set: &DirSet,
        name: &OsStr,
        found: &[(Arc<Branch>, Statx)],
        directory: bool,
    ) -> sys::Result<()> {
        if found.is_empty() {
            return Err(Errno::NOENT);
        }
        let listed: SmallVec<[(Arc<Branch>, Option<Statx>); 2]> = found
            .iter()
            .map(|(branch, stat)| (Arc::clone(branch), Some(*stat)))
            .collect();
        let picked = self.pick_for_action(view, rule, &listed)?;
        let takes_all = matches!(rule, Policy::All | Policy::EpAll);
        if takes_all && picked.len() < found.len() {
            return Err(Errno::ROFS);
        }
        let mut removed: SmallVec<[(&DirEntry, &Statx); 2]> = SmallVec::new();
        for index in picked {
            let Some((branch, stat)) = found.get(index) else {
                continue;
            };
            let Some(dir) = set.on(branch.id) else {
                continue;
            };
            match rustix::fs::unlinkat(&dir.fd, name, unlink_flags(directory)) {
                Ok(()) => removed.push((dir, stat)),
                Err(Errno::NOENT) => {}
                Err(errno) if removed.is_empty() => return Err(blame(branch, errno)),
                Err(errno) if directory => {
                    restore_dirs(&removed, name);
                    return Err(errno);
                }
                Err(errno) => {
                    // A file cannot be brought back: say what stays.
                    tracing::error!(branch = %branch.path.display(), ?name, %errno, "removed from other branches but not from this one");
                    return Err(errno);
                }
            }
        }
        if removed.is_empty() {
            Err(Errno::NOENT)
        } else {
            Ok(())
        }
    }

    pub(crate) fn nodes_of_first(
        &self,
        set: &DirSet,
        name: &OsStr,
        found: &[(Arc<Branch>, Statx)],
    ) -> Faced {
        let dir = found.first().and_then(|(branch, _)| set.on(branch.id));
        dir.map(|dir| self.nodes_at(dir, name)).unwrap_or_default()
    }

    /// The live nodes under a name on a branch: at most one for each face.
    pub(crate) fn nodes_at(&self, dir: &DirEntry, name: &OsStr) -> Faced {
        let Ok(stat) = sys::statx_name(dir.fd.as_fd(), name) else {
            return Faced::new();
        };
        let branch = &dir.branch;
        let noted = self
            .volumes
            .note(branch.id, branch.seed, &stat, dir.fd.as_fd(), name);
        let Ok(volume) = noted else {
            return Faced::new();
        };
        [Face::Own, Face::Other]
            .into_iter()
            .filter_map(|face| self.nodes.find(volume, stat.stx_ino, face))
            .collect()
    }
}

/// The node that can move: the one that shows a file as it is.
pub(crate) fn file_among(nodes: &[Arc<Node>]) -> Option<&Arc<Node>> {
    nodes.iter().find(|node| node.kind == FileKind::Regular)
}

/// Tells the nodes that a name of theirs is gone.
pub(crate) fn forget_name(nodes: &[Arc<Node>], parent: &Arc<Node>, name: &OsStr) {
    for node in nodes {
        node.remove_name(parent.id, name);
    }
}

/// Puts back directories removed before another branch refused.
fn restore_dirs(removed: &[(&DirEntry, &Statx)], name: &OsStr) {
    for (dir, stat) in removed {
        let mode = Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777);
        let outcome =
            sys::with_umask(0, || rustix::fs::mkdirat(&dir.fd, name, mode)).and_then(|()| {
                let uid = rustix::fs::Uid::from_raw(stat.stx_uid);
                let gid = rustix::fs::Gid::from_raw(stat.stx_gid);
                rustix::fs::chownat(
                    &dir.fd,
                    name,
                    Some(uid),
                    Some(gid),
                    AtFlags::SYMLINK_NOFOLLOW,
                )
            });
        if let Err(errno) = outcome {
            tracing::error!(branch = %dir.branch.path.display(), ?name, %errno, "an empty directory could not be put back");
        }
    }
}

/// Whether directory `name` in `dir` has no entries.
pub(crate) fn dir_is_empty(dir: &DirEntry, name: &OsStr) -> sys::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&dir.fd, name, flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(1024);
    let mut entries = rustix::fs::RawDir::new(fd, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}
