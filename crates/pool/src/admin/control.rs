//! Control of a mounted pool: changing options and branches while it serves, and the ways to
//! ask for it.

pub(crate) mod file;
mod keys;
mod recall;
mod reconfigure;
pub mod request;
pub mod socket;

pub use recall::Recalled;
pub(crate) use recall::{Reason, Recall};
pub(crate) use reconfigure::Changes;
pub use reconfigure::{Changed, ReconfigureError};
