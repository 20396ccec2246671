//! A thread of a queue: answer, fetch the next request, carry it out.

mod carry_out;
mod nowait;
mod put_aside;

use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::FromBytes;

use super::super::undo;
use super::batch::{self, Trial};
use super::entry::RingEntry;
use super::late::Parked;
use super::queue::{Completion, Ring};
use super::queue_worker::QueueWorker;
use super::unpinned::{Backlog, Verdict};
use super::worker_pool::RingWorkerPool;
use super::{ending, idle, interrupt, kick, reclaimed};
use crate::abi::{InHeader, Opcode, ReadIn, UringReqHeader};
use crate::message::Message;
use crate::sys::{self, PageMemory};
use crate::types::Errno;
use carry_out::{Made, Reply, RingWorker, carry_out};

/// Requests and replies up to this are copied out of the entry and into it: any name and any
/// attribute, and data the kernel reads ahead. What is longer would take longer to copy than the
/// system call that is saved, but then nobody can answer in the thread's place.
const HALF_BYTES: usize = 128 << 10;
/// How long a thread that has moved more than that keeps the memory it filled.
const IDLE: Duration = Duration::from_secs(10);
/// Entries the kernel may throw back one after the other before that ends the mount.
const MOST_LOST: u32 = 4 * batch::ENTRIES;

/// What a thread starts with.
pub(super) enum Begin {
    /// A request to answer.
    Answer(RingEntry),
    /// The same, of a thread that must not block.
    TakeOver(RingEntry),
    /// An entry to offer, to a queue where requests may wait.
    Offer(RingEntry),
    /// A reply to send, in the place of another thread.
    Send(RingEntry),
    /// What it should have is gone.
    Nothing,
}

/// Room for a request and its reply.
pub(super) struct Scratch(PageMemory);

impl Scratch {
    pub(super) fn new() -> Result<Self, Errno> {
        PageMemory::new(2 * HALF_BYTES).map(Self)
    }
}

/// The life of a thread.
pub(super) fn work(
    worker_pool: &Arc<RingWorkerPool>,
    queue_worker: &Arc<QueueWorker>,
    ring: Ring,
    begin: Option<Begin>,
    scratch: Scratch,
) {
    queue_worker.take();
    let departure = Departure {
        worker_pool,
        queue_worker,
    };
    if let Err(errno) = sys::allow_wake_signal() {
        tracing::debug!(%errno, "unblocking the wake signal");
    }
    worker_pool.pinning.settle(queue_worker);
    queue_worker.become_reader();
    let mut serving = Serving {
        worker_pool,
        queue_worker,
        ring,
        scratch,
        filled: false,
        lost: 0,
        backlog: worker_pool.pinning.may_be_unpinned().then(Backlog::default),
        trial: Trial::default(),
        looks: false,
        foreign: false,
        goes_on: false,
    };
    if let Err(errno) = serving.serve(begin.unwrap_or(Begin::Nothing)) {
        ending::end(worker_pool, errno);
    }
    serving.leave_reclaimed();
    drop(serving);
    drop(departure);
}

/// Takes the thread off its queue, however it ends.
struct Departure<'a> {
    worker_pool: &'a RingWorkerPool,
    queue_worker: &'a Arc<QueueWorker>,
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        ending::retire(self.worker_pool, self.queue_worker);
    }
}

struct Serving<'a> {
    worker_pool: &'a Arc<RingWorkerPool>,
    queue_worker: &'a Arc<QueueWorker>,
    ring: Ring,
    scratch: Scratch,
    /// The buffers hold more memory than they should keep.
    filled: bool,
    /// Entries lost since the last request.
    lost: u32,
    /// Unless the thread is to stay where it is.
    backlog: Option<Backlog>,
    trial: Trial,
    /// It has said that it will look for returned entries before it waits.
    looks: bool,
    /// The entry of the request it works on is the keeper's.
    foreign: bool,
    /// It has no entry because its last request waits, and takes another one.
    goes_on: bool,
}

impl Serving<'_> {
    /// Until the connection ends, which the error says.
    fn serve(&mut self, begin: Begin) -> Result<(), Errno> {
        self.ring.start()?;
        let mut begin = begin;
        loop {
            match begin {
                Begin::Answer(entry) => self.answer(entry)?,
                Begin::TakeOver(entry) => self.answer_here(entry)?,
                Begin::Send(entry) => self.ring.commit(entry),
                Begin::Offer(entry) => self.offer(entry)?,
                Begin::Nothing => return Ok(()),
            }
            self.serve_entries()?;
            if !std::mem::take(&mut self.goes_on) {
                return Ok(());
            }
            match idle::next_entry(self.worker_pool, self.queue_worker) {
                Some(next) => begin = next,
                None => return Ok(()),
            }
        }
    }

    fn serve_entries(&mut self) -> Result<(), Errno> {
        // Ends with the connection, or when the entry has gone back.
        while self.ring.entries() > 0 {
            let is_batching = self.ring.entries() > 1;
            self.answer_stranded()?;
            if is_batching || !self.look()? {
                self.wait()?;
            }
            if !is_batching {
                self.answer_all()?;
                continue;
            }
            self.will_look();
            let requests = self.answer_all()?;
            let verdict = self.backlog.as_mut().map(|it| it.note_batch(requests));
            self.move_to(verdict);
            while let Some(entries) = self.take_reclaimed() {
                for entry in entries {
                    self.answer(entry)?;
                }
            }
        }
        Ok(())
    }

    /// Carries out what came in an entry of the keeper's, and has no thread.
    fn answer_stranded(&mut self) -> Result<(), Errno> {
        while let Some(entry) = self.worker_pool.late.take_stranded(self.queue_worker.queue) {
            self.foreign = true;
            let answered = self.answer_here(entry);
            self.foreign = false;
            answered?;
        }
        Ok(())
    }

    /// Answers what has come; how many requests that was.
    fn answer_all(&mut self) -> Result<u32, Errno> {
        self.trial.is_even();
        let mut requests = 0;
        while let Some(completion) = self.ring.next() {
            match completion {
                Completion::Request(entry) => {
                    requests += 1;
                    self.lost = 0;
                    self.answer(entry)?;
                }
                Completion::Lost(entry, errno) => self.recover(entry, errno)?,
                Completion::Transferred(..) => {}
            }
        }
        Ok(requests)
    }

    /// Answers, and sees whether the next request is there already: false if it has to be waited
    /// for, or if nobody cares to know.
    fn look(&mut self) -> Result<bool, Errno> {
        let wants = self.backlog.as_mut().is_some_and(Backlog::is_to_look);
        if !wants {
            return Ok(false);
        }
        match self.ring.submit() {
            Ok(()) => {}
            Err(Errno::INTR) if !self.worker_pool.life.has_ended() => return Ok(false),
            Err(errno) => return Err(errno),
        }
        let found = self.ring.has_completion();
        let verdict = self.backlog.as_mut().map(|backlog| backlog.note(found));
        self.move_to(verdict);
        Ok(found)
    }

    fn move_to(&self, verdict: Option<Verdict>) {
        match verdict {
            Some(Verdict::Unpinned) => {
                self.worker_pool.pinning.unsettle(self.queue_worker);
                self.worker_pool.reinforce(self.queue_worker);
            }
            Some(Verdict::Home) => self.worker_pool.pinning.settle(self.queue_worker),
            Some(Verdict::Stay) | None => {}
        }
    }

    /// Answers, and waits for the next request.
    fn wait(&mut self) -> Result<(), Errno> {
        match self.ring.wait(self.filled.then_some(IDLE)) {
            Err(Errno::INTR) if !self.worker_pool.life.has_ended() => Ok(()),
            Err(Errno::TIME) => {
                self.ring.trim();
                self.scratch.0.discard(0);
                self.filled = false;
                Ok(())
            }
            waited => waited,
        }
    }

    /// Offers a new entry and fetches what waits. EINTR does no harm: what was begun goes with the
    /// next call.
    fn offer(&mut self, entry: RingEntry) -> Result<(), Errno> {
        self.ring.register(entry);
        while let Err(errno) = self.ring.submit() {
            if errno != Errno::INTR || self.worker_pool.life.has_ended() {
                return Err(errno);
            }
        }
        kick::fetch_waiting(self.worker_pool, self.queue_worker);
        Ok(())
    }

    /// The kernel did not take a reply or an entry.
    fn recover(&mut self, mut entry: RingEntry, errno: Errno) -> Result<(), Errno> {
        match errno {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV => {
                return Err(errno);
            }
            Errno::NOENT => {
                if let Some(header) = entry.take_answered() {
                    let worker = RingWorker::new(self.worker_pool, self.queue_worker);
                    undo::undo(&self.worker_pool.server, &header, entry.parts().1, &worker);
                }
            }
            _ => {
                tracing::error!(%errno, queue = self.queue_worker.queue, "the kernel refused an entry")
            }
        }
        self.lost += 1;
        if self.lost > MOST_LOST {
            return Err(errno);
        }
        self.offer(entry)
    }

    /// Sees to it that a request is answered: by this thread, unless it must not wait.
    fn answer(&mut self, mut entry: RingEntry) -> Result<(), Errno> {
        let is_batching = self.ring.entries() > 0;
        // One that has waited for its user's share is begun as such: its end lets the next one go.
        let is_plain = !self.worker_pool.late.has_let_go();
        if is_plain && let Some(bytes) = batch::transfer_bytes(entry.parts().0) {
            if !is_batching && !self.looks {
                match reclaimed::give_back(self.worker_pool, self.queue_worker, entry) {
                    None => return Ok(()),
                    Some(kept) => entry = kept,
                }
            }
            let is_unpinned = self.backlog.as_ref().is_some_and(Backlog::is_unpinned);
            if is_batching || is_unpinned && self.trial.is_due() {
                match self.answer_nowait(entry, bytes)? {
                    None => return Ok(()),
                    Some(back) => entry = back,
                }
            }
        }
        if is_batching {
            match batch::hand_over(self.worker_pool, entry) {
                None => return Ok(()),
                Some(back) => entry = back,
            }
        }
        self.answer_here(entry)
    }

    /// Carries one request out, and answers it unless somebody else has.
    fn answer_here(&mut self, entry: RingEntry) -> Result<(), Errno> {
        let headers = *entry.parts().0;
        let Ok((header, _)) = InHeader::read_from_prefix(&headers.in_out) else {
            return Err(Errno::PROTO);
        };
        let mut entry = match self.put_aside(entry, &header)? {
            Some(entry) => entry,
            None => return Ok(()),
        };
        let since = entry.end_waiting();
        let sent = headers.ring_ent_in_out.payload_sz as usize;
        if sent > HALF_BYTES || reply_bytes(&header, &headers) > HALF_BYTES {
            self.answer_in_place(entry, &headers, &header, since);
            return Ok(());
        }
        self.answer_apart(entry, &headers, &header, (sent, since))
    }

    /// Both the request and the reply are short: the entry is left alone meanwhile.
    fn answer_apart(
        &mut self,
        entry: RingEntry,
        headers: &UringReqHeader,
        header: &InHeader,
        (sent, since): (usize, Option<Instant>),
    ) -> Result<(), Errno> {
        let &mut Serving {
            worker_pool,
            queue_worker,
            ..
        } = self;
        let (request, out) = self.scratch.0.bytes_mut().split_at_mut(HALF_BYTES);
        if let (Some(copy), Some(arrived)) = (request.get_mut(..sent), entry.parts().1.get(..sent))
        {
            copy.copy_from_slice(arrived);
        }
        *queue_worker.held.lock() = Some(entry);
        let has_others = self.foreign || self.ring.entries() > 0;
        let made = match Message::from_ring(headers, request) {
            Ok(message) => {
                let may_wait = Some(has_others);
                carry_out(worker_pool, queue_worker, &message, out, may_wait, since)
            }
            Err(error) => Made::Reply(Reply::unreadable(header, &error)),
        };
        let held = queue_worker.held.lock().take();
        let Some(mut entry) = held else {
            match made {
                Made::Reply(reply) if reply.errno.is_none() => {
                    let worker = RingWorker::new(worker_pool, queue_worker);
                    undo::undo(&worker_pool.server, header, out, &worker);
                }
                Made::Reply(_) => {}
                Made::Later(_) | Made::Again(..) => worker_pool.late.forget(header.unique),
            }
            return match self.foreign {
                true => Ok(()),
                false => self.begin_anew(),
            };
        };
        let reply = match made {
            Made::Reply(reply) => reply,
            Made::Later(fresh) => return self.leave(entry, header, fresh),
            Made::Again(after, fresh) => {
                return self.leave_for(entry, header, after, fresh);
            }
        };
        worker_pool.late.is_over(header.unique);
        let (_, payload) = entry.parts_mut();
        if let (Some(room), Some(made)) = (payload.get_mut(..reply.len), out.get(..reply.len)) {
            room.copy_from_slice(made);
        }
        self.send(entry, header, &reply);
        Ok(())
    }

    /// Data stays where it is: what it is read into, or written from, is the entry's payload.
    fn answer_in_place(
        &mut self,
        mut entry: RingEntry,
        headers: &UringReqHeader,
        header: &InHeader,
        since: Option<Instant>,
    ) {
        let &mut Serving {
            worker_pool,
            queue_worker,
            ..
        } = self;
        self.filled = true;
        let (_, payload) = entry.parts_mut();
        let scratch = self.scratch.0.bytes_mut();
        let sent = headers.ring_ent_in_out.payload_sz as usize;
        let is_long = sent > HALF_BYTES;
        let (data, out): (&[u8], &mut [u8]) = if is_long {
            (payload, scratch)
        } else {
            if let (Some(copy), Some(arrived)) = (scratch.get_mut(..sent), payload.get(..sent)) {
                copy.copy_from_slice(arrived);
            }
            (scratch, payload)
        };
        let made = match Message::from_ring(headers, data) {
            Ok(message) => carry_out(worker_pool, queue_worker, &message, out, None, since),
            Err(error) => Made::Reply(Reply::unreadable(header, &error)),
        };
        let Made::Reply(reply) = made else {
            // It was not allowed to wait.
            return;
        };
        if is_long {
            let made = self.scratch.0.bytes().get(..reply.len).unwrap_or_default();
            let (_, payload) = entry.parts_mut();
            if let Some(room) = payload.get_mut(..made.len()) {
                room.copy_from_slice(made);
            }
        }
        self.send(entry, header, &reply);
    }

    fn send(&mut self, mut entry: RingEntry, header: &InHeader, reply: &Reply) {
        entry.set_answered(reply.errno.is_none().then_some(*header));
        entry.set_reply(reply.unique, reply.errno, reply.len);
        match self.foreign {
            true => self.worker_pool.late.give_back(entry),
            false => self.ring.commit(entry),
        }
    }

    /// Leaves a request to who answers it.
    fn leave(
        &mut self,
        entry: RingEntry,
        header: &InHeader,
        fresh: Option<RingEntry>,
    ) -> Result<(), Errno> {
        let unique = header.unique;
        match self.worker_pool.late.park(unique, entry) {
            Parked::Reply(entry, result) => {
                let reply = Reply::later(unique, result);
                self.send(entry, header, &reply);
                return Ok(());
            }
            Parked::Kept => {}
        }
        // An interrupt that found the thread at it, where it is no more.
        if interrupt::was_interrupted(self.worker_pool, self.queue_worker, unique) {
            self.worker_pool.server.filesystem.interrupt(unique);
        }
        self.go_on(fresh)
    }

    /// Leaves a request to be carried out again.
    fn leave_for(
        &mut self,
        entry: RingEntry,
        header: &InHeader,
        after: Duration,
        fresh: Option<RingEntry>,
    ) -> Result<(), Errno> {
        let (worker_pool, unique) = (self.worker_pool, header.unique);
        worker_pool.late.park_for(unique, header.uid, entry, after);
        if interrupt::was_interrupted(worker_pool, self.queue_worker, unique) {
            worker_pool.late.interrupt(unique);
        }
        self.go_on(fresh)
    }

    /// What a thread does whose request waits.
    fn go_on(&mut self, fresh: Option<RingEntry>) -> Result<(), Errno> {
        match fresh {
            Some(entry) => self.offer(entry),
            None => {
                self.goes_on = !self.foreign && self.ring.entries() == 0;
                Ok(())
            }
        }
    }

    /// Somebody has answered in this thread's place, with its entry.
    fn begin_anew(&mut self) -> Result<(), Errno> {
        match self
            .worker_pool
            .resources
            .further_entry(self.queue_worker.queue)
        {
            Ok(entry) => self.offer(entry),
            Err(errno) => {
                tracing::warn!(%errno, queue = self.queue_worker.queue, "a thread ends for want of memory");
                Err(Errno::CANCELED)
            }
        }
    }
}

/// The longest reply to this request, as far as it may be long.
fn reply_bytes(header: &InHeader, headers: &UringReqHeader) -> usize {
    const LISTS: [Opcode; 3] = [Opcode::Read, Opcode::Readdir, Opcode::Readdirplus];
    if !LISTS.iter().any(|list| *list as u32 == header.opcode) {
        return 0;
    }
    ReadIn::read_from_prefix(&headers.op_in).map_or(usize::MAX, |(read, _)| read.size as usize)
}
