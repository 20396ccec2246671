//! Directories that appear, vanish or move on a branch: the pool's directory changes its copies,
//! and with a moved one all that is below it shows or hides.
//!
//! Of several copies one may move away, to join another directory of the pool. What the kernel
//! holds below the node that was both is true of neither, and a node moves in the kernel's cache
//! with all that is below it. So the nodes concerned are retired: the next look-up gets new ones.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use smallvec::SmallVec;
use strandfs_fuse::{FileKind, NodeId};

use crate::base::branch::BranchId;
use crate::base::sys;
use crate::coherence::changes::Key;
use crate::coherence::copies;
use crate::coherence::event::Event;
use crate::coherence::invalidate::{self, Nodes};
use crate::directory::Directories;
use crate::directory::set::{self, Freshness, SlowBranches};
use crate::state::identity::{Identity, kind_of};
use crate::state::node::Node;
use crate::watch::Watch;
use crate::watch::listener::Listener;

/// Names below moved directories that are told one by one; with more, everything is.
const NAMES_MAX: usize = 100_000;
const DENTS_BYTES: usize = 32 << 10;

impl Listener {
    /// The directory `name` in `parent` appeared on a branch or vanished from one.
    pub(crate) fn directory_changed(
        &mut self,
        pool: &Arc<Watch>,
        parent: &Arc<Node>,
        name: &OsStr,
        event: &Event<'_>,
    ) {
        let seen = self.unions_at(pool, parent, name);
        let mut concerned = seen.unions;
        let appeared = event.mask & (libc::FAN_CREATE | libc::FAN_MOVED_TO) != 0;
        if let Some(target) = &event.target {
            if appeared {
                // So that changes in the new copy are noticed, whenever it is first asked.
                copies::note_copy(pool, target, &concerned);
            }
            for node in invalidate::unions_of(pool, target) {
                add_once(&mut concerned, node);
            }
        }
        // Where it left, any copy still there was its companion.
        let left = event.mask & libc::FAN_MOVED_FROM != 0;
        let mut alone = seen.everywhere && seen.copies < if left { 1 } else { 2 };
        for node in &concerned {
            alone &= node.place().copies.len() < 2;
            self.look_again(pool, node);
        }
        let moved = event.mask & (libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO) != 0;
        // Where it is the only copy the whole directory moved, and what is below it with it.
        if moved && !alone && !concerned.is_empty() {
            concerned.iter().for_each(|node| node.retire());
            let top = event.target.as_ref();
            if let Some(fd) =
                top.and_then(|id| self.waiting(pool, || invalidate::open_dir_inode(pool, id)))
            {
                self.expire_below(pool, fd, concerned);
            }
        }
        // What was changed in it meanwhile may not have been understood.
        if self.listener_state.is_handed_off() {
            invalidate::expire_everything(pool);
        }
    }

    /// Every name in the directory tree of a branch at `top` shows or hides in `unions`.
    fn expire_below(&mut self, pool: &Arc<Watch>, top: OwnedFd, unions: Nodes) {
        let mut left = NAMES_MAX;
        let mut pending = vec![(top, unions)];
        while let Some((fd, unions)) = pending.pop() {
            for (name, directory) in self.waiting(pool, || names_in(&fd, left)) {
                left = left.saturating_sub(1);
                if left == 0 {
                    self.expire_everything(pool);
                    return;
                }
                let mut below = Nodes::new();
                for union in &unions {
                    self.drop_name(pool, union, &name, directory);
                    if directory {
                        for child in self.unions_at(pool, union, &name).unions {
                            add_once(&mut below, child);
                        }
                    }
                }
                // What the kernel does not know, it holds no names of.
                if below.is_empty() {
                    continue;
                }
                for node in &below {
                    self.look_again(pool, node);
                    node.retire();
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let open = || rustix::fs::openat(&fd, &*name, flags, Mode::empty());
                if let Ok(child) = self.waiting(pool, open) {
                    pending.push((child, below));
                }
            }
        }
    }

    /// What `name` in `parent` leads to on the branches that can be asked.
    fn unions_at(&self, pool: &Watch, parent: &Arc<Node>, name: &OsStr) -> Seen {
        let (dirs, everywhere) = self.waiting(pool, || reported_dirs(pool, parent));
        let mut seen = Seen {
            unions: Nodes::new(),
            copies: 0,
            everywhere,
        };
        for (branch, fd) in dirs {
            let Ok(stat) = self.waiting(pool, || sys::statx_name(fd.as_fd(), name)) else {
                continue;
            };
            seen.copies += usize::from(kind_of(&stat) == FileKind::Directory);
            let device = (stat.stx_dev_major, stat.stx_dev_minor);
            let Some(volume) = pool.volumes.of_device(branch, device) else {
                continue;
            };
            let nodes = invalidate::known_nodes(pool, volume, stat.stx_ino);
            for node in nodes.into_iter().filter(|node| node.is_dir()) {
                add_once(&mut seen.unions, node);
            }
        }
        seen
    }

    /// Has the directory's copies found anew, so that changes in a new one are noticed from now
    /// on.
    fn look_again(&self, pool: &Watch, node: &Arc<Node>) {
        for copy in &node.place().copies {
            pool.coherence.changes.note(Key::inode(copy.ino));
        }
        if pool.coherence.watched.all() {
            // Gone from every branch: nothing new to notice.
            let _ = self.waiting(pool, || {
                set::dir_set_of(pool, node, Freshness::Now, SlowBranches::PassOver)
            });
        } else if let Some(set) = &node.place().dirs {
            // By the next request: a branch that is not watched is often one that takes its time.
            set.distrust();
        }
        let _ = self.drop_inode(pool, node);
    }
}

/// What a name leads to on the branches that are asked.
struct Seen {
    /// The known directories of the pool.
    unions: Nodes,
    /// On how many branches it is a directory.
    copies: usize,
    /// Every branch that has the parent was asked.
    everywhere: bool,
}

/// The directory on the branches whose changes are reported, and whether it is on no other.
/// The others are not asked: what rests on them is not kept for long, and a network may take
/// its time.
fn reported_dirs(pool: &Directories, node: &Arc<Node>) -> (Dirs, bool) {
    if pool.coherence.watched.all() {
        let Ok(set) = set::dir_set_of(pool, node, Freshness::Trusted, SlowBranches::PassOver)
        else {
            return (Dirs::new(), true);
        };
        let quick = set.entries.iter().filter(|e| !e.branch.health().is_slow());
        let dirs: Dirs = quick.map(|e| (e.branch.id, Arc::clone(&e.fd))).collect();
        let everywhere =
            dirs.len() == set.entries.len() && !set.skipped && set.probe_error.is_none();
        return (dirs, everywhere);
    }
    let view = pool.view();
    let (set, copies) = if node.id == NodeId::ROOT {
        let roots = view.root.entries.iter().map(|entry| entry.identity);
        (Some(Arc::clone(&view.root)), roots.collect())
    } else {
        let place = node.place();
        (place.dirs.clone(), place.copies.clone())
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let open = |copy: &Identity| {
        let branch = view.branch(copy.branch)?;
        if branch.health().is_slow() || !pool.coherence.watched.volume(copy.volume) {
            return None;
        }
        let held = set.as_ref().and_then(|set| set.on(copy.branch));
        let held = held.filter(|entry| entry.identity == *copy);
        let fd = match held {
            Some(entry) => Arc::clone(&entry.fd),
            None => {
                let (volume, generation) = (copy.volume, copy.generation);
                let fd = pool.volumes.open(volume, copy.ino, generation, flags);
                Arc::new(fd.ok()?)
            }
        };
        Some((copy.branch, fd))
    };
    let dirs: Dirs = copies.iter().filter_map(open).collect();
    let everywhere = dirs.len() == copies.len();
    (dirs, everywhere)
}

/// A directory on its branches.
type Dirs = SmallVec<[(BranchId, Arc<OwnedFd>); 2]>;

fn add_once(nodes: &mut Nodes, node: Arc<Node>) {
    if !nodes.iter().any(|known| Arc::ptr_eq(known, &node)) {
        nodes.push(node);
    }
}

/// Up to `max` names in a directory, and whether each is a directory.
fn names_in(fd: &OwnedFd, max: usize) -> Vec<(OsString, bool)> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(DENTS_BYTES);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        // A type that is not told may be a directory's.
        let directory = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        names.push((OsStr::from_bytes(name).to_owned(), directory));
        if names.len() >= max {
            break;
        }
    }
    names
}
