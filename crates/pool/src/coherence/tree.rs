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
use strandfs_fuse::FileKind;

use super::apply::Nodes;
use super::changes::Key;
use super::event::Event;
use super::listener::Listener;
use crate::identity::kind_of;
use crate::node::Node;
use crate::pool::Pool;
use crate::sys;

/// Names below moved directories that are told one by one; with more, everything is.
const NAMES_MAX: usize = 100_000;
const DENTS_BYTES: usize = 32 << 10;

impl Listener {
    /// The directory `name` in `parent` appeared on a branch or vanished from one.
    pub(super) fn directory_changed(
        &mut self,
        pool: &Arc<Pool>,
        parent: &Arc<Node>,
        name: &OsStr,
        event: &Event<'_>,
    ) {
        let (mut concerned, copies) = pool.unions_at(parent, name);
        if let Some(target) = &event.target {
            for node in pool.unions_of(target) {
                add_once(&mut concerned, node);
            }
        }
        // Where it left, any copy still there was its companion.
        let left = event.mask & libc::FAN_MOVED_FROM != 0;
        let mut alone = copies < if left { 1 } else { 2 };
        for node in &concerned {
            alone &= node.place().copies.len() < 2;
            pool.look_again(node);
        }
        let moved = event.mask & (libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO) != 0;
        // Where it is the only copy the whole directory moved, and what is below it with it.
        if !moved || alone || concerned.is_empty() {
            return;
        }
        concerned.iter().for_each(|node| node.retire());
        if let Some(fd) = event.target.and_then(|id| pool.open_dir_inode(&id)) {
            self.expire_below(pool, fd, concerned);
        }
    }

    /// Every name in the directory tree of a branch at `top` shows or hides in `unions`.
    fn expire_below(&mut self, pool: &Arc<Pool>, top: OwnedFd, unions: Nodes) {
        let mut left = NAMES_MAX;
        let mut pending = vec![(top, unions)];
        while let Some((fd, unions)) = pending.pop() {
            for (name, directory) in names_in(&fd, left) {
                left = left.saturating_sub(1);
                if left == 0 {
                    pool.expire_everything();
                    return;
                }
                let mut below = Nodes::new();
                for union in &unions {
                    self.drop_name(pool, union, &name, directory);
                    if directory {
                        for child in pool.unions_at(union, &name).0 {
                            add_once(&mut below, child);
                        }
                    }
                }
                // What the kernel does not know, it holds no names of.
                if below.is_empty() {
                    continue;
                }
                for node in &below {
                    pool.look_again(node);
                    node.retire();
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if let Ok(child) = rustix::fs::openat(&fd, &*name, flags, Mode::empty()) {
                    pending.push((child, below));
                }
            }
        }
    }
}

impl Pool {
    /// Notes the copies of a directory, to be found when one of them changes.
    pub(crate) fn note_copies(&self, node: &Node) {
        let place = node.place();
        self.coherence
            .index
            .note(&self.nodes, node.id, &place.copies);
    }

    /// The known directories of the pool that `name` in `parent` leads to, and on how many
    /// branches it leads to a directory.
    fn unions_at(&self, parent: &Arc<Node>, name: &OsStr) -> (Nodes, usize) {
        let (mut found, mut copies) = (Nodes::new(), 0);
        let Ok(set) = self.dir_set(parent) else {
            return (found, copies);
        };
        for entry in &set.entries {
            let Ok(stat) = sys::statx_name(entry.fd.as_fd(), name) else {
                continue;
            };
            copies += usize::from(kind_of(&stat) == FileKind::Directory);
            let device = (stat.stx_dev_major, stat.stx_dev_minor);
            let Some(volume) = self.volumes.of_device(entry.branch.id, device) else {
                continue;
            };
            let nodes = self.known_nodes(volume, stat.stx_ino);
            for node in nodes.into_iter().filter(|node| node.is_dir()) {
                add_once(&mut found, node);
            }
        }
        (found, copies)
    }

    /// Finds the directory's copies anew, so that changes in a new one are noticed from now on.
    fn look_again(&self, node: &Arc<Node>) {
        for copy in &node.place().copies {
            self.coherence.changes.note(Key::inode(copy.ino));
        }
        // Gone from every branch: nothing new to notice.
        let _ = self.dir_set_now(node);
        let _ = self.drop_inode(node);
    }
}

impl super::Coherence {
    /// The kernel has forgotten a directory.
    pub(crate) fn forget_dir(&self, node: &Node) {
        self.index.forget(node.id, &node.place().copies);
    }
}

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
