//! From an event to what the kernel is told.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strandfs_options::CacheFiles;

use crate::base::sys::{self, RawHandle};
use crate::coherence::changes::Key;
use crate::coherence::event::{Event, FileId};
use crate::coherence::invalidate;
use crate::coherence::queue::Repeat;
use crate::state::identity::VolumeId;
use crate::state::node::Node;
use crate::watch::Watch;
use crate::watch::listener::Listener;

impl Listener {
    /// Carries an event of another process out.
    pub(crate) fn apply(&mut self, pool: &Arc<Watch>, event: &Event<'_>) {
        match &event.place {
            Some((dir, name)) => {
                for (volume, ino) in invalidate::inodes_of(pool, dir) {
                    self.name_changed(pool, (volume, ino), name, event);
                }
            }
            None => {
                let Some(target) = &event.target else {
                    return;
                };
                for (volume, ino) in invalidate::inodes_of(pool, target) {
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
        pool: &Arc<Watch>,
        (volume, ino): (VolumeId, u64),
        name: &OsStr,
        event: &Event<'_>,
    ) {
        let changes = &pool.coherence.changes;
        changes.note(Key::name(ino, name));
        changes.note(Key::inode(ino));
        let directory = event.mask & libc::FAN_ONDIR != 0;
        let parents = invalidate::known_nodes(pool, volume, ino);
        for parent in parents.iter().filter(|node| node.is_dir()) {
            if directory {
                pool.coherence.changes.structure_changed();
                self.directory_changed(pool, parent, name, event);
            }
            self.drop_name(pool, parent, name, directory);
            self.drop_inode(pool, parent);
        }
    }

    /// Tells the kernel that a name is stale. A directory's is only looked up again: dropping it
    /// would detach what is mounted below it.
    pub(crate) fn drop_name(
        &mut self,
        pool: &Watch,
        parent: &Arc<Node>,
        name: &OsStr,
        directory: bool,
    ) {
        let Some(connection) = pool.connection.get() else {
            return;
        };
        let expire_only = directory || parent.kernel_cache.may_hold_dir(name);
        let entry = || Repeat::Entry {
            parent: parent.id,
            name: name.to_owned(),
        };
        invalidate::count_invalidation(pool);
        let told = self.telling(pool, parent.id, entry, || {
            if expire_only {
                connection.expire_entry(parent.id, name)
            } else {
                connection.invalidate_entry(parent.id, name)
            }
        });
        if let Some(Err(errno)) = told {
            tracing::debug!(%errno, "a name could not be invalidated");
        }
        if expire_only {
            // A look-up that renews the name may be under way with the old answer.
            self.plan(0, entry(), Instant::now());
        }
    }

    /// See [`drop_inode`](crate::coherence::invalidate::drop_inode).
    pub(crate) fn drop_inode(&self, pool: &Watch, node: &Node) -> bool {
        let again = || Repeat::Inode(node.id);
        let told = self.telling(pool, node.id, again, || invalidate::drop_inode(pool, node));
        told.unwrap_or(true)
    }

    /// Tells the kernel that an inode's attributes and data are stale.
    pub(crate) fn inode_changed(&mut self, pool: &Watch, volume: VolumeId, ino: u64) {
        pool.coherence.changes.note(Key::inode(ino));
        for node in invalidate::known_nodes(pool, volume, ino) {
            if invalidate::holds_anything(pool, &node) && !self.drop_inode(pool, &node) {
                self.plan(0, Repeat::Inode(node.id), Instant::now());
            }
        }
    }

    /// Nobody has to be told of the server's own writes, but each costs the kernel a report.
    pub(crate) fn calm_own(&mut self, pool: &Arc<Watch>, event: &Event<'_>) {
        let Some(target) = event.target.as_ref().filter(|_| event.place.is_none()) else {
            return;
        };
        if event.mask & libc::FAN_MODIFY != 0 {
            for file in invalidate::inodes_of(pool, target) {
                self.calm(pool, file, target);
            }
        }
    }

    /// Holds back reports of a file that is written to without end.
    fn calm(&mut self, pool: &Watch, file: (VolumeId, u64), id: &FileId) {
        // Cached data must follow every write.
        if pool.view().settings.caching.files != CacheFiles::Off {
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
    pub(crate) fn let_go(&mut self, pool: &Watch, file: (VolumeId, u64), handle: &RawHandle) {
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

    fn open_held(
        &self,
        pool: &Watch,
        volume: VolumeId,
        handle: &RawHandle,
    ) -> sys::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        self.waiting(pool, || {
            let open = |at: BorrowedFd<'_>, _| sys::open_by_handle(at, handle, flags);
            let opened = pool.volumes.with_mount(volume, open);
            opened.unwrap_or(Err(Errno::NODEV))
        })
    }

    /// Tells something again.
    pub(crate) fn repeat(&mut self, pool: &Watch, told: usize, what: Repeat, now: Instant) {
        let Some(connection) = pool.connection.get() else {
            return;
        };
        let again = match &what {
            Repeat::Entry { parent, name } => {
                invalidate::count_invalidation(pool);
                let entry = || Repeat::Entry {
                    parent: *parent,
                    name: name.clone(),
                };
                let told = self.telling(pool, *parent, entry, || {
                    let _ = connection.expire_entry(*parent, name);
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
