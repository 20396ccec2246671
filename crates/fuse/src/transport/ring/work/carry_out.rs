//! What a thread asks of the filesystem for a request, and what it says to the kernel.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::crew::RingCrew;
use super::super::post::Post;
use crate::abi::{InHeader, Opcode};
use crate::dispatch::{Outcome, dispatch, dispatch_at_once};
use crate::filesystem::Worker;
use crate::message::{DecodeError, Message};
use crate::request::Request;
use crate::types::Errno;

/// What is to be said to the kernel.
pub(super) struct Reply {
    pub(super) unique: u64,
    pub(super) errno: Option<Errno>,
    pub(super) len: usize,
}

impl Reply {
    fn error(unique: u64, errno: Errno) -> Self {
        Self {
            unique,
            errno: Some(errno),
            len: 0,
        }
    }

    pub(super) fn unreadable(header: &InHeader, error: &DecodeError) -> Self {
        tracing::error!(%error, opcode = header.opcode, "a message that cannot be read");
        Self::error(header.unique, error.errno())
    }

    fn empty(unique: u64) -> Self {
        Self {
            unique,
            errno: None,
            len: 0,
        }
    }
}

/// Runs a request through the filesystem, where others can see it.
pub(super) fn carry_out(
    crew: &Arc<RingCrew>,
    post: &Arc<Post>,
    message: &Message<'_>,
    out: &mut [u8],
) -> Reply {
    let unique = message.header.unique;
    let server = &crew.server;
    if crew.nudges.is_own(post.queue, message.header.pid) {
        return Reply::error(unique, Errno::INTR);
    }
    post.counts.count(message.header.opcode);
    let outcome = in_sight(crew, post, message, |worker| {
        crew.interrupt_early(post, unique);
        dispatch(&*server.filesystem, &server.dialect, message, out, worker)
    });
    match outcome {
        Outcome::Reply { errno, len } => Reply { unique, errno, len },
        Outcome::NotForFilesystem(Request::NotifyReply { data, .. }) => {
            server.connection.deliver_retrieval(unique, data);
            Reply::empty(unique)
        }
        // Never seen over a ring; answered all the same, for an entry has to come back.
        Outcome::NoReply | Outcome::NotForFilesystem(Request::Destroy) => Reply::empty(unique),
        Outcome::NotForFilesystem(_) => Reply::error(unique, Errno::IO),
    }
}

/// Tries a request that may have to wait: the length of the answer, if it has not.
pub(super) fn try_at_once(
    crew: &Arc<RingCrew>,
    post: &Arc<Post>,
    message: &Message<'_>,
    out: &mut [u8],
) -> Option<usize> {
    let server = &crew.server;
    let len = in_sight(crew, post, message, |worker| {
        dispatch_at_once(&*server.filesystem, &server.dialect, message, out, worker)
    })?;
    post.counts.count(message.header.opcode);
    Some(len)
}

/// Works on a request where others can see it, and find the thread should that take long.
fn in_sight<T>(
    crew: &Arc<RingCrew>,
    post: &Arc<Post>,
    message: &Message<'_>,
    work: impl FnOnce(&RingWorker<'_>) -> T,
) -> T {
    if is_about_a_file(message.header.opcode) {
        post.file.store(message.header.nodeid, Ordering::Relaxed);
    }
    post.enter(message.header.unique);
    crew.watchdog.note_work();
    let made = work(&RingWorker::new(crew, post));
    if !post.leave() {
        crew.rejoin(post);
    }
    made
}

/// Whether only regular files are asked for this.
fn is_about_a_file(opcode: u32) -> bool {
    const ONLY: [Opcode; 4] = [Opcode::Read, Opcode::Write, Opcode::Open, Opcode::Fsync];
    ONLY.iter().any(|only| *only as u32 == opcode)
}

/// The transport's side of a request.
pub(super) struct RingWorker<'a> {
    crew: &'a Arc<RingCrew>,
    post: &'a Arc<Post>,
    asked: Cell<bool>,
}

impl<'a> RingWorker<'a> {
    pub(super) fn new(crew: &'a Arc<RingCrew>, post: &'a Arc<Post>) -> Self {
        Self {
            crew,
            post,
            asked: Cell::new(false),
        }
    }
}

impl Worker for RingWorker<'_> {
    fn may_block(&self) {
        if self.asked.replace(true) {
            return;
        }
        self.post.set_may_block();
        self.crew.relieve(self.post, self.post.word());
    }

    fn interrupted(&self) -> bool {
        self.post.is_interrupted()
    }
}
