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
use crate::abi::{InHeader, Opcode};
use crate::dispatch::{Outcome, dispatch};
use crate::filesystem::Worker;
use crate::message::Message;
use crate::request::Request;
use crate::sys::{self, PageMemory};
use crate::types::Errno;

/// What is as long as this is no name and no attribute, and is not copied.
const SCRATCH_BYTES: usize = 128 << 10;
/// Buffers that were filled further than this give memory back after a while.
const SMALL_BYTES: usize = 64 << 10;
/// How long that while is.
const IDLE: Duration = Duration::from_secs(10);
/// Entries the kernel may throw back one after the other before that ends the mount.
const MOST_LOST: u32 = 16;

/// What a thread starts with.
pub(super) enum Begin {
    /// A request to answer.
    Answer(RingEntry),
    /// An entry to offer, to a queue where requests may wait.
    Offer(RingEntry),
    /// What it should have is gone.
    Nothing,
}

/// Room for the smaller of a request and its reply, which share the entry's payload buffer.
pub(super) struct Scratch(PageMemory);

impl Scratch {
    pub(super) fn new() -> Result<Self, Errno> {
        PageMemory::new(SCRATCH_BYTES).map(Self)
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
}

impl Serving<'_> {
    /// Until the connection ends, which the error says.
    fn serve(&mut self, begin: Begin) -> Result<(), Errno> {
        self.ring.start()?;
        match begin {
            Begin::Answer(entry) => self.answer(entry),
            Begin::Offer(entry) => self.offer(entry)?,
            Begin::Nothing => return Ok(()),
        }
        loop {
            let patience = self.filled.then_some(IDLE);
            match self.ring.wait(patience) {
                Ok(()) => {}
                Err(Errno::INTR) if !self.crew.life.has_ended() => {}
                Err(Errno::TIME) => {
                    self.ring.trim();
                    self.scratch.0.discard(0);
                    self.filled = false;
                }
                Err(errno) => return Err(errno),
            }
            while let Some(completion) = self.ring.next() {
                match completion {
                    Completion::Request(entry) => {
                        self.lost = 0;
                        self.answer(entry);
                    }
                    Completion::Lost(entry, errno) => self.recover(entry, errno)?,
                    Completion::Transferred(..) => {}
                }
            }
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

    /// Carries one request out and makes its entry the reply.
    fn answer(&mut self, mut entry: RingEntry) {
        let reply = self.carry_out(&mut entry);
        entry.set_reply(reply.unique, reply.errno, reply.len);
        self.ring.commit(entry);
    }

    fn carry_out(&mut self, entry: &mut RingEntry) -> Reply {
        let &mut Serving { crew, post, .. } = self;
        let (headers, payload) = entry.parts_mut();
        let Ok((header, _)) = InHeader::read_from_prefix(&headers.in_out) else {
            return Reply::error(0, Errno::IO);
        };
        let unique = header.unique;
        let scratch = self.scratch.0.bytes_mut();
        let sent = payload
            .len()
            .min(headers.ring_ent_in_out.payload_sz as usize);
        // Data stays where it is; names make room for the reply.
        let stays = header.opcode == Opcode::Write as u32 || sent > scratch.len();
        let (data, out): (&[u8], &mut [u8]) = if stays {
            (payload, scratch)
        } else {
            if let (Some(copy), Some(name)) = (scratch.get_mut(..sent), payload.get(..sent)) {
                copy.copy_from_slice(name);
            }
            (scratch, payload)
        };
        let reply = match Message::from_ring(headers, data) {
            Ok(message) => carry_out(crew, post, &message, out),
            Err(error) => {
                tracing::error!(%error, "a message that cannot be read");
                Reply::error(unique, error.errno())
            }
        };
        self.last = reply.errno.is_none().then_some(header);
        self.filled |= sent.max(reply.len) > SMALL_BYTES;
        if stays {
            let (_, payload) = entry.parts_mut();
            let made = self.scratch.0.bytes().get(..reply.len).unwrap_or_default();
            if let Some(room) = payload.get_mut(..made.len()) {
                room.copy_from_slice(made);
            }
        }
        reply
    }
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
