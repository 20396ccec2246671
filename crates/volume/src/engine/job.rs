//! One request from its message to its reply, and the transfers between.

use std::sync::Arc;

use strandfs_fuse::ring::{Ring, RingEntry};
use strandfs_fuse::{DecodeError, Errno, Link, Message, Outcome, Request, SyncScope, Worker};

use crate::backing::{Backing, lasting};
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
    /// In this round the backing file was seen to be whole, or not.
    looked: bool,
}

/// A request that the backing file is needed for.
#[derive(Clone, Copy, Debug)]
struct Job {
    unique: u64,
    kind: JobKind,
    offset_bytes: u64,
    /// What is to be transferred, cut off at the end of the volume.
    len: usize,
    done: usize,
    /// The transfer under way goes past the page cache.
    direct: bool,
    /// What is under way is no transfer: what was written is made to last.
    syncs: bool,
}

impl Job {
    fn new(unique: u64, kind: JobKind, offset_bytes: u64, len: usize) -> Self {
        Self {
            unique,
            kind,
            offset_bytes,
            len,
            done: 0,
            direct: false,
            syncs: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum JobKind {
    Read,
    /// Written as [`lasting`] says.
    Write {
        lasts: Option<SyncScope>,
    },
    Sync {
        scope: SyncScope,
    },
    Allocate {
        mode: u32,
        len_bytes: u64,
    },
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
            looked: false,
        }
    }

    /// Requests have come, transfers have ended or an answer went out: what was seen before is to be
    /// seen again.
    pub(super) fn begin_round(&mut self) {
        self.looked = false;
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
        if is_volume(message.header.nodeid) {
            match Request::decode(message, self.link.dialect()) {
                Ok(Request::Read { args, size_bytes }) => {
                    let (at, wanted) = (args.offset_bytes, size_bytes as usize);
                    return self.transfer(unique, JobKind::Read, at, wanted);
                }
                Ok(Request::Write(args)) => {
                    let (at, wanted) = (args.offset_bytes, args.data.len());
                    let lasts = lasting(args.flags);
                    return self.transfer(unique, JobKind::Write { lasts }, at, wanted);
                }
                Ok(Request::Fsync { scope, .. }) => {
                    return Asked::Job(Job::new(unique, JobKind::Sync { scope }, 0, 0));
                }
                Ok(Request::Fallocate(args)) => {
                    let (at, len) = (args.offset_bytes, args.len_bytes);
                    return match self.backing.plan_allocation(args.mode, at, len) {
                        Err(errno) => Asked::Answered(Reply::error(unique, errno)),
                        Ok(0) => Asked::Answered(Reply::empty(unique)),
                        Ok(len_bytes) => {
                            let mode = args.mode;
                            let kind = JobKind::Allocate { mode, len_bytes };
                            Asked::Job(Job::new(unique, kind, at, 0))
                        }
                    };
                }
                _ => {}
            }
        }
        carry_out(&self.link, message, &mut self.scratch).map_or(Asked::Nothing, Asked::Answered)
    }

    /// A read or a write, cut off at the end of the volume. Before the first write of a round the
    /// file is looked at: written behind a cut, it would be as long as before, with zeros.
    fn transfer(&mut self, unique: u64, kind: JobKind, offset_bytes: u64, wanted: usize) -> Asked {
        let len = self.backing.within(offset_bytes, wanted);
        if matches!(kind, JobKind::Write { .. }) {
            if len == 0 && wanted > 0 {
                return Asked::Answered(Reply::error(unique, Errno::NOSPC));
            }
            if !std::mem::replace(&mut self.looked, true) {
                self.backing.glance();
            }
        }
        match self.backing.check_present(offset_bytes, len) {
            Err(errno) => Asked::Answered(Reply::error(unique, errno)),
            Ok(()) => Asked::Job(Job::new(unique, kind, offset_bytes, len)),
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
            JobKind::Read => self.backing.read_at(payload, offset_bytes).map(drop),
            JobKind::Write { lasts } => {
                let written = self.backing.write_at(payload, offset_bytes);
                written.and_then(|_| lasts.map_or(Ok(()), |scope| self.backing.sync(scope)))
            }
            JobKind::Sync { scope } => self.backing.sync(scope),
            JobKind::Allocate { mode, len_bytes } => {
                self.backing.allocate(mode, offset_bytes, len_bytes)
            }
        };
        finish(entry, job, outcome)
    }

    /// Starts what is left of a transfer.
    fn submit(&mut self, ring: &mut Ring, entry: RingEntry, mut job: Job) -> Outgoing {
        let (at, left) = (job.offset_bytes + job.done as u64, job.done..job.len);
        let sync = match job.kind {
            JobKind::Sync { scope } => Some(scope),
            JobKind::Write { lasts: Some(scope) } if left.is_empty() => Some(scope),
            JobKind::Read | JobKind::Write { .. } if left.is_empty() => {
                return finish(entry, job, Ok(()));
            }
            _ => None,
        };
        job.syncs = sync.is_some();
        let memory = match job.kind {
            JobKind::Read | JobKind::Write { .. } => {
                entry.parts().1.get(left.clone()).unwrap_or_default()
            }
            JobKind::Sync { .. } | JobKind::Allocate { .. } => &[],
        };
        let backing = &self.backing;
        let (file, direct) = backing.file_for(at, memory);
        job.direct = direct && !memory.is_empty();
        if let Some(place) = place(&mut self.jobs, self.queue, &entry) {
            *place = Some(job);
        }
        match (job.kind, sync) {
            (_, Some(scope)) => ring.sync_file(entry, backing.plain(), scope),
            (JobKind::Allocate { mode, len_bytes }, None) => {
                ring.allocate_file(entry, backing.plain(), mode.cast_signed(), at, len_bytes);
            }
            (JobKind::Read, None) => ring.read_file(entry, file, at, left),
            (JobKind::Write { .. } | JobKind::Sync { .. }, None) => {
                ring.write_file(entry, file, at, left);
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
            Err(Errno::INTR | Errno::AGAIN) => return self.submit(ring, entry, job),
            outcome if job.syncs => {
                let outcome = self.backing.flushed(outcome.map(drop));
                return finish(entry, job, outcome);
            }
            Ok(count) => count,
            Err(Errno::INVAL) if job.direct => {
                self.backing.leave_direct();
                return self.submit(ring, entry, job);
            }
            Err(errno) => return finish(entry, job, Err(errno)),
        };
        match job.kind {
            JobKind::Sync { .. } | JobKind::Allocate { .. } => return finish(entry, job, Ok(())),
            JobKind::Read if count == 0 => {
                return finish(entry, job, Err(self.backing.cut_short()));
            }
            JobKind::Write { .. } if count == 0 => return finish(entry, job, Err(Errno::IO)),
            JobKind::Read | JobKind::Write { .. } => {}
        }
        job.done += count;
        self.submit(ring, entry, job)
    }
}

/// Has the filesystem carry `message` out; the reply's data are at the start of `out`. `None` where
/// the kernel wants no reply.
pub(super) fn carry_out(link: &Link, message: &Message<'_>, out: &mut [u8]) -> Option<Reply> {
    let unique = message.header.unique;
    match link.dispatch(message, out, &Inline) {
        Outcome::Reply { errno, len } => Some(Reply { unique, errno, len }),
        Outcome::NotForFilesystem(Request::Destroy) => Some(Reply::empty(unique)),
        // Nothing here takes long enough to be interrupted, and no notification is sent.
        Outcome::NoReply
        | Outcome::NotForFilesystem(Request::Interrupt { .. } | Request::NotifyReply { .. }) => {
            None
        }
        Outcome::NotForFilesystem(_) => Some(Reply::error(unique, Errno::IO)),
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
        JobKind::Read => job.len,
        JobKind::Write { .. } => {
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
        JobKind::Sync { .. } | JobKind::Allocate { .. } => 0,
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
