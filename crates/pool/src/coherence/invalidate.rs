//! What the kernel is told when a branch has reported a change.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::OFlags;
use smallvec::SmallVec;
use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{Connection, NodeId};
use strandfs_options::CacheFiles;

use crate::coherence::Coherent;
use crate::coherence::event::FileId;
use crate::coherence::telling::{Stale, Teller};
use crate::state::State;
use crate::state::identity::VolumeId;
use crate::state::mounts::Table;
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
    if given || node.is_dir() || pool.view().settings.caching.files != CacheFiles::Off {
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
/// of inodes is dropped. Of missing names the latest are known; more go with all other names, or run out within
/// their minute.
pub(crate) fn expire_everything(pool: &Coherent) {
    pool.coherence.changes.note_everything();
    pool.coherence.changes.structure_changed();
    let Some(connection) = pool.connection.get() else {
        return;
    };
    let nodes = all_nodes(pool);
    // First what no lock can hold up.
    for node in &nodes {
        node.kernel_cache.take_attributes();
        let _ = connection.invalidate_inode(node.id, -1, 0);
    }
    expire_names_of(pool, connection, &nodes, |_| true);
    if pool.coherence.misses.are_more() {
        drop_every_name(pool, connection);
    }
    for node in nodes.iter().filter(|node| !node.is_dir()) {
        let _ = drop_inode(pool, node);
    }
}

/// Every node there is now.
pub(crate) fn all_nodes(pool: &State) -> Vec<Arc<Node>> {
    let mut nodes = Vec::new();
    pool.nodes.for_each(|node| nodes.push(Arc::clone(node)));
    nodes
}

/// Has the kernel look up again the names of the nodes that are chosen and those that it takes for missing, and
/// drop the listings of all directories among the nodes.
pub(crate) fn expire_names_of(
    pool: &Coherent,
    connection: &Connection,
    nodes: &[Arc<Node>],
    is_chosen: impl Fn(&Node) -> bool,
) {
    let mut stale: HashMap<NodeId, Vec<Stale>> = HashMap::new();
    for node in nodes {
        if node.is_dir() {
            stale.entry(node.id).or_default().push(Stale::Listing);
        }
        if is_chosen(node) {
            for name in node.place().names.iter() {
                let stale = stale.entry(name.parent).or_default();
                stale.push(Stale::Name(name.name.clone()));
            }
        }
    }
    let gently = (pool.negotiated.get())
        .is_some_and(|agreed| agreed.flags.contains(InitFlags::HAS_EXPIRE_ONLY));
    for (parent, name) in pool.coherence.misses.all() {
        // Without the gentle way one that has become a directory since would lose what is mounted in it.
        let may_be_dir = |node: Arc<Node>| node.kernel_cache.may_hold_dir(&name);
        if gently || !pool.nodes.get(parent).is_none_or(may_be_dir) {
            stale.entry(parent).or_default().push(Stale::Name(name));
        }
    }
    let mut teller = Teller::expiring(pool, connection);
    for (parent, stale) in stale {
        teller.tell(parent, stale);
    }
    finish_telling(pool, connection, teller);
}

/// Names that the kernel cannot be told of one by one are dropped with all others, where it can.
pub(crate) fn finish_telling(pool: &State, connection: &Connection, teller: Teller) {
    let untold = teller.finish();
    if untold > 0 && !drop_every_name(pool, connection) {
        tracing::warn!(
            untold,
            "the kernel is not told of changed names in directories that users keep locked; they \
            show as they were until cache.entry runs out"
        );
    }
}

/// Has the kernel drop every name that it knows, each at its next use. Takes no lock that anybody
/// could keep. False before Linux 6.16, and where that would detach a mount.
pub(crate) fn drop_every_name(pool: &State, connection: &Connection) -> bool {
    nothing_is_mounted_below(pool) && connection.increment_epoch().is_ok()
}

/// Whether nobody mounted anything in the pool, as far as the server sees mounts; false where it
/// does not see even its own.
fn nothing_is_mounted_below(pool: &State) -> bool {
    let table = Table::read();
    pool.mountpoint
        .get()
        .is_some_and(|own| table.has(own) && table.below(own).next().is_none())
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
