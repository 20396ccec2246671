//! Filesystems in user space on Linux: a trait with one method for each operation, and a session that
//! mounts, negotiates, serves and unmounts.
//!
//! - [`Filesystem`] is the contract: what each method answers, which errors mean what, and how look-ups
//!   are counted. [`Context`] says who asks, and lets a method say that it may block, answer later
//!   ([`Deferred`]) or be tried again.
//! - [`Session::mount`] mounts and agrees on INIT ([`SessionConfig`], [`Wants`], [`Negotiated`]);
//!   [`Session::serve`] returns when the mount has ended ([`End`]), [`Unmounter`] and [`Signals`] end
//!   it.
//! - [`Connection`] registers backing files for passthrough and sends notifications.
//! - Requests come over `/dev/fuse` or io_uring ([`TransportChoice`]), or over a [`Transport`] of
//!   one's own, with [`ring`] where that is to be io_uring.
//! - [`abi`] is the protocol itself: structures, typed requests, replies.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use strandfs_fuse::{
//!     AttrReply, Context, FileAttr, Filesystem, Handle, MountOptions, NodeId, Result, Session,
//!     SessionConfig, Signals,
//! };
//!
//! /// A directory without anything in it.
//! struct Empty;
//!
//! impl Filesystem for Empty {
//!     fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
//!         let attr = FileAttr { ino: node.0, mode: 0o040_555, nlink: 2, ..FileAttr::default() };
//!         Ok(AttrReply { attr, attr_valid: Duration::from_secs(1) })
//!     }
//! }
//!
//! # fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! let signals = Signals::block()?; // first, before any thread starts
//! let (at, options) = (Path::new("/mnt/empty"), MountOptions::default());
//! let session = Session::mount(Arc::new(Empty), at, &options, SessionConfig::default())?;
//! println!("ended: {:?}", session.serve_with_signals(signals)?);
//! # Ok(())
//! # }
//! ```
//!
//! The examples (`hello`, `memory`, `passthrough`, `notifications`, `readdirplus`, `io_uring`) are
//! small filesystems to start from.
#![deny(missing_docs)]

mod abort_helper;
mod affinity;
mod connection;
mod deferred;
mod dispatch;
mod filesystem;
pub mod latency;
mod life;
mod mount;
pub mod page_limit;
mod read_lossy;
mod report;
pub mod ring;
mod session;
mod signals;
mod sys;
mod traffic;
mod transport;

pub use strandfs_fuse_abi as abi;
use strandfs_fuse_abi::{listing, message, negotiate, reply, request, types};

pub use abort_helper::{close_inherited, end_of, hold_until_death};
pub use affinity::{run_urgently, start_as_usual};
pub use connection::Connection;
pub use deferred::{AnswerLater, Deferred};
pub use dispatch::{Outcome, dispatch};
pub use filesystem::{Context, Filesystem, Result, SlowRequest, Worker};
pub use life::{End, SessionError};
pub use listing::{DirPlusSink, DirSink};
pub use message::{DecodeError, Message, SecurityContext, SecurityContexts};
pub use mount::{
    Hindrance, MountError, MountFlags, MountOptions, UnmountMode, WatchedConnection, hindrance,
    recover_dead_mountpoint, recover_dying_mountpoint, recover_killed_mountpoint, unmount,
    watch_connection, which_serve,
};
pub use negotiate::{NegotiateError, Negotiated, Wants};
pub use read_lossy::read_lossy;
pub use report::{RingReport, RingUnavailable, TransportReport};
pub use request::{Dialect, Forget, ForgetList, Request};
pub use session::{Session, SessionConfig, Unmounter};
pub use signals::Signals;
pub use traffic::{LatencyReport, OperationLatency, TrafficReport};
pub use transport::{Link, Placement, Transport, TransportChoice, Unpinned};
pub use types::*;
