//! The union: branches, policies, nodes and operations behind one FUSE mount.

mod at_once;
mod attr;
pub mod branch;
mod choose;
mod clones;
pub mod coherence;
pub mod control;
mod dir_fds;
mod dir_listing;
mod dir_memory;
mod dir_reading;
mod dir_set;
mod explain;
mod faults;
pub mod features;
pub mod health;
pub mod identity;
mod inode_number;
mod listing_workers;
mod locate;
mod magic;
mod metadata;
pub mod node;
pub mod open_file;
mod ops;
pub mod policy;
pub mod pool;
pub mod range_locks;
mod readahead;
mod relocate;
mod snapshots;
mod status;
pub mod sys;

pub use control::{Changed, ReconfigureError};
pub use pool::{PassthroughVerdict, Pool, PoolError};
pub use relocate::start_ahead;
