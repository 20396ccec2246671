//! The kernel's FUSE protocol for servers: ABI, requests, session, transports, passthrough,
//! notifications and mounting. It knows nothing of unions.

pub mod abi;
pub mod backing;
pub mod connection;
mod deferred;
pub mod dirbuf;
pub mod dispatch;
pub mod filesystem;
mod lifeline;
pub mod message;
pub mod mount;
pub mod negotiate;
pub mod notify;
pub mod page_limit;
mod reply;
pub mod request;
pub mod ring;
pub mod session;
pub mod signals;
mod sys;
pub mod traffic;
mod transport;
pub mod types;

pub use connection::Connection;
pub use deferred::{AnswerLater, Deferred};
pub use dirbuf::{DirPlusSink, DirSink};
pub use dispatch::{Outcome, dispatch};
pub use filesystem::{Context, Filesystem, Result, Worker};
pub use lifeline::{close_inherited, end_of, hold_until_death};
pub use message::{DecodeError, Message};
pub use mount::{
    Hindrance, MountError, MountFlags, MountOptions, hindrance, is_served_by,
    recover_dead_mountpoint, recover_dying_mountpoint, recover_killed_mountpoint, unmount,
};
pub use negotiate::{Negotiated, Wants};
pub use request::{Dialect, Request};
pub use session::{End, Session, SessionConfig, SessionError, Unmounter};
pub use signals::Signals;
pub use traffic::TrafficReport;
pub use transport::{
    Link, Placement, RingReport, RingUnavailable, Transport, TransportChoice, TransportReport,
};
pub use types::*;
