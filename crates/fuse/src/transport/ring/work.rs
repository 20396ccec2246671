//! A thread of a queue: answer, fetch the next request, carry it out.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use zerocopy::FromBytes;

use super::super::undo;
use super::crew::RingCrew;
use super::entry::RingEntry;
use super::post::Post;
use super::queue::{Completion, Ring};
use super::roam::{Backlog, Verdict};
use crate::abi::{InHeader, Opcode, ReadIn, UringReqHeader};
use crate::dispatch::{Outcome, dispatch};
use crate::filesystem::Worker;
use crate::message::{DecodeError, Message};
use crate::request::Request;
use crate::sys::{self, PageMemory};
use crate::types::Errno;

/// Requests and replies up to this are copied out of the entry and into it: any name and any
/// attribute, and data the kernel reads ahead. What is longer would take longer to copy than the
/// system call that is saved, but then nobody can answer in the thread's place.
const HALF_BYTES: usize = 128 << 10;
/// How long a thread that has moved more than that keeps the memory it filled.
const IDLE: Duration = Duration::from_secs(10);
/// Entries the kernel may throw back one after the other before that ends the mount.
const MOST_LOST: u32 = 16;

/// What a thread starts with.
pub(super) enum Begin {
    /// A request to answer.
    Answer(RingEntry),
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
    crew: &Arc<RingCrew>,
    post: &Arc<Post>,
    ring: Ring,
    begin: Option<Begin>,
    scratch: Scratch,
) {
    post.take();
    let departure = Departure { crew, post };
    if let Err(errno) = sys::allow_wake_signal() {
        tracing::debug!(%errno, "unblocking the wake signal");
    }
    crew.settle(post);
    post.become_reader();
    let mut serving = Serving {
        crew,
        post,
        ring,
        scratch,
        last: None,
        filled: false,
        lost: 0,
        backlog: crew.may_roam().then(Backlog::default),
    };
    if let Err(errno) = serving.serve(begin.unwrap_or(Begin::Nothing)) {
        crew.end(errno);
    }
    drop(serving);
    drop(departure);
}

/// Takes the thread off its queue, however it ends.
struct Departure<'a> {
    crew: &'a RingCrew,
    post: &'a Arc<Post>,
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        self.crew.retire(self.post);
    }
}

struct Serving<'a> {
    crew: &'a Arc<RingCrew>,
    post: &'a Arc<Post>,
    ring: Ring,
    scratch: Scratch,
    /// The request answered last, if its reply gave the kernel something.
    last: Option<InHeader>,
    /// The buffers hold more memory than they should keep.
    filled: bool,
    /// Entries lost since the last request.
    lost: u32,
    /// Unless the thread is to stay where it is.
    backlog: Option<Backlog>,
}

impl Serving<'_> {
    /// Until the connection ends, which the error says.
    fn serve(&mut self, begin: Begin) -> Result<(), Errno> {
        self.ring.start()?;
        match begin {
            Begin::Answer(entry) => self.answer(entry)?,
            Begin::Send(entry) => self.ring.commit(entry),
            Begin::Offer(entry) => self.offer(entry)?,
            Begin::Nothing => return Ok(()),
        }
        loop {
            if !self.look()? {
                self.wait()?;
            }
            while let Some(completion) = self.ring.next() {
                match completion {
                    Completion::Request(entry) => {
                        self.lost = 0;
                        self.answer(entry)?;
                    }
                    Completion::Lost(entry, errno) => self.recover(entry, errno)?,
                    Completion::Transferred(..) => {}
                }
            }
        }
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
            Err(Errno::INTR) if !self.crew.life.has_ended() => return Ok(false),
            Err(errno) => return Err(errno),
        }
        let found = self.ring.has_completion();
        match self.backlog.as_mut().map(|backlog| backlog.note(found)) {
            Some(Verdict::Roam) => {
                self.crew.unsettle(self.post);
                self.crew.reinforce(self.post);
            }
            Some(Verdict::Home) => self.crew.settle(self.post),
            Some(Verdict::Stay) | None => {}
        }
        Ok(found)
    }

    /// Answers, and waits for the next request.
    fn wait(&mut self) -> Result<(), Errno> {
        match self.ring.wait(self.filled.then_some(IDLE)) {
            Err(Errno::INTR) if !self.crew.life.has_ended() => Ok(()),
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
            if errno != Errno::INTR || self.crew.life.has_ended() {
                return Err(errno);
            }
        }
        self.crew.provoke(self.post);
        Ok(())
    }

    /// The kernel did not take a reply or an entry.
    fn recover(&mut self, entry: RingEntry, errno: Errno) -> Result<(), Errno> {
        match errno {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV => {
                return Err(errno);
            }
            Errno::NOENT => {
                if let Some(header) = self.last.take() {
                    let worker = RingWorker::new(self.crew, self.post);
                    undo::undo(&self.crew.server, &header, entry.parts().1, &worker);
                }
            }
            _ => tracing::error!(%errno, queue = self.post.queue, "the kernel refused an entry"),
        }
        self.lost += 1;
        if self.lost > MOST_LOST {
            return Err(errno);
        }
        self.offer(entry)
    }

    /// Carries one request out, and answers it unless somebody else has.
    fn answer(&mut self, entry: RingEntry) -> Result<(), Errno> {
        let headers = *entry.parts().0;
        let Ok((header, _)) = InHeader::read_from_prefix(&headers.in_out) else {
            return Err(Errno::PROTO);
        };
        let sent = headers.ring_ent_in_out.payload_sz as usize;
        if sent > HALF_BYTES || reply_bytes(&header, &headers) > HALF_BYTES {
            self.answer_in_place(entry, &headers, &header);
            return Ok(());
        }
        self.answer_apart(entry, &headers, &header, sent)
    }

    /// Both the request and the reply are short: the entry is left alone meanwhile.
    fn answer_apart(
        &mut self,
        entry: RingEntry,
        headers: &UringReqHeader,
        header: &InHeader,
        sent: usize,
    ) -> Result<(), Errno> {
        let &mut Serving { crew, post, .. } = self;
        let (request, out) = self.scratch.0.bytes_mut().split_at_mut(HALF_BYTES);
        if let (Some(copy), Some(arrived)) = (request.get_mut(..sent), entry.parts().1.get(..sent))
        {
            copy.copy_from_slice(arrived);
        }
        *post.held.lock() = Some(entry);
        let reply = match Message::from_ring(headers, request) {
            Ok(message) => carry_out(crew, post, &message, out),
            Err(error) => Reply::unreadable(header, &error),
        };
        let held = post.held.lock().take();
        let Some(mut entry) = held else {
            if reply.errno.is_none() {
                let worker = RingWorker::new(crew, post);
                undo::undo(&crew.server, header, out, &worker);
            }
            return self.begin_anew();
        };
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
    ) {
        let &mut Serving { crew, post, .. } = self;
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
        let reply = match Message::from_ring(headers, data) {
            Ok(message) => carry_out(crew, post, &message, out),
            Err(error) => Reply::unreadable(header, &error),
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
        self.last = reply.errno.is_none().then_some(*header);
        entry.set_reply(reply.unique, reply.errno, reply.len);
        self.ring.commit(entry);
    }

    /// Somebody has answered in this thread's place, with its entry.
    fn begin_anew(&mut self) -> Result<(), Errno> {
        match self.crew.further_entry(self.post.queue) {
            Ok(entry) => self.offer(entry),
            Err(errno) => {
                tracing::warn!(%errno, queue = self.post.queue, "a thread ends for want of memory");
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

/// What is to be said to the kernel.
struct Reply {
    unique: u64,
    errno: Option<Errno>,
    len: usize,
}

impl Reply {
    fn error(unique: u64, errno: Errno) -> Self {
        Self {
            unique,
            errno: Some(errno),
            len: 0,
        }
    }

    fn unreadable(header: &InHeader, error: &DecodeError) -> Self {
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
fn carry_out(
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
    if is_about_a_file(message.header.opcode) {
        post.file.store(message.header.nodeid, Ordering::Relaxed);
    }
    post.enter(unique);
    crew.watchdog.note_work();
    crew.interrupt_early(post, unique);
    let worker = RingWorker::new(crew, post);
    let outcome = dispatch(&*server.filesystem, &server.dialect, message, out, &worker);
    let reply = match outcome {
        Outcome::Reply { errno, len } => Reply { unique, errno, len },
        Outcome::NotForFilesystem(Request::NotifyReply { data, .. }) => {
            server.connection.deliver_retrieval(unique, data);
            Reply::empty(unique)
        }
        // Never seen over a ring; answered all the same, for an entry has to come back.
        Outcome::NoReply | Outcome::NotForFilesystem(Request::Destroy) => Reply::empty(unique),
        Outcome::NotForFilesystem(_) => Reply::error(unique, Errno::IO),
    };
    if !post.leave() {
        crew.rejoin(post);
    }
    reply
}

/// Whether only regular files are asked for this.
fn is_about_a_file(opcode: u32) -> bool {
    const ONLY: [Opcode; 4] = [Opcode::Read, Opcode::Write, Opcode::Open, Opcode::Fsync];
    ONLY.iter().any(|only| *only as u32 == opcode)
}

/// The transport's side of a request.
struct RingWorker<'a> {
    crew: &'a Arc<RingCrew>,
    post: &'a Arc<Post>,
    asked: Cell<bool>,
}

impl<'a> RingWorker<'a> {
    fn new(crew: &'a Arc<RingCrew>, post: &'a Arc<Post>) -> Self {
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
