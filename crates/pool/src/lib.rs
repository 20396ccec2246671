//! The union: branches, policies, nodes and operations behind one FUSE mount.

pub mod admin;
pub mod base;
mod directory;
pub mod health;
mod mover;
mod ops;
pub mod pool;
pub mod state;
pub mod watch;

pub use admin::control::{Changed, ReconfigureError};
pub use base::status;
pub use mover::{key, records, start_ahead};
pub use pool::{PassthroughVerdict, Pool, PoolError};
