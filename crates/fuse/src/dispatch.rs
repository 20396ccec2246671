//! One request through the filesystem: decode, call, encode the answer in place.

use crate::abi;
use crate::filesystem::{Filesystem, Worker};
use crate::message::Message;
use crate::request::{Dialect, Request};
use crate::types::Errno;

/// What became of a request.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// Send a reply: the error, or `len` bytes at the start of `out`.
    Reply {
        /// The error, if it failed; `len` is 0 then.
        errno: Option<Errno>,
        /// Bytes of `out` to send behind the header.
        len: usize,
    },
    /// Send nothing: the request is one that is never answered.
    NoReply,
    /// The session's to answer: INIT, DESTROY, INTERRUPT, NOTIFY_REPLY.
    NotForFilesystem(Request<'a>),
}

/// Carries a request out.
pub fn dispatch<'a, F: Filesystem + ?Sized>(
    fs: &F,
    dialect: &Dialect,
    message: &Message<'a>,
    out: &mut [u8],
    worker: &dyn Worker,
) -> Outcome<'a> {
    let _ = (fs, dialect, message, out, worker, abi::KERNEL_VERSION);
    Outcome::Reply {
        errno: Some(Errno::NOSYS),
        len: 0,
    }
}
