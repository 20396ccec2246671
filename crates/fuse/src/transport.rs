//! How requests come and answers go. One transport for now: [`device`], `/dev/fuse` with a
//! single reader whose role is handed on.

mod buffer;
mod crew;
mod device;
mod interrupt;
mod link;
mod placement;
mod seat;
mod undo;
mod watchdog;

use std::sync::Arc;

pub(crate) use crew::Crew;
pub use link::{Link, Transport};
pub use placement::Placement;

use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::request::Dialect;

/// What requests are carried out with, on whatever transport.
pub(crate) struct Server {
    /// The filesystem.
    pub(crate) filesystem: Arc<dyn Filesystem>,
    /// The connection.
    pub(crate) connection: Connection,
    /// How messages are read.
    pub(crate) dialect: Dialect,
    /// Room for the payload of any request or reply.
    pub(crate) payload_bytes: usize,
}
