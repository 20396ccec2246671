//! What a thread asks of the filesystem for a request, and what it says to the kernel.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::super::caller;
use super::super::entry::RingEntry;
use super::super::queue_worker::QueueWorker;
use super::super::worker_pool::RingWorkerPool;
use super::super::{interrupt, keeper};
use crate::abi::{InHeader, Opcode};
use crate::deferred::Deferred;
use crate::dispatch::{Outcome, dispatch, dispatch_nowait, tell_if_slow};
use crate::filesystem::Worker;
use crate::message::{DecodeError, Message};
use crate::request::Request;
use crate::traffic::Times;
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
/// answered later. It had no thread since then, if it was without one.
pub(super) fn carry_out(
    worker_pool: &Arc<RingWorkerPool>,
    queue_worker: &Arc<QueueWorker>,
    message: &Message<'_>,
    out: &mut [u8],
    may_wait: Option<bool>,
    since: Option<Instant>,
) -> Made {
    let unique = message.header.unique;
    let server = &worker_pool.server;
    if worker_pool
        .kicks
        .is_own(queue_worker.queue, message.header.pid)
    {
        return Made::Reply(Reply::error(unique, Errno::INTR));
    }
    queue_worker.counts.count(message.header.opcode);
    let mut worker = RingWorker::new(worker_pool, queue_worker);
    worker.asker = may_wait.map(|has_others| Asker {
        unique,
        uid: message.header.uid,
        has_others,
    });
    let (began, below) = (Instant::now(), server.filesystem.time_below());
    queue_worker.counts.begin(since.unwrap_or(began));
    let outcome = in_sight(worker_pool, queue_worker, message, &worker, |worker| {
        interrupt::interrupt_early(worker_pool, queue_worker, unique);
        dispatch(&*server.filesystem, &server.dialect, message, out, worker)
    });
    if let Later::Again(after) = worker.later.get() {
        queue_worker.counts.end();
        return Made::Again(after, worker.fresh.take());
    }
    let times = Times {
        whole: since.unwrap_or(began).elapsed(),
        queued: since.map(|since| began - since),
        below: server.filesystem.time_below().saturating_sub(below),
        answering: None,
    };
    let is_deferred = worker.is_deferred();
    let error = match outcome {
        Outcome::Reply { errno, .. } if !is_deferred => errno,
        _ => None,
    };
    let opcode = message.header.opcode;
    queue_worker.counts.count_done(opcode, times, error);
    tell_if_slow(&*server.filesystem, &server.dialect, message, &times, error);
    if is_deferred {
        return Made::Later(worker.fresh.take());
    }
    Made::Reply(reply_of(worker_pool, unique, outcome))
}

fn reply_of(worker_pool: &RingWorkerPool, unique: u64, outcome: Outcome<'_>) -> Reply {
    let server = &worker_pool.server;
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
pub(super) fn try_nowait(
    worker_pool: &Arc<RingWorkerPool>,
    queue_worker: &Arc<QueueWorker>,
    message: &Message<'_>,
    out: &mut [u8],
) -> Option<usize> {
    let server = &worker_pool.server;
    let worker = RingWorker::new(worker_pool, queue_worker);
    let len = in_sight(worker_pool, queue_worker, message, &worker, |worker| {
        dispatch_nowait(&*server.filesystem, &server.dialect, message, out, worker)
    })?;
    queue_worker.counts.count(message.header.opcode);
    Some(len)
}

/// Works on a request where others can see it, and find the thread should that take long.
fn in_sight<T>(
    worker_pool: &Arc<RingWorkerPool>,
    queue_worker: &Arc<QueueWorker>,
    message: &Message<'_>,
    worker: &RingWorker<'_>,
    work: impl FnOnce(&RingWorker<'_>) -> T,
) -> T {
    if is_about_a_file(message.header.opcode) {
        queue_worker
            .file
            .store(message.header.nodeid, Ordering::Relaxed);
    }
    queue_worker.note_asker(message.header.uid, message.header.pid);
    queue_worker
        .caller
        .store(caller::of(&message.header), Ordering::Relaxed);
    queue_worker.enter(message.header.unique);
    worker_pool.watchdog.note_work();
    if queue_worker.of_share.load(Ordering::Relaxed) {
        // Its end lets the next one go.
        queue_worker.of_share.store(false, Ordering::Relaxed);
        worker_pool.hand_off(queue_worker, queue_worker.word());
    }
    let made = work(worker);
    if !queue_worker.leave() {
        worker_pool.return_worker(queue_worker);
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
    worker_pool: &'a Arc<RingWorkerPool>,
    queue_worker: &'a Arc<QueueWorker>,
    asked: Cell<bool>,
    /// Unless the request must be answered by its thread.
    asker: Option<Asker>,
    later: Cell<Later>,
    /// What the thread goes on with.
    fresh: RefCell<Option<RingEntry>>,
}

impl<'a> RingWorker<'a> {
    pub(super) fn new(
        worker_pool: &'a Arc<RingWorkerPool>,
        queue_worker: &'a Arc<QueueWorker>,
    ) -> Self {
        Self {
            worker_pool,
            queue_worker,
            asked: Cell::new(false),
            asker: None,
            later: Cell::new(Later::No),
            fresh: RefCell::new(None),
        }
    }

    /// What a thread goes on with that has an entry wait; none where it needs nothing.
    pub(super) fn go_on_without(
        worker_pool: &'a Arc<RingWorkerPool>,
        queue_worker: &'a Arc<QueueWorker>,
        has_others: bool,
    ) -> Result<Option<RingEntry>, Errno> {
        let worker = Self::new(worker_pool, queue_worker);
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
        if !keeper::is_there(self.worker_pool) {
            return Err(Errno::NOSYS);
        }
        let queue = self.queue_worker.queue;
        if asker.has_others || self.worker_pool.late.serves(queue) || self.fresh.borrow().is_some()
        {
            return Ok(());
        }
        // Without memory for one more entry the request cannot wait.
        let entry = self
            .worker_pool
            .resources
            .further_entry(queue)
            .map_err(|_| Errno::NOLCK)?;
        self.fresh.replace(Some(entry));
        Ok(())
    }
}

impl Worker for RingWorker<'_> {
    fn may_block(&self) {
        if self.asked.replace(true) {
            return;
        }
        self.queue_worker.set_may_block();
        self.worker_pool
            .hand_off(self.queue_worker, self.queue_worker.word());
    }

    fn interrupted(&self) -> bool {
        self.queue_worker.is_interrupted()
    }

    fn defer(&self) -> Result<Deferred, Errno> {
        let (Some(asker), Later::No) = (&self.asker, self.later.get()) else {
            return Err(Errno::NOSYS);
        };
        self.provide(asker)?;
        self.worker_pool.late.begin(asker.unique, asker.uid)?;
        self.later.set(Later::Answered);
        Ok(Deferred::new(asker.unique, self.worker_pool.late.clone()))
    }

    fn again(&self, after: Duration, at_most: Duration) -> bool {
        let Some(asker) = &self.asker else {
            return false;
        };
        if matches!(self.later.get(), Later::Answered) || self.provide(asker).is_err() {
            return false;
        }
        let may = (self.worker_pool.late).may_try_again(asker.unique, asker.uid, at_most);
        if may {
            self.later.set(Later::Again(after));
        }
        may
    }

    fn is_deferred(&self) -> bool {
        !matches!(self.later.get(), Later::No)
    }
}
