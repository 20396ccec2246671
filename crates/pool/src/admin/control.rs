//! Control of a mounted pool: changing options and branches while it serves, and the ways to
//! ask for it.

pub(crate) mod file;
mod keys;
pub(crate) mod reconfigure;
pub mod request;
pub mod socket;

pub use crate::directory::recall::Recalled;
pub use reconfigure::{Changed, ReconfigureError};
