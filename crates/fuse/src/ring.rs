//! Requests over io_uring, for a server that wants to answer them from its own loop: later, in any
//! order, or with file transfers of the same io_uring between request and reply. (A
//! [`Filesystem`](crate::Filesystem) needs none of this: its session uses the ring by itself.)
//!
//! [`Ring`] is one io_uring instance, [`RingEntry`] the buffers of one place in a CPU's queue. Who
//! builds on them has to know what the kernel does:
//! - INIT comes over `/dev/fuse`, and its answer must agree to `OVER_IO_URING`. A session does that
//!   with [`TransportChoice::Ring`](crate::TransportChoice::Ring) or `Auto`; under
//!   [`Session::serve_over`](crate::Session::serve_over) the rest is the caller's, if
//!   `Link::dialect().flags` has that flag.
//! - Nothing is served before every CPU that may ever be there ([`queues`]) has an entry in its
//!   queue. A refused entry makes the kernel go back to `/dev/fuse`, up to then.
//! - A request goes to the queue of its caller's CPU, there to the entry that was answered last.
//! - An entry's request arrives when the thread of the ring that holds it waits in that ring. A
//!   thread that does not come back to its ring for long keeps the requests of all its entries.
//! - FORGET, INTERRUPT and what notifications bring come over `/dev/fuse` as ever.

pub use crate::transport::{Completion, Ring, RingEntry, queues};
