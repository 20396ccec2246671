//! One request through the filesystem: decode, call, encode the answer in place.

mod attr;
mod call;
mod file;
mod other;

use std::panic::{AssertUnwindSafe, catch_unwind};

use call::{Answer, Call};

use crate::abi::Opcode;
use crate::filesystem::{Context, Filesystem, Result, SlowRequest, Worker};
use crate::message::{DecodeError, Message};
use crate::request::{Dialect, Request};
use crate::traffic::Times;
use crate::types::{Errno, NodeId};

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
    /// Send nothing: the request is one that is never answered, or it is answered later.
    NoReply,
    /// The session's to answer: INIT, DESTROY, INTERRUPT, NOTIFY_REPLY.
    NotForFilesystem(Request<'a>),
}

impl Outcome<'_> {
    /// A reply with an error. What the kernel would not accept as an error number (it knows
    /// 1 to 511 and aborts the request otherwise) becomes EIO.
    fn error(errno: Errno) -> Self {
        let acceptable = (1..512).contains(&errno.raw_os_error());
        Outcome::Reply {
            errno: Some(if acceptable { errno } else { Errno::IO }),
            len: 0,
        }
    }
}

/// Carries `message` out on `fs`. The answer is encoded at the start of `out`, the transport's
/// payload area: page-aligned, and at least [`Negotiated::payload_bytes`] long, so that every
/// read fits. The transport sends it behind an [`OutHeader`] with the request's `unique`.
///
/// A malformed request is answered without calling the filesystem: ENOSYS for an unknown
/// operation, else EINVAL. A panic in the filesystem costs its request (EIO), not the mount.
///
/// [`Negotiated::payload_bytes`]: crate::Negotiated::payload_bytes
/// [`OutHeader`]: crate::abi::OutHeader
pub fn dispatch<'a, F: Filesystem + ?Sized>(
    fs: &F,
    dialect: &Dialect,
    message: &Message<'a>,
    out: &mut [u8],
    worker: &dyn Worker,
) -> Outcome<'a> {
    let request = match Request::decode(message, dialect) {
        Ok(request) => request,
        Err(error) => return refuse(message, &error),
    };
    let cx = context(message, worker);
    let node = NodeId(message.header.nodeid);
    let call = Call { fs, cx: &cx, node };
    let outcome = guarded(message, || call.run(&request, out));
    match outcome {
        Ok(Answer::Session) => return Outcome::NotForFilesystem(request),
        Ok(Answer::Nothing) => return Outcome::NoReply,
        _ if worker.is_deferred() => {
            tracing::debug!(
                operation = operation(message).map(tracing::field::debug),
                unique = cx.unique,
                "answered later"
            );
            return Outcome::NoReply;
        }
        _ => {}
    }
    let outcome = outcome.map(Answer::len_bytes);
    tracing::debug!(
        operation = operation(message).map(tracing::field::debug),
        unique = cx.unique,
        node = node.0,
        name = request.name().map(tracing::field::debug),
        pid = cx.pid,
        reply_bytes = outcome.ok(),
        error = outcome.err().map(tracing::field::display),
        "request"
    );
    match outcome {
        Ok(len) => Outcome::Reply { errno: None, len },
        Err(errno) => failed(message, errno),
    }
}

/// Carries out a READ or a WRITE that can be answered without waiting, as [`dispatch`]: the bytes
/// at the start of `out` to send. `None` if it cannot, or is another request: it is as if nobody had
/// tried, and [`dispatch`] answers it.
pub fn dispatch_nowait<F: Filesystem + ?Sized>(
    fs: &F,
    dialect: &Dialect,
    message: &Message<'_>,
    out: &mut [u8],
    worker: &dyn Worker,
) -> Option<usize> {
    let request = Request::decode(message, dialect).ok()?;
    let cx = context(message, worker);
    let call = Call {
        fs,
        cx: &cx,
        node: NodeId(message.header.nodeid),
    };
    // A panic would come again where it is told.
    let tried = catch_unwind(AssertUnwindSafe(|| call.nowait(&request, out)));
    let len = tried.ok().flatten()?;
    tracing::debug!(
        operation = operation(message).map(tracing::field::debug),
        unique = cx.unique,
        node = message.header.nodeid,
        pid = cx.pid,
        reply_bytes = len,
        "request answered at once"
    );
    Some(len)
}

/// Tells the filesystem of a request that took long, if it wants to know.
pub(crate) fn tell_if_slow<F: Filesystem + ?Sized>(
    fs: &F,
    dialect: &Dialect,
    message: &Message<'_>,
    times: &Times,
    error: Option<Errno>,
) {
    if fs.slow_after().is_some_and(|after| times.whole >= after) {
        tell_slow(fs, dialect, message, times, error);
    }
}

#[cold]
fn tell_slow<F: Filesystem + ?Sized>(
    fs: &F,
    dialect: &Dialect,
    message: &Message<'_>,
    times: &Times,
    error: Option<Errno>,
) {
    let request = Request::decode(message, dialect).ok();
    let header = &message.header;
    let slow = SlowRequest {
        opcode: operation(message),
        node: NodeId(header.nodeid),
        name: request.as_ref().and_then(Request::name),
        pid: header.pid,
        uid: header.uid,
        whole: times.whole,
        queued: times.queued.unwrap_or_default(),
        below: times.below,
        answering: times.answering.unwrap_or_default(),
        error,
    };
    // A panic must cost no more than the line.
    let _ = catch_unwind(AssertUnwindSafe(|| fs.slow(&slow)));
}

fn context<'c>(message: &Message<'_>, worker: &'c dyn Worker) -> Context<'c> {
    let header = &message.header;
    Context {
        unique: header.unique,
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        supplementary_gid: message.supplementary_gid(),
        worker,
    }
}

/// The operation, for the log: an unknown one is refused before.
fn operation(message: &Message<'_>) -> Option<Opcode> {
    message.opcode().ok()
}

/// Answers what cannot be understood.
fn refuse<'a>(message: &Message<'a>, error: &DecodeError) -> Outcome<'a> {
    let header = &message.header;
    tracing::debug!(
        opcode = header.opcode,
        unique = header.unique,
        node = header.nodeid,
        %error,
        "request refused"
    );
    failed(message, error.errno())
}

/// The error, unless the request is of a kind that is never answered.
fn failed<'a>(message: &Message<'_>, errno: Errno) -> Outcome<'a> {
    match message.opcode() {
        Ok(opcode) if !opcode.wants_reply() => Outcome::NoReply,
        _ => Outcome::error(errno),
    }
}

/// Runs `call`; a panic in it becomes EIO. Unwind safety is the filesystem's own affair: it is
/// shared between threads, so its state is behind locks or atomics.
fn guarded<T>(message: &Message<'_>, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let reason = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no reason given");
        tracing::error!(
            operation = operation(message).map(tracing::field::debug),
            unique = message.header.unique,
            node = message.header.nodeid,
            reason,
            "panic in the filesystem"
        );
        Err(Errno::IO)
    })
}
