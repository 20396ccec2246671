//! The union: branches, policies, nodes and operations behind one FUSE mount.

pub mod admin;
pub mod base;
pub mod coherence;
mod directory;
pub mod health;
mod mover;
mod ops;
pub mod pool;
pub mod state;
pub mod watch;

pub use admin::Admin;
pub use admin::control::reconfigure::reconfigure;
pub use admin::control::{Changed, ReconfigureError};
pub use base::{metrics, status};
pub use mover::{key, records};
pub use pool::Pool;
pub use state::pool_error::PoolError;
pub use state::view::PassthroughVerdict;
