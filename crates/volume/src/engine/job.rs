//! One request from its message to its reply, and the transfers between.

use std::sync::Arc;

use strandfs_fuse::ring::{Ring, RingEntry};
use strandfs_fuse::{DecodeError, Errno, Link, Message, Outcome, Request, Worker};

use crate::backing::Backing;
use crate::filesystem::is_volume;

/// Replies other than data: attributes, names, a listing.
const SCRATCH_BYTES: usize = 128 << 10;
/// `struct fuse_write_out`: the count, and as many bytes of nothing.
const WRITE_OUT_BYTES: usize = 8;

/// What a thread of the engine works with.
pub(super) struct Desk {
    link: Link,
    backing: Arc<Backing>,
    /// Transfers may have to wait for a device.
    waits: bool,
    /// The queue whose entries have tags of their own.
    queue: u16,
    /// By the tag of the entry that holds the request: those of the queue, then all others.
    jobs: [Vec<Option<Job>>; 2],
    scratch: Vec<u8>,
}

/// A request that the backing file is needed for.
#[derive(Clone, Copy, Debug)]
struct Job {
    unique: u64,
    kind: Kind,
    offset_bytes: u64,
    /// What is to be transferred, cut off at the end of the volume.
    len: usize,
    done: usize,
    /// The transfer under way goes past the page cache.
    direct: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Sync { data_only: bool },
    Allocate { mode: u32, len_bytes: u64 },
}

/// What is to be said to the kernel: an error, or the start of the entry's payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply {
    pub(super) unique: u64,
    pub(super) errno: Option<Errno>,
    pub(super) len: usize,
}

/// What comes of a request, or of a transfer.
pub(super) enum Outgoing {
    /// Its reply is ready.
    Answer(RingEntry, Reply),
    /// The kernel wants none.
    Silence(RingEntry),
    /// A transfer is under way: the ring has the entry.
    Later,
}

/// A request's worth of patience: it is answered at once or never blocks.
struct Inline;

impl Worker for Inline {
    fn may_block(&self) {}

    fn interrupted(&self) -> bool {
        false
    }
}

/// What a message asks for.
enum Asked {
    Job(Job),
    /// The answer is in the scratch buffer.
    Answered(Reply),
    Nothing,
}

impl Desk {
    /// For entries of `queue` with tags of their own, and such of other queues.
    pub(super) fn new(link: Link, backing: Arc<Backing>, queue: u16, waits: bool) -> Self {
        let scratch = vec![0; SCRATCH_BYTES.max(link.payload_bytes())];
        Self {
            link,
            backing,
            waits,
            queue,
            jobs: Default::default(),
            scratch,
        }
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Begins with the request in `entry`, which the kernel knows as `unique`; `message` reads it.
    pub(super) fn begin(
        &mut self,
        ring: &mut Ring,
        mut entry: RingEntry,
        unique: u64,
        message: impl for<'e> Fn(&'e RingEntry) -> Result<Message<'e>, DecodeError>,
    ) -> Outgoing {
        let asked = match message(&entry) {
            Ok(message) => self.ask(&message),
            Err(error) => {
                tracing::error!(%error, "a message that cannot be read");
                return Outgoing::Answer(entry, Reply::error(unique, error.errno()));
            }
        };
        match asked {
            Asked::Nothing => Outgoing::Silence(entry),
            Asked::Answered(reply) => {
                let made = self.scratch.get(..reply.len).unwrap_or_default();
                match entry.parts_mut().1.get_mut(..made.len()) {
                    Some(room) => room.copy_from_slice(made),
                    None => return Outgoing::Answer(entry, Reply::error(reply.unique, Errno::IO)),
                }
                Outgoing::Answer(entry, reply)
            }
            Asked::Job(job) if !self.waits => self.at_once(entry, job),
            Asked::Job(job) => self.submit(ring, entry, job),
        }
    }

    fn ask(&mut self, message: &Message<'_>) -> Asked {
        let unique = message.header.unique;
        let job = |kind, offset_bytes, len| {
            Asked::Job(Job {
                unique,
                kind,
                offset_bytes,
                len,
                done: 0,
                direct: false,
            })
        };
        let within = |offset, len| self.backing.within(offset, len);
        let absent = |offset, len| self.backing.check_present(offset, len).err();
        if is_volume(message.header.nodeid) {
            match Request::decode(message, self.link.dialect()) {
                Ok(Request::Read { args, size_bytes }) => {
                    let at = args.offset_bytes;
                    let len = within(at, size_bytes as usize);
                    return match absent(at, len) {
                        Some(errno) => Asked::Answered(Reply::error(unique, errno)),
                        None => job(Kind::Read, at, len),
                    };
                }
                Ok(Request::Write(args)) => {
                    let at = args.offset_bytes;
                    let len = within(at, args.data.len());
                    if len == 0 && !args.data.is_empty() {
                        return Asked::Answered(Reply::error(unique, Errno::NOSPC));
                    }
                    return match absent(at, len) {
                        Some(errno) => Asked::Answered(Reply::error(unique, errno)),
                        None => job(Kind::Write, at, len),
                    };
                }
                Ok(Request::Fsync { data_only, .. }) => return job(Kind::Sync { data_only }, 0, 0),
                Ok(Request::Fallocate(args)) => {
                    let (at, len) = (args.offset_bytes, args.len_bytes);
                    return match self.backing.plan_allocation(args.mode, at, len) {
                        Err(errno) => Asked::Answered(Reply::error(unique, errno)),
                        Ok(0) => Asked::Answered(Reply::empty(unique)),
                        Ok(len_bytes) => {
                            let mode = args.mode;
                            job(Kind::Allocate { mode, len_bytes }, at, 0)
                        }
                    };
                }
                _ => {}
            }
        }
        let outcome = self.link.dispatch(message, &mut self.scratch, &Inline);
        match outcome {
            Outcome::Reply { errno, len } => Asked::Answered(Reply { unique, errno, len }),
            Outcome::NotForFilesystem(Request::Destroy) => Asked::Answered(Reply::empty(unique)),
            // Nothing here takes long enough to be interrupted, and no notification is sent.
            Outcome::NoReply
            | Outcome::NotForFilesystem(Request::Interrupt { .. } | Request::NotifyReply { .. }) => {
                Asked::Nothing
            }
            Outcome::NotForFilesystem(_) => Asked::Answered(Reply::error(unique, Errno::IO)),
        }
    }

    /// Without waiting, or waiting for it.
    fn at_once(&self, mut entry: RingEntry, job: Job) -> Outgoing {
        let Job {
            offset_bytes, len, ..
        } = job;
        let payload = entry.parts_mut().1;
        let payload = payload.get_mut(..len).unwrap_or_default();
        let outcome = match job.kind {
            Kind::Read => self.backing.read_at(payload, offset_bytes).map(drop),
            Kind::Write => self.backing.write_at(payload, offset_bytes).map(drop),
            Kind::Sync { data_only } => self.backing.sync(data_only),
            Kind::Allocate { mode, len_bytes } => {
                self.backing.allocate(mode, offset_bytes, len_bytes)
            }
        };
        finish(entry, job, outcome)
    }

    /// Starts what is left of a transfer.
    fn submit(&mut self, ring: &mut Ring, entry: RingEntry, mut job: Job) -> Outgoing {
        let (at, left) = (job.offset_bytes + job.done as u64, job.done..job.len);
        let memory = match job.kind {
            Kind::Read | Kind::Write if left.is_empty() => return finish(entry, job, Ok(())),
            Kind::Read | Kind::Write => entry.parts().1.get(left.clone()).unwrap_or_default(),
            Kind::Sync { .. } | Kind::Allocate { .. } => &[],
        };
        let backing = &self.backing;
        let (file, direct) = backing.file_for(at, memory);
        job.direct = direct && !memory.is_empty();
        if let Some(place) = place(&mut self.jobs, self.queue, &entry) {
            *place = Some(job);
        }
        match job.kind {
            Kind::Read => ring.read_file(entry, file, at, left),
            Kind::Write => ring.write_file(entry, file, at, left),
            Kind::Sync { data_only } => ring.sync_file(entry, backing.plain(), data_only),
            Kind::Allocate { mode, len_bytes } => {
                ring.allocate_file(entry, backing.plain(), mode.cast_signed(), at, len_bytes);
            }
        }
        Outgoing::Later
    }

    /// A transfer is over.
    pub(super) fn go_on(
        &mut self,
        ring: &mut Ring,
        entry: RingEntry,
        outcome: Result<usize, Errno>,
    ) -> Outgoing {
        let job = place(&mut self.jobs, self.queue, &entry).and_then(Option::take);
        let Some(mut job) = job else {
            tracing::error!(tag = entry.tag(), "a transfer of no request");
            return Outgoing::Silence(entry);
        };
        let count = match outcome {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => return self.submit(ring, entry, job),
            Err(Errno::INVAL) if job.direct => {
                self.backing.leave_direct();
                return self.submit(ring, entry, job);
            }
            Err(errno) if matches!(job.kind, Kind::Sync { .. }) => {
                let outcome = self.backing.flushed(Err(errno));
                return finish(entry, job, outcome);
            }
            Err(errno) => return finish(entry, job, Err(errno)),
        };
        match job.kind {
            Kind::Sync { .. } => {
                let outcome = self.backing.flushed(Ok(()));
                return finish(entry, job, outcome);
            }
            Kind::Allocate { .. } => return finish(entry, job, Ok(())),
            Kind::Read if count == 0 => {
                return finish(entry, job, Err(self.backing.cut_short()));
            }
            Kind::Write if count == 0 => return finish(entry, job, Err(Errno::IO)),
            Kind::Read | Kind::Write => {}
        }
        job.done += count;
        self.submit(ring, entry, job)
    }
}

/// Where the job of the request in `entry` is kept.
fn place<'j>(
    [own, others]: &'j mut [Vec<Option<Job>>; 2],
    queue: u16,
    entry: &RingEntry,
) -> Option<&'j mut Option<Job>> {
    let jobs = if entry.queue() == queue { own } else { others };
    if jobs.len() <= entry.tag() {
        jobs.resize(entry.tag() + 1, None);
    }
    jobs.get_mut(entry.tag())
}

/// Makes the reply. A write that failed half-way has failed: a loop device takes a short write
/// for a whole one.
fn finish(mut entry: RingEntry, job: Job, outcome: Result<(), Errno>) -> Outgoing {
    if let Err(errno) = outcome {
        return Outgoing::Answer(entry, Reply::error(job.unique, errno));
    }
    let len = match job.kind {
        Kind::Read => job.len,
        Kind::Write => {
            let count = u32::try_from(job.len).unwrap_or(u32::MAX);
            let mut out = [0; WRITE_OUT_BYTES];
            for (to, from) in out.iter_mut().zip(count.to_ne_bytes()) {
                *to = from;
            }
            if let Some(room) = entry.parts_mut().1.first_chunk_mut() {
                *room = out;
            }
            WRITE_OUT_BYTES
        }
        Kind::Sync { .. } | Kind::Allocate { .. } => 0,
    };
    let reply = Reply {
        unique: job.unique,
        errno: None,
        len,
    };
    Outgoing::Answer(entry, reply)
}

impl Reply {
    fn empty(unique: u64) -> Self {
        Self {
            unique,
            errno: None,
            len: 0,
        }
    }

    pub(super) fn error(unique: u64, errno: Errno) -> Self {
        Self {
            errno: Some(errno),
            ..Self::empty(unique)
        }
    }
}
