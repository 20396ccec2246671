//! What the pool knows of files while the kernel does: nodes, open files, locks, identities and numbers.

pub(crate) mod attr;
pub(crate) mod descriptor;
pub(crate) mod descriptor_budget;
pub(crate) mod dir_cache;
pub mod figures;
pub(crate) mod held_writers;
pub mod identity;
pub(crate) mod inode_number;
pub(crate) mod judged;
pub mod lock_table;
pub mod lock_waits;
pub mod mounts;
pub mod node;
pub mod open_file;
pub mod open_files;
pub mod passthrough;
pub(crate) mod paths;
pub mod pool_error;
pub(crate) mod preload_told;
pub mod range_locks;
pub(crate) mod slow_after;
pub mod view;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use rustix::io::Errno;
use strandfs_fuse::{Connection, Negotiated, NodeId};

use crate::base::blocking_pool::BlockingPool;
use crate::base::error::Result;
use figures::Figures;
use held_writers::HeldWriters;
use identity::Volumes;
use lock_waits::LockWaits;
use node::{ChangingNames, Node, NodeTable};
use open_files::OpenFiles;
use preload_told::PreloadTold;
use slow_after::SlowAfter;
use view::{PassthroughVerdict, View};

/// What every room stands on: the options and branches in force, the nodes that the kernel knows, what
/// is open and what is locked.
pub struct State {
    view: ArcSwap<View>,
    pub(crate) nodes: NodeTable,
    pub(crate) volumes: Volumes,
    pub(crate) files: Arc<OpenFiles>,
    /// Writers in passthrough that wait when their branch runs out of room.
    pub(crate) held_writers: HeldWriters,
    pub(crate) lock_waits: Arc<LockWaits>,
    /// Makes the calls that a branch may not answer.
    pub(crate) blocking_pool: BlockingPool,
    pub(crate) connection: OnceLock<Connection>,
    pub(crate) negotiated: OnceLock<Negotiated>,
    pub(crate) verdict: Mutex<PassthroughVerdict>,
    pub(crate) mountpoint: OnceLock<PathBuf>,
    /// Rises when a file changes branches, between its new names and the end of its old ones:
    /// whoever missed it on both sides looks again.
    pub(crate) moves: AtomicU64,
    /// Files that a program works on past the pool.
    pub(crate) preload_told: PreloadTold,
    pub(crate) figures: Figures,
    /// Which requests are slow.
    pub(crate) slow_after: SlowAfter,
}

impl State {
    /// Nothing is known but the view; the root's node is still to come.
    pub(crate) fn new(view: View, volumes: Volumes, files: Arc<OpenFiles>) -> State {
        let slow_after = SlowAfter::default();
        slow_after.set(view.settings.logging.slow_log);
        State {
            slow_after,
            view: ArcSwap::from_pointee(view),
            nodes: NodeTable::default(),
            volumes,
            files,
            held_writers: HeldWriters::default(),
            lock_waits: Arc::default(),
            blocking_pool: BlockingPool::default(),
            connection: OnceLock::new(),
            negotiated: OnceLock::new(),
            verdict: Mutex::new(PassthroughVerdict::Undecided),
            mountpoint: OnceLock::new(),
            moves: AtomicU64::new(0),
            preload_told: PreloadTold::default(),
            figures: Figures::default(),
        }
    }

    /// Puts a view in force, and nothing else.
    pub(crate) fn set_view(&self, view: View) {
        self.slow_after.set(view.settings.logging.slow_log);
        self.view.store(Arc::new(view));
    }

    /// What is in force now.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The node of an id in a request.
    ///
    /// # Errors
    /// ESTALE if there is none.
    pub(crate) fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        self.nodes.get(id).ok_or(Errno::STALE.into())
    }

    /// The same of a directory in which a name is to be changed.
    ///
    /// # Errors
    /// ESTALE if there is none.
    pub(crate) fn node_to_change(&self, id: NodeId) -> Result<ChangingNames> {
        self.node(id).map(ChangingNames::of)
    }

    /// Zero if options or branches changed since `view` was taken: what was found out under that view
    /// may reach the kernel after the kernel was told to forget such things.
    pub(crate) fn unless_outdated(&self, view: &View, trusted: Duration) -> Duration {
        if self.view().generation == view.generation {
            trusted
        } else {
            Duration::ZERO
        }
    }

    /// How often a file has changed branches.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }
}
