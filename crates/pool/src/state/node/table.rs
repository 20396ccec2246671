//! All nodes by id. Reads take no lock.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use smallvec::SmallVec;
use strandfs_fuse::{FileKind, NodeId};

use crate::state::identity::{Identity, NumberHash, Presented, VolumeId};
use crate::state::node::{Names, Node};

/// The inode table.
///
/// A node normally sits under the id derived from its identity. The few that cannot (see
/// [`crate::state::identity`]) get a counted id and an entry in `exceptions`.
pub struct NodeTable {
    nodes: papaya::HashMap<NodeId, Arc<Node>, NumberHash>,
    exceptions: RwLock<Exceptions>,
    exception_count: AtomicUsize,
    next_counted: AtomicU64,
    /// Whose a shown number is: of nodes that have one which others could come to have, because it is
    /// made from their path, or from an inode that they moved away from.
    numbers: papaya::HashMap<u64, NodeId, NumberHash>,
}

/// An inode and how it is shown.
type Inode = (VolumeId, u64, Presented);

/// Inodes whose node is not under the derived id, both ways round.
#[derive(Default)]
struct Exceptions {
    nodes: HashMap<Inode, NodeId>,
    inodes: HashMap<NodeId, SmallVec<[Inode; 1]>>,
}

impl Exceptions {
    fn insert(&mut self, inode: Inode, id: NodeId) {
        if let Some(before) = self.nodes.insert(inode, id)
            && let Some(inodes) = self.inodes.get_mut(&before)
        {
            inodes.retain(|known| *known != inode);
        }
        self.inodes.entry(id).or_default().push(inode);
    }

    fn remove_one(&mut self, inode: Inode, id: NodeId) {
        if self.nodes.get(&inode) != Some(&id) {
            return;
        }
        self.nodes.remove(&inode);
        if let Some(inodes) = self.inodes.get_mut(&id) {
            inodes.retain(|known| *known != inode);
            if inodes.is_empty() {
                self.inodes.remove(&id);
            }
        }
    }

    fn remove(&mut self, id: NodeId) {
        for inode in self.inodes.remove(&id).unwrap_or_default() {
            self.nodes.remove(&inode);
        }
    }
}

impl Default for NodeTable {
    fn default() -> Self {
        NodeTable {
            nodes: papaya::HashMap::with_hasher(NumberHash),
            exceptions: RwLock::default(),
            exception_count: AtomicUsize::new(0),
            next_counted: AtomicU64::new(2),
            numbers: papaya::HashMap::with_hasher(NumberHash),
        }
    }
}

impl NodeTable {
    /// The node of `id`, if the kernel may know it.
    pub fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        self.nodes.pin().get(&id).cloned()
    }

    /// Puts in the root, which is never removed.
    pub fn insert_root(&self, root: Arc<Node>) {
        self.nodes.pin().insert(NodeId::ROOT, root);
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The live node of an inode number, shown so, without a new reference.
    pub fn find(&self, volume: VolumeId, ino: u64, presented: Presented) -> Option<Arc<Node>> {
        if self.exception_count.load(Ordering::Acquire) != 0
            && let Some(id) = self.exceptions.read().nodes.get(&(volume, ino, presented))
            && let Some(node) = self.get(*id)
        {
            return Some(node);
        }
        crate::state::identity::derived_id(volume, ino, presented).and_then(|id| self.get(id))
    }

    /// Every live node of an inode number: while the kernel holds the node of an inode that is
    /// gone, its number may have been given to another.
    pub fn find_all(&self, volume: VolumeId, ino: u64) -> SmallVec<[Arc<Node>; 2]> {
        let mut found: SmallVec<[Arc<Node>; 2]> = SmallVec::new();
        for presented in [Presented::Own, Presented::Other] {
            let derived = crate::state::identity::derived_id(volume, ino, presented);
            let derived = derived.and_then(|id| self.get(id));
            for node in self.find(volume, ino, presented).into_iter().chain(derived) {
                if found.iter().all(|known| known.id != node.id) {
                    found.push(node);
                }
            }
        }
        found
    }

    /// The node of `identity` with one more reference, or `None` if there is none alive.
    pub fn find_ref(&self, identity: &Identity, kind: FileKind) -> Option<Arc<Node>> {
        let node = self.find(identity.volume, identity.ino, identity.presented)?;
        let usable = same_inode(&node, identity, kind) && !node.retired();
        (usable && node.try_ref()).then_some(node)
    }

    /// The node of the first of `copies`, made if need be; with one more reference.
    pub fn find_or_make(
        &self,
        copies: SmallVec<[Identity; 1]>,
        kind: FileKind,
        ino: u64,
        names: Names,
    ) -> Option<Arc<Node>> {
        let identity = *copies.first()?;
        loop {
            if let Some(node) = self.find_ref(&identity, kind) {
                return Some(node);
            }
            let id = match identity.derived_id() {
                Some(id) if self.free_for_use(id) => id,
                _ => self.note_exception(&identity),
            };
            let node = Node::new(id, ino, kind, copies.clone(), names.clone());
            let node = Arc::new(node);
            let guard = self.nodes.guard();
            if self.nodes.try_insert(id, Arc::clone(&node), &guard).is_ok() {
                release_outgrown_tables(&guard);
                return Some(node);
            }
        }
    }

    /// Whether nobody alive has the id; clears away a node that just died.
    fn free_for_use(&self, id: NodeId) -> bool {
        match self.get(id) {
            None => true,
            Some(node) if node.refs.load(Ordering::Acquire) == 0 => {
                self.remove_dead(&node);
                true
            }
            Some(_) => false,
        }
    }

    /// A counted id for an identity whose derived id is taken or does not exist.
    fn note_exception(&self, identity: &Identity) -> NodeId {
        let id = NodeId(self.next_counted.fetch_add(1, Ordering::Relaxed));
        self.lead_to(identity, id);
        id
    }

    /// Makes an inode lead to a node whose id comes from another.
    fn lead_to(&self, identity: &Identity, id: NodeId) {
        let mut exceptions = self.exceptions.write();
        exceptions.insert((identity.volume, identity.ino, identity.presented), id);
        self.exception_count
            .store(exceptions.nodes.len(), Ordering::Release);
    }

    /// Lets a file be found by the inode it moves to. The node must be alive. The number that it
    /// keeps is no other's, though its old inode may come to be another's.
    pub fn bind(&self, identity: &Identity, node: &Node) {
        self.keep_number(node);
        if identity.derived_id() != Some(node.id) {
            self.lead_to(identity, node.id);
        }
    }

    /// No other node gets this one's number while it is known by a name or open. The node must be
    /// alive.
    pub fn keep_number(&self, node: &Node) {
        let numbers = self.numbers.pin();
        if numbers.get(&node.ino) != Some(&node.id) {
            numbers.insert(node.ino, node.id);
        }
    }

    /// The node other than that of this inode that keeps a number.
    pub fn keeper(&self, number: u64, volume: VolumeId, ino: u64) -> Option<Arc<Node>> {
        let id = self.numbers.pin().get(&number).copied()?;
        self.get(id).filter(|node| {
            !node.has_copy(volume, ino) && (node.name().is_some() || node.open.lock().is_some())
        })
    }

    /// Takes back [`NodeTable::bind`], for an inode that is the node's no more.
    pub fn unbind(&self, identity: &Identity, id: NodeId) {
        let mut exceptions = self.exceptions.write();
        exceptions.remove_one((identity.volume, identity.ino, identity.presented), id);
        self.exception_count
            .store(exceptions.nodes.len(), Ordering::Release);
    }

    /// Lets a directory be found by another of its copies, because the one that gave it its id
    /// left the pool: what is mounted on it and whoever stands in it stay where they are.
    pub fn keep_found(&self, node: &Arc<Node>, copy: &Identity) {
        if self.find(copy.volume, copy.ino, copy.presented).is_none() {
            self.lead_to(copy, node.id);
        }
        // Forgotten meanwhile: nobody would take the entry out again.
        if self.get(node.id).is_none() {
            self.exceptions.write().remove(node.id);
        }
    }

    /// Takes references; a dead node leaves the table, after `last_words`. True if it did.
    pub fn unref(&self, node: &Arc<Node>, count: u64, last_words: impl FnOnce()) -> bool {
        let dead = node.id != NodeId::ROOT && node.unref(count);
        if dead {
            last_words();
            self.remove_dead(node);
        }
        dead
    }

    fn remove_dead(&self, node: &Arc<Node>) {
        let _ = self
            .nodes
            .pin()
            .remove_if(&node.id, |_, found| Arc::ptr_eq(found, node));
        if !self.numbers.is_empty() {
            let _ = self
                .numbers
                .pin()
                .remove_if(&node.ino, |_, keeper| *keeper == node.id);
        }
        if self.exception_count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut exceptions = self.exceptions.write();
        exceptions.remove(node.id);
        self.exception_count
            .store(exceptions.nodes.len(), Ordering::Release);
    }

    /// Calls `visit` with every node.
    pub fn for_each(&self, mut visit: impl FnMut(&Arc<Node>)) {
        for (_, node) in self.nodes.pin().iter() {
            visit(node);
        }
    }
}

/// Lets go of what this thread replaced, now and then. The map frees a thread's replaced tables and
/// removed entries by the batch, and a thread that makes nodes while another is told which are
/// forgotten would take years to fill one: of tables alone, each of megabytes.
fn release_outgrown_tables(guard: &impl papaya::Guard) {
    /// Looking whether other threads still read interrupts their CPUs.
    const EVERY: u32 = 4096;
    thread_local! {
        static MADE: Cell<u32> = const { Cell::new(0) };
    }
    let made = MADE.get().wrapping_add(1);
    MADE.set(made);
    if made.is_multiple_of(EVERY) {
        guard.flush();
    }
}

/// Whether the node under an inode number is that inode and not one that had the number before.
fn same_inode(node: &Node, identity: &Identity, kind: FileKind) -> bool {
    node.kind == kind
        && node.place().copies.iter().any(|copy| {
            copy.volume == identity.volume
                && copy.ino == identity.ino
                && copy.btime_ns == identity.btime_ns
                && copy.generation == identity.generation
                && copy.presented == identity.presented
        })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use smallvec::smallvec;

    use super::*;
    use crate::base::branch::BranchId;

    fn identity(ino: u64, generation: u32) -> Identity {
        Identity {
            branch: BranchId(0),
            volume: VolumeId(0),
            generation,
            ino,
            btime_ns: 0,
            presented: Presented::Own,
        }
    }

    fn make(table: &NodeTable, ino: u64, generation: u32) -> Arc<Node> {
        let names = Names::one(NodeId::ROOT, OsStr::new("x"));
        let copies = smallvec![identity(ino, generation)];
        table
            .find_or_make(copies, FileKind::Regular, ino, names)
            .unwrap()
    }

    #[test]
    fn names_of_one_inode_meet_in_one_node() {
        let table = NodeTable::default();
        let first = make(&table, 5, 1);
        let second = make(&table, 5, 1);
        assert!(Arc::ptr_eq(&first, &second));
        table.unref(&first, 1, || {});
        assert!(table.get(first.id).is_some());
        table.unref(&first, 1, || {});
        assert!(table.get(first.id).is_none());
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "3 of 2 references are taken")]
    fn more_lookups_than_were_counted_are_not_forgotten() {
        let table = NodeTable::default();
        let node = make(&table, 5, 1);
        make(&table, 5, 1);
        table.unref(&node, 3, || {});
    }

    /// Whoever lists while a name is being changed may have read the old state: a listing that begins
    /// after the change had returned must not be joined with that one.
    #[test]
    fn a_listing_begun_during_a_change_is_not_joined_with_later_ones() {
        let directory = make(&NodeTable::default(), 5, 1);
        let changing = crate::state::node::ChangingNames::of(Arc::clone(&directory));
        let of_a_lister = 77;
        directory.kernel_cache.set_listing_mark(of_a_lister);
        drop(changing);
        assert_eq!(directory.kernel_cache.listing_mark(), 0);
    }

    #[test]
    fn a_recycled_number_is_another_node_while_the_old_one_lives() {
        let table = NodeTable::default();
        let old = make(&table, 5, 1);
        let new = make(&table, 5, 2);
        assert_ne!(old.id, new.id);
        assert!(Arc::ptr_eq(&new, &make(&table, 5, 2)));
        table.unref(&new, 2, || {});
        table.unref(&old, 1, || {});
        assert!(table.is_empty());
        assert_eq!(
            make(&table, 5, 3).id,
            old.id,
            "the derived id is free again"
        );
    }

    #[test]
    fn a_thread_that_goes_on_making_nodes_frees_what_it_replaced() {
        let table = NodeTable::default();
        let gone = make(&table, 1, 1);
        table.unref(&gone, 1, || {});
        let gone = Arc::downgrade(&{ gone });
        // Too few entries and outgrown tables for the map to free them by itself.
        for ino in 2..10_000 {
            make(&table, ino, 1);
        }
        assert_eq!(gone.strong_count(), 0);
    }

    #[test]
    fn an_inode_shown_as_something_else_is_another_node() {
        let table = NodeTable::default();
        let own = make(&table, 5, 1);
        let copies = smallvec![identity(5, 1).with_presented(Presented::Other)];
        let other = table
            .find_or_make(copies, FileKind::Symlink, 5, Names::default())
            .unwrap();
        assert_ne!(own.id, other.id);
        assert!(Arc::ptr_eq(&own, &make(&table, 5, 1)));
        let found = table.find(VolumeId(0), 5, Presented::Other).unwrap();
        assert!(Arc::ptr_eq(&found, &other));
    }

    #[test]
    fn huge_numbers_get_counted_ids() {
        let table = NodeTable::default();
        let node = make(&table, 1 << 60, 1);
        assert!(Arc::ptr_eq(&node, &make(&table, 1 << 60, 1)));
        assert_eq!(node.id, NodeId(2));
    }
}
