//! How requests come and answers go: [`device`], `/dev/fuse` with a reader, or two, whose role is
//! handed on, and [`ring`], io_uring with a queue for each CPU.

mod buffer;
mod caller;
mod device;
mod follow;
mod further;
mod interrupt;
mod kept;
mod later;
mod link;
mod placement;
mod ring;
mod second;
mod shares;
mod undo;
mod watchdog;
mod whereabouts;
mod worker_pool;
mod worker_state;
mod yielding;

use std::sync::Arc;
use std::time::Duration;

pub use link::{Link, Transport};
pub use placement::{Placement, Unpinned};
pub use ring::{Completion, Ring, RingEntry, queues};
pub(crate) use ring::{DEVICE_THREADS, Prepared, RingWorkerPool, possible, prepare};
pub(crate) use worker_pool::WorkerPool;

use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::request::Dialect;

/// How long the last requests are left in peace before their system calls are interrupted.
const END_IN_PEACE: Duration = Duration::from_millis(200);
/// Pause between signals to a thread that does not end.
const INTERRUPT_EVERY: Duration = Duration::from_millis(5);

/// How requests are to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Over `/dev/fuse`.
    #[default]
    Device,
    /// Over io_uring where that is possible, else over `/dev/fuse`.
    Auto,
    /// Over io_uring, or not at all.
    Ring,
}

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
