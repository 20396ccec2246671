//! What a thread asks of the filesystem for a request, and what it says to the kernel.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::super::caller;
use super::super::crew::RingCrew;
use super::super::entry::RingEntry;
use super::super::post::Post;
use crate::abi::{InHeader, Opcode};
use crate::deferred::Deferred;
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

    /// An answer without data that was made elsewhere.
    pub(super) fn later(unique: u64, result: Result<(), Errno>) -> Self {
        Self {
            unique,
            errno: result.err(),
            len: 0,
        }
    }

    fn empty(unique: u64) -> Self {
        Self {
            unique,
            errno: None,
            len: 0,
        }
    }
}

/// What has come of a request.
pub(super) enum Made {
    /// It is answered.
    Reply(Reply),
    /// Somebody else answers it; its thread goes on with this entry, or the keeper serves the
    /// queue.
    Later(Option<RingEntry>),
    /// It is carried out again after this time; the rest as above.
    Again(Duration, Option<RingEntry>),
}

/// Runs a request through the filesystem, where others can see it. With `may_wait` it may be
/// answered later.
pub(super) fn carry_out(
    crew: &Arc<RingCrew>,
    post: &Arc<Post>,
    message: &Message<'_>,
    out: &mut [u8],
    may_wait: Option<bool>,
) -> Made {
    let unique = message.header.unique;
    let server = &crew.server;
    if crew.nudges.is_own(post.queue, message.header.pid) {
        return Made::Reply(Reply::error(unique, Errno::INTR));
    }
    post.counts.count(message.header.opcode);
    let mut worker = RingWorker::new(crew, post);
    worker.asker = may_wait.map(|has_others| Asker {
        unique,
        uid: message.header.uid,
        has_others,
    });
    let outcome = in_sight(crew, post, message, &worker, |worker| {
        crew.interrupt_early(post, unique);
        dispatch(&*server.filesystem, &server.dialect, message, out, worker)
    });
    match worker.later.get() {
        Later::No => {}
        Later::Answered => return Made::Later(worker.fresh.take()),
        Later::Again(after) => return Made::Again(after, worker.fresh.take()),
    }
    Made::Reply(reply_of(crew, unique, outcome))
}

fn reply_of(crew: &RingCrew, unique: u64, outcome: Outcome<'_>) -> Reply {
    let server = &crew.server;
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
    let worker = RingWorker::new(crew, post);
    let len = in_sight(crew, post, message, &worker, |worker| {
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
    worker: &RingWorker<'_>,
    work: impl FnOnce(&RingWorker<'_>) -> T,
) -> T {
    if is_about_a_file(message.header.opcode) {
        post.file.store(message.header.nodeid, Ordering::Relaxed);
    }
    post.note_asker(message.header.uid, message.header.pid);
    post.caller
        .store(caller::of(&message.header), Ordering::Relaxed);
    post.enter(message.header.unique);
    crew.watchdog.note_work();
    if post.of_share.load(Ordering::Relaxed) {
        // Its end lets the next one go.
        post.of_share.store(false, Ordering::Relaxed);
        crew.relieve(post, post.word());
    }
    let made = work(worker);
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

/// When a request is answered.
#[derive(Clone, Copy)]
enum Later {
    /// By its thread, now.
    No,
    /// By somebody else.
    Answered,
    /// It is carried out again after this time.
    Again(Duration),
}

/// Whose request it is that may wait.
struct Asker {
    unique: u64,
    uid: u32,
    /// Its thread has another entry with the kernel.
    has_others: bool,
}

/// The transport's side of a request.
pub(super) struct RingWorker<'a> {
    crew: &'a Arc<RingCrew>,
    post: &'a Arc<Post>,
    asked: Cell<bool>,
    /// Unless the request must be answered by its thread.
    asker: Option<Asker>,
    later: Cell<Later>,
    /// What the thread goes on with.
    fresh: RefCell<Option<RingEntry>>,
}

impl<'a> RingWorker<'a> {
    pub(super) fn new(crew: &'a Arc<RingCrew>, post: &'a Arc<Post>) -> Self {
        Self {
            crew,
            post,
            asked: Cell::new(false),
            asker: None,
            later: Cell::new(Later::No),
            fresh: RefCell::new(None),
        }
    }

    /// What a thread goes on with that has an entry wait; none where it needs nothing.
    pub(super) fn go_on_without(
        crew: &'a Arc<RingCrew>,
        post: &'a Arc<Post>,
        has_others: bool,
    ) -> Result<Option<RingEntry>, Errno> {
        let worker = Self::new(crew, post);
        let (unique, uid) = (0, 0);
        worker.provide(&Asker {
            unique,
            uid,
            has_others,
        })?;
        Ok(worker.fresh.take())
    }

    /// Has all that the thread needs to go on without the request's entry.
    fn provide(&self, asker: &Asker) -> Result<(), Errno> {
        if !self.crew.has_keeper() {
            return Err(Errno::NOSYS);
        }
        let queue = self.post.queue;
        if asker.has_others || self.crew.late.serves(queue) || self.fresh.borrow().is_some() {
            return Ok(());
        }
        // Without memory for one more entry the request cannot wait.
        let entry = self.crew.further_entry(queue).map_err(|_| Errno::NOLCK)?;
        self.fresh.replace(Some(entry));
        Ok(())
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

    fn defer(&self) -> Result<Deferred, Errno> {
        let (Some(asker), Later::No) = (&self.asker, self.later.get()) else {
            return Err(Errno::NOSYS);
        };
        self.provide(asker)?;
        self.crew.late.begin(asker.unique, asker.uid)?;
        self.later.set(Later::Answered);
        Ok(Deferred::new(asker.unique, self.crew.late.clone()))
    }

    fn again(&self, after: Duration, at_most: Duration) -> bool {
        let Some(asker) = &self.asker else {
            return false;
        };
        if matches!(self.later.get(), Later::Answered) || self.provide(asker).is_err() {
            return false;
        }
        let may = (self.crew.late).may_try_again(asker.unique, asker.uid, at_most);
        if may {
            self.later.set(Later::Again(after));
        }
        may
    }

    fn is_deferred(&self) -> bool {
        !matches!(self.later.get(), Later::No)
    }
}
