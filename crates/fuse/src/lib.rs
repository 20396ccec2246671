//! The kernel's FUSE protocol for servers: ABI, requests, session, transports, passthrough,
//! notifications and mounting. It knows nothing of unions.

mod abort_helper;
mod backing;
mod connection;
mod deferred;
mod dispatch;
mod filesystem;
mod mount;
mod notify;
pub mod page_limit;
pub mod ring;
mod session;
mod signals;
mod sys;
mod traffic;
mod transport;

pub use strandfs_fuse_abi as abi;
use strandfs_fuse_abi::{listing, message, negotiate, reply, request, types};

pub use abort_helper::{close_inherited, end_of, hold_until_death};
pub use connection::Connection;
pub use deferred::{AnswerLater, Deferred};
pub use dispatch::{Outcome, dispatch};
pub use filesystem::{Context, Filesystem, Result, Worker};
pub use listing::{DirPlusSink, DirSink};
pub use message::{DecodeError, Message, SecurityContext, SecurityContexts};
pub use mount::{
    Hindrance, MountError, MountFlags, MountOptions, UnmountMode, hindrance, is_served_by,
    recover_dead_mountpoint, recover_dying_mountpoint, recover_killed_mountpoint, unmount,
};
pub use negotiate::{NegotiateError, Negotiated, Wants};
pub use request::{Dialect, Forget, ForgetList, Request};
pub use session::{End, Session, SessionConfig, SessionError, Unmounter};
pub use signals::Signals;
pub use traffic::TrafficReport;
pub use transport::{
    Link, Placement, RingReport, RingUnavailable, Transport, TransportChoice, TransportReport,
};
pub use types::*;
