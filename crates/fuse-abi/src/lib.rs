//! The kernel's FUSE protocol for servers, without any I/O: what the bytes of a request mean, and
//! which bytes an answer is.
//!
//! - The crate's root holds the structures and numbers of `linux/fuse.h`, up to ABI 7.45.
//! - [`message`] finds the parts of a request, whether it came over `/dev/fuse` or in an entry of
//!   an io_uring.
//! - [`request`] decodes it: one `match` from the operation's number to a typed
//!   [`Request`](request::Request) that borrows names and data from the message.
//! - [`reply`] and [`listing`] encode answers, [`negotiate`] the answer to INIT.
//! - [`types`] are the words in which requests and answers are spoken.
//!
//! Malformed input is an error, never a panic, and nothing is allocated. Who wants a filesystem
//! served, threads and mount included, takes the crate `strandfs-fuse`, which is built on this one.
//!
//! ```
//! use strandfs_fuse_abi::message::Message;
//! use strandfs_fuse_abi::request::{Dialect, Request};
//! use strandfs_fuse_abi::{InHeader, Opcode};
//! use zerocopy::IntoBytes;
//!
//! let name = b"readme\0";
//! let header = InHeader {
//!     len: (size_of::<InHeader>() + name.len()) as u32,
//!     opcode: Opcode::Lookup as u32,
//!     unique: 2,
//!     nodeid: 1,
//!     ..InHeader::default()
//! };
//! let bytes = [header.as_bytes(), name].concat();
//! let message = Message::from_bytes(&bytes)?;
//! match Request::decode(&message, &Dialect::INITIAL)? {
//!     Request::Lookup { name } => assert_eq!(name, "readme"),
//!     other => unreachable!("{other:?}"),
//! }
//! # Ok::<(), strandfs_fuse_abi::message::DecodeError>(())
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod kernel;
pub mod listing;
pub mod message;
pub mod negotiate;
pub mod reply;
pub mod request;
pub mod types;

pub use kernel::*;
