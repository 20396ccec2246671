//! What the kernel is told when a branch has reported a change.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::OFlags;
use smallvec::SmallVec;
use strandfs_fuse::NodeId;
use strandfs_options::CacheFiles;

use crate::coherence::Coherent;
use crate::coherence::event::FileId;
use crate::state::State;
use crate::state::identity::VolumeId;
use crate::state::node::Node;
use crate::state::open_file::IoMode;

pub(crate) type Nodes = SmallVec<[Arc<Node>; 2]>;

/// The inodes an identifier may mean: one for each branch on its filesystem.
pub(crate) fn inodes_of(pool: &Coherent, id: &FileId) -> SmallVec<[(VolumeId, u64); 2]> {
    let volumes = pool.coherence.watched.volumes_on(id.fsid).into_iter();
    volumes
        .filter_map(|volume| {
            let (ino, _) = pool.volumes.decode(volume, &id.handle)?;
            Some((volume, ino))
        })
        .collect()
}

/// The nodes that an inode of a branch may belong to, as far as the kernel knows them.
pub(crate) fn known_nodes(pool: &Coherent, volume: VolumeId, ino: u64) -> Nodes {
    pool.coherence.index.find(&pool.nodes, volume, ino)
}

/// The known directories an identifier means.
pub(crate) fn unions_of(pool: &Coherent, id: &FileId) -> Nodes {
    let inodes = inodes_of(pool, id);
    let nodes = inodes
        .iter()
        .flat_map(|(volume, ino)| known_nodes(pool, *volume, *ino));
    nodes.filter(|node| node.is_dir()).collect()
}

/// Whether the kernel may hold attributes or data of the node, judged from what it was given.
pub(crate) fn holds_anything(pool: &State, node: &Node) -> bool {
    let given = node.kernel_cache.take_attributes();
    if given || node.is_dir() || pool.view().settings.cache_files != CacheFiles::Off {
        return true;
    }
    let open = node.open.lock();
    open.as_ref()
        .is_some_and(|state| state.mode == IoMode::Server)
}

/// Tells the kernel that a node's attributes and data are stale; false if it does not know
/// the node, perhaps only yet.
pub(crate) fn drop_inode(pool: &Coherent, node: &Node) -> bool {
    let Some(connection) = pool.connection.get() else {
        return true;
    };
    count_invalidation(pool);
    match connection.invalidate_known_inode(node.id, 0, 0) {
        Ok(known) => known || node.id == NodeId::ROOT,
        Err(errno) => {
            tracing::debug!(%errno, "an inode could not be invalidated");
            true
        }
    }
}

pub(crate) fn count_invalidation(pool: &Coherent) {
    pool.coherence.invalidations.fetch_add(1, Ordering::Relaxed);
}

/// Events were lost: every known name is looked up again at its next use, everything known
/// of inodes is dropped. Missing names, which nobody lists, run out within their minute.
pub(crate) fn expire_everything(pool: &Coherent) {
    pool.coherence.changes.note_everything();
    pool.coherence.changes.structure_changed();
    let Some(connection) = pool.connection.get() else {
        return;
    };
    let mut nodes = Vec::new();
    pool.nodes.for_each(|node| nodes.push(Arc::clone(node)));
    for node in nodes {
        node.kernel_cache.take_attributes();
        let _ = drop_inode(pool, &node);
        let names: Vec<_> = node.place().names.iter().cloned().collect();
        for name in names {
            count_invalidation(pool);
            let _ = connection.expire_entry(name.parent, &name.name);
        }
    }
}

/// A directory of a branch, opened for reading, by its inode.
pub(crate) fn open_dir_inode(pool: &Coherent, id: &FileId) -> Option<OwnedFd> {
    inodes_of(pool, id).into_iter().find_map(|(volume, ino)| {
        let (_, generation) = pool.volumes.decode(volume, &id.handle)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOATIME;
        pool.volumes.open(volume, ino, generation, flags).ok()
    })
}

/// Has the kernel ask for a node's attributes anew: they are not what it takes them for.
pub(crate) fn drop_attributes(pool: &State, node: &Node) {
    if let Some(connection) = pool.connection.get() {
        let _ = connection.invalidate_inode(node.id, -1, 0);
    }
}
