//! The kernel's FUSE protocol for servers: ABI, requests, session, transports, passthrough,
//! notifications and mounting. It knows nothing of unions.

pub mod abi;
pub mod connection;
pub mod dirbuf;
pub mod filesystem;
pub mod negotiate;
pub mod types;

pub use connection::Connection;
pub use dirbuf::{DirPlusSink, DirSink};
pub use filesystem::{Context, Filesystem, Result, Worker};
pub use negotiate::Negotiated;
pub use types::*;
