//! From an event to what the kernel is told.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::NodeId;
use strandfs_options::CacheFiles;

use super::changes::Key;
use super::event::{Event, FileId};
use super::listener::{Listener, Repeat};
use crate::base::sys::{self, RawHandle};
use crate::pool::Pool;
use crate::state::identity::VolumeId;
use crate::state::node::Node;
use crate::state::open_file::IoMode;

pub(super) type Nodes = SmallVec<[Arc<Node>; 2]>;

impl Listener {
    /// Carries an event of another process out.
    pub(super) fn apply(&mut self, pool: &Arc<Pool>, event: &Event<'_>) {
        match &event.place {
            Some((dir, name)) => {
                for (volume, ino) in pool.inodes_of(dir) {
                    self.name_changed(pool, (volume, ino), name, event);
                }
            }
            None => {
                let Some(target) = &event.target else {
                    return;
                };
                for (volume, ino) in pool.inodes_of(target) {
                    if event.mask & libc::FAN_MODIFY != 0 {
                        self.calm(pool, (volume, ino), target);
                    }
                    self.inode_changed(pool, volume, ino);
                }
            }
        }
    }

    fn name_changed(
        &mut self,
        pool: &Arc<Pool>,
        (volume, ino): (VolumeId, u64),
        name: &OsStr,
        event: &Event<'_>,
    ) {
        let changes = &pool.coherence.changes;
        changes.note(Key::name(ino, name));
        changes.note(Key::inode(ino));
        let directory = event.mask & libc::FAN_ONDIR != 0;
        let parents = pool.known_nodes(volume, ino);
        for parent in parents.iter().filter(|node| node.is_dir()) {
            if directory {
                pool.coherence.structure_changed();
                self.directory_changed(pool, parent, name, event);
            }
            self.drop_name(pool, parent, name, directory);
            self.drop_inode(pool, parent);
        }
    }

    /// Tells the kernel that a name is stale. A directory's is only looked up again: dropping it
    /// would detach what is mounted below it.
    pub(super) fn drop_name(
        &mut self,
        pool: &Pool,
        parent: &Arc<Node>,
        name: &OsStr,
        directory: bool,
    ) {
        let Some(connection) = pool.connection.get() else {
            return;
        };
        let expire_only = directory || parent.may_show_dir(name);
        let entry = || Repeat::Entry {
            parent: parent.id,
            name: name.to_owned(),
        };
        pool.count_invalidation();
        let told = self.telling(pool, parent.id, entry, || {
            connection.invalidate_entry(parent.id, name, expire_only)
        });
        if let Some(Err(errno)) = told {
            tracing::debug!(%errno, "a name could not be invalidated");
        }
        if expire_only {
            // A look-up that renews the name may be under way with the old answer.
            self.plan(0, entry(), Instant::now());
        }
    }

    /// See [`Pool::drop_inode`].
    pub(super) fn drop_inode(&self, pool: &Pool, node: &Node) -> bool {
        let again = || Repeat::Inode(node.id);
        let told = self.telling(pool, node.id, again, || pool.drop_inode(node));
        told.unwrap_or(true)
    }

    /// Tells the kernel that an inode's attributes and data are stale.
    pub(super) fn inode_changed(&mut self, pool: &Pool, volume: VolumeId, ino: u64) {
        pool.coherence.changes.note(Key::inode(ino));
        for node in pool.known_nodes(volume, ino) {
            if pool.holds_anything(&node) && !self.drop_inode(pool, &node) {
                self.plan(0, Repeat::Inode(node.id), Instant::now());
            }
        }
    }

    /// Nobody has to be told of the server's own writes, but each costs the kernel a report.
    pub(super) fn calm_own(&mut self, pool: &Arc<Pool>, event: &Event<'_>) {
        let Some(target) = event.target.as_ref().filter(|_| event.place.is_none()) else {
            return;
        };
        if event.mask & libc::FAN_MODIFY != 0 {
            for file in pool.inodes_of(target) {
                self.calm(pool, file, target);
            }
        }
    }

    /// Holds back reports of a file that is written to without end.
    fn calm(&mut self, pool: &Pool, file: (VolumeId, u64), id: &FileId) {
        // Cached data must follow every write.
        if pool.view().settings.cache_files != CacheFiles::Off {
            return;
        }
        let now = Instant::now();
        let storm = self.shared.work.lock().storms.count(file, now);
        if !storm || pool.coherence.hot.holds(file.0, file.1) {
            return;
        }
        // By the event's own handle: the generation may be one nobody has asked about yet.
        if let Ok(fd) = self.open_held(pool, file.0, &id.handle) {
            let mut work = self.shared.work.lock();
            let opened = (&id.handle, fd.as_fd());
            work.storms.hold(&pool.coherence.hot, file, opened, now);
        }
    }

    /// Lets reports of a file pass again.
    pub(super) fn let_go(&mut self, pool: &Pool, file: (VolumeId, u64), handle: &RawHandle) {
        match self.open_held(pool, file.0, handle) {
            Ok(fd) => self.shared.work.lock().storms.let_go(fd.as_fd()),
            // It is gone, and what held its reports back with it.
            Err(Errno::STALE) => {}
            Err(errno) => {
                tracing::debug!(%errno, "a much-written file cannot be opened");
                self.shared.work.lock().storms.let_go_all();
            }
        }
        self.inode_changed(pool, file.0, file.1);
        pool.coherence.hot.remove(file);
    }

    fn open_held(&self, pool: &Pool, volume: VolumeId, handle: &RawHandle) -> sys::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        self.waiting(pool, || {
            let open = |at: BorrowedFd<'_>, _| sys::open_by_handle(at, handle, flags);
            let opened = pool.volumes.with_mount(volume, open);
            opened.unwrap_or(Err(Errno::NODEV))
        })
    }

    /// Tells something again.
    pub(super) fn repeat(&mut self, pool: &Pool, told: usize, what: Repeat, now: Instant) {
        let Some(connection) = pool.connection.get() else {
            return;
        };
        let again = match &what {
            Repeat::Entry { parent, name } => {
                pool.count_invalidation();
                let entry = || Repeat::Entry {
                    parent: *parent,
                    name: name.clone(),
                };
                let told = self.telling(pool, *parent, entry, || {
                    let _ = connection.invalidate_entry(*parent, name, true);
                });
                told.is_some()
            }
            Repeat::Inode(id) => pool
                .nodes
                .get(*id)
                .is_some_and(|node| !self.drop_inode(pool, &node)),
            Repeat::Listing(id) => {
                let node = pool.nodes.get(*id);
                node.is_some_and(|node| {
                    let _ = self.drop_inode(pool, &node);
                    true
                })
            }
        };
        if again {
            self.plan(told, what, now);
        }
    }
}

impl Pool {
    /// The inodes an identifier may mean: one for each branch on its filesystem.
    pub(super) fn inodes_of(&self, id: &FileId) -> SmallVec<[(VolumeId, u64); 2]> {
        let volumes = self.coherence.by_fsid.lock();
        volumes
            .iter()
            .filter(|(fsid, _)| *fsid == id.fsid)
            .filter_map(|(_, volume)| {
                let (ino, _) = self.volumes.decode(*volume, &id.handle)?;
                Some((*volume, ino))
            })
            .collect()
    }

    /// The nodes that an inode of a branch may belong to, as far as the kernel knows them.
    pub(crate) fn known_nodes(&self, volume: VolumeId, ino: u64) -> Nodes {
        self.coherence.index.find(&self.nodes, volume, ino)
    }

    /// The known directories an identifier means.
    pub(super) fn unions_of(&self, id: &FileId) -> Nodes {
        let inodes = self.inodes_of(id);
        let nodes = inodes
            .iter()
            .flat_map(|(volume, ino)| self.known_nodes(*volume, *ino));
        nodes.filter(|node| node.is_dir()).collect()
    }

    /// Whether the kernel may hold attributes or data of the node, judged from what it was given.
    fn holds_anything(&self, node: &Node) -> bool {
        let given = node.attr_cached.swap(false, Ordering::SeqCst);
        if given || node.is_dir() || self.view().settings.cache_files != CacheFiles::Off {
            return true;
        }
        let open = node.open.lock();
        open.as_ref()
            .is_some_and(|state| state.mode == IoMode::Server)
    }

    /// Tells the kernel that a node's attributes and data are stale; false if it does not know
    /// the node, perhaps only yet.
    pub(super) fn drop_inode(&self, node: &Node) -> bool {
        let Some(connection) = self.connection.get() else {
            return true;
        };
        self.count_invalidation();
        match connection.invalidate_known_inode(node.id, 0, 0) {
            Ok(known) => known || node.id == NodeId::ROOT,
            Err(errno) => {
                tracing::debug!(%errno, "an inode could not be invalidated");
                true
            }
        }
    }

    fn count_invalidation(&self) {
        self.coherence.invalidations.fetch_add(1, Ordering::Relaxed);
    }

    /// Events were lost: every known name is looked up again at its next use, everything known
    /// of inodes is dropped. Missing names, which nobody lists, run out within their minute.
    pub(super) fn expire_everything(&self) {
        self.coherence.changes.note_everything();
        self.coherence.structure_changed();
        let Some(connection) = self.connection.get() else {
            return;
        };
        let mut nodes = Vec::new();
        self.nodes.for_each(|node| nodes.push(Arc::clone(node)));
        for node in nodes {
            node.attr_cached.store(false, Ordering::SeqCst);
            let _ = self.drop_inode(&node);
            let names: Vec<_> = node.place().names.iter().cloned().collect();
            for name in names {
                self.count_invalidation();
                let _ = connection.invalidate_entry(name.parent, &name.name, true);
            }
        }
    }

    /// A directory of a branch, opened for reading, by its inode.
    pub(super) fn open_dir_inode(&self, id: &FileId) -> Option<OwnedFd> {
        self.inodes_of(id).into_iter().find_map(|(volume, ino)| {
            let (_, generation) = self.volumes.decode(volume, &id.handle)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME;
            self.volumes.open(volume, ino, generation, flags).ok()
        })
    }
}
