//! The threads of all queues: who serves which, who is away with a request that takes long.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::super::placement::{Placement, Role};
use super::super::seat::Seat;
use super::super::watchdog::Watchdog;
use super::super::{RingReport, Server, TransportReport};
use super::cpus;
use super::entry::RingEntry;
use super::headcount::{Admission, Headcount};
use super::idle::Idle;
use super::interrupt::Unmatched;
use super::late::Late;
use super::nudge::Nudges;
use super::post::Post;
use super::probe::Prepared;
use super::queue::Ring;
use super::returned::Returned;
use super::shares::Shares;
use super::work::{self, Begin, Scratch};
use super::{start, watch, wide};
use crate::session::Life;
use crate::types::{Errno, NodeId};

/// The threads of the queues and what they share.
pub(crate) struct RingCrew {
    pub(super) server: Arc<Server>,
    pub(super) life: Arc<Life>,
    pub(super) watchdog: Watchdog,
    pub(super) queues: Vec<Queue>,
    /// Requests that are to be interrupted and go on.
    pub(super) interrupts: AtomicUsize,
    pub(super) unmatched: Unmatched,
    pub(super) nudges: Arc<Nudges>,
    /// Requests that no thread is with.
    pub(super) late: Arc<Late>,
    /// Whose requests have threads away; locked after a queue.
    pub(super) shares: Shares,
    placement: Placement,
    /// Where this process was put: no thread leaves it.
    allowed: Option<CpuSet>,
    payload_bytes: usize,
    /// For the first thread of each CPU's queue, and for those whose place is kept: a request must
    /// not wait for a descriptor.
    tools: Mutex<Vec<Tools>>,
    pub(super) threads: Mutex<Headcount>,
    pub(super) departed: Condvar,
}

/// Who serves a queue. A lock of its own: what blocks on one CPU is no business of the others.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Queue {
    pub(super) state: Mutex<QueueState>,
    /// Entries on their way to a thread with several.
    pub(super) returned: Returned,
    /// How many threads it has.
    pub(super) threads: AtomicUsize,
}

/// The threads of a queue.
#[derive(Default)]
pub(super) struct QueueState {
    pub(super) posts: Vec<Arc<Post>>,
    /// Those that wait for requests or carry one out and are not away with it.
    pub(super) present: usize,
    /// Those that have no entry, because their last request waits; not present.
    pub(super) idle: Vec<Arc<Idle>>,
}

/// What a thread works with.
type Tools = (Ring, Scratch);

/// Threads of a queue where requests keep waiting.
pub(super) const CREW_OF_BACKLOG: usize = 2;

impl RingCrew {
    /// For up to `max_threads` threads, the one that starts the others included.
    pub(crate) fn new(
        server: Arc<Server>,
        life: Arc<Life>,
        mountpoint: &Path,
        prepared: &Prepared,
        max_threads: usize,
        placement: Placement,
    ) -> Result<Arc<Self>, Errno> {
        let buffer_bytes = prepared.entries.iter().map(RingEntry::bytes).sum();
        let online = cpus::online().len().min(prepared.entries.len());
        let tools = (0..online).map_while(|_| make_tools(&server).ok());
        let tools = Mutex::new(tools.collect());
        let late = Late::new(prepared.entries.len())?;
        Ok(Arc::new(Self {
            shares: Shares::new(max_threads, prepared.entries.len()),
            late,
            server,
            life,
            watchdog: Watchdog::new(),
            queues: prepared.entries.iter().map(|_| Queue::default()).collect(),
            interrupts: AtomicUsize::new(0),
            unmatched: Unmatched::default(),
            nudges: Nudges::new(mountpoint, prepared.entries.len()),
            placement,
            allowed: sched_getaffinity(None).ok(),
            payload_bytes: prepared.payload_bytes,
            tools,
            threads: Mutex::new(Headcount::new(
                prepared.entries.len(),
                max_threads,
                buffer_bytes,
            )),
            departed: Condvar::new(),
        }))
    }

    /// Starts the thread that starts the others, and the watchdog. `refused` is called, on that
    /// thread, if the kernel will not have the entries: all then goes over `/dev/fuse`.
    pub(crate) fn start(
        self: &Arc<Self>,
        prepared: Prepared,
        refused: impl FnOnce(Errno) + Send + 'static,
    ) -> io::Result<()> {
        let crew = self.clone();
        self.watchdog.start(move || watch::watch(&crew))?;
        let Prepared { ring, entries, .. } = prepared;
        let crew = self.clone();
        self.threads.lock().running += 1;
        let spawned = thread::Builder::new()
            .name("strandfs-ring".to_owned())
            .spawn(move || {
                start::start(&crew, ring, entries, refused);
                crew.depart();
            });
        spawned.map(drop).inspect_err(|_| self.depart())
    }

    /// What `status` shows.
    pub(crate) fn report(&self) {
        let buffer_bytes = self.threads.lock().buffer_bytes;
        self.server
            .connection
            .set_transport(TransportReport::Ring(RingReport {
                queues: self.queues.len(),
                buffer_bytes,
            }));
    }

    /// The threads of a queue.
    pub(super) fn queue(&self, queue: usize) -> Option<MutexGuard<'_, QueueState>> {
        Some(self.queues.get(queue)?.state.lock())
    }

    /// A further thread for a queue. What it would begin with comes back if there can be none.
    pub(super) fn recruit(
        self: &Arc<Self>,
        queue: usize,
        state: &mut QueueState,
        begin: Begin,
    ) -> Result<(), (Begin, io::Error)> {
        let first = state.posts.is_empty();
        let admission = match begin {
            _ if first => Admission::First,
            Begin::TakeOver(_) => Admission::Promised,
            Begin::Send(_) => Admission::InPlace,
            _ => Admission::Further,
        };
        let number = match self.threads.lock().admit(admission) {
            Ok(number) => number,
            Err(error) => return Err((begin, error)),
        };
        // Its memory is had first: a thread that has to give up would be no help.
        let had = match admission {
            Admission::First | Admission::Promised => self.tools.lock().pop(),
            Admission::Further | Admission::InPlace => None,
        };
        let (ring, scratch) = match had.map_or_else(|| make_tools(&self.server), Ok) {
            Ok(tools) => tools,
            Err(errno) => {
                self.depart();
                return Err((begin, errno.into()));
            }
        };
        let counts = self.server.connection.counter().join();
        let post = Arc::new(Post::new(queue, number, counts));
        let handed = Arc::new(Mutex::new(Some(begin)));
        let spawned = thread::Builder::new()
            .name("strandfs-io".to_owned())
            .spawn({
                let (crew, post, handed) = (self.clone(), post.clone(), handed.clone());
                move || {
                    let begin = handed.lock().take();
                    work::work(&crew, &post, ring, begin, scratch);
                }
            });
        if let Err(error) = spawned {
            self.server.connection.counter().leave(&post.counts);
            self.depart();
            let begin = handed.lock().take();
            return Err((begin.unwrap_or(Begin::Nothing), error));
        }
        state.posts.push(post);
        state.present += 1;
        self.note_threads(queue, state);
        Ok(())
    }

    /// The threads of a queue are more or fewer.
    pub(super) fn note_threads(&self, queue: usize, state: &QueueState) {
        if let Some(queue) = self.queues.get(queue) {
            queue.threads.store(state.posts.len(), Ordering::Relaxed);
        }
    }

    /// Has what a further thread works with ready.
    pub(super) fn lay_out_tools(&self) -> Result<(), Errno> {
        let tools = make_tools(&self.server)?;
        self.tools.lock().push(tools);
        Ok(())
    }

    /// An entry for a queue that needs one more.
    pub(super) fn further_entry(&self, queue: usize) -> Result<RingEntry, Errno> {
        let queue = u16::try_from(queue).map_err(|_| Errno::RANGE)?;
        let entry = RingEntry::new(queue, self.payload_bytes)?;
        self.threads.lock().buffer_bytes += entry.bytes();
        self.report();
        Ok(entry)
    }

    /// An entry that was not needed after all.
    pub(super) fn drop_entry(&self, entry: RingEntry) {
        self.threads.lock().buffer_bytes -= entry.bytes();
        self.report();
    }

    /// A second thread for a queue whose callers are faster than one. They share a CPU, so two are
    /// enough for any number of them.
    pub(super) fn reinforce(self: &Arc<Self>, post: &Post) {
        let Some(mut state) = self.queue(post.queue) else {
            return;
        };
        if state.posts.len() >= CREW_OF_BACKLOG {
            return;
        }
        if let Err(error) = self.recruit_to_offer(post.queue, &mut state) {
            tracing::debug!(%error, queue = post.queue, "one thread has to do");
        }
    }

    /// A further thread with an entry of its own.
    fn recruit_to_offer(self: &Arc<Self>, queue: usize, state: &mut QueueState) -> io::Result<()> {
        let entry = self.further_entry(queue)?;
        let bytes = entry.bytes();
        if let Err((_, error)) = self.recruit(queue, state, Begin::Offer(entry)) {
            self.threads.lock().buffer_bytes -= bytes;
            self.report();
            return Err(error);
        }
        Ok(())
    }

    /// Counts a thread as away while the request of `word` runs on it, and sees to it that the
    /// queue is served. False if that request is over.
    pub(super) fn relieve(self: &Arc<Self>, post: &Arc<Post>, word: u64) -> bool {
        let Some(mut state) = self.queue(post.queue) else {
            return false;
        };
        self.relieve_in(&mut state, post, word)
    }

    /// The same, with the queue's lock held.
    pub(super) fn relieve_in(
        self: &Arc<Self>,
        state: &mut QueueState,
        post: &Arc<Post>,
        word: u64,
    ) -> bool {
        if !post.relieve(word) {
            return false;
        }
        state.present = state.present.saturating_sub(1);
        self.shares.note_blocked(post);
        self.put(post, Role::Working);
        self.server.connection.counter().count_relief();
        if state.present > 0 || self.life.has_ended() {
            return true;
        }
        if let Err(error) = self.recruit_to_offer(post.queue, state) {
            // The first of its threads that is done goes on with what waits.
            tracing::warn!(%error, queue = post.queue, "no further thread for a queue");
        }
        true
    }

    /// A thread that was away is done with its request.
    pub(super) fn rejoin(&self, post: &Arc<Post>) {
        let Some(mut state) = self.queue(post.queue) else {
            return;
        };
        if post.finish_relieved() {
            self.interrupts.fetch_sub(1, Ordering::Relaxed);
        }
        self.note_unblocked(post);
        state.present += 1;
        post.become_reader();
        self.put(post, Role::Reading);
    }

    /// Answers the request that a thread is away with, in its place: a further thread sends the
    /// reply, for the entry's next request comes to whoever did. False if there is none, if the
    /// data is moved within the entry itself, or if there is no room for a thread.
    pub(crate) fn answer_for(self: &Arc<Self>, thread: u32, errno: Errno) -> bool {
        for queue in 0..self.queues.len() {
            let Some(mut state) = self.queue(queue) else {
                break;
            };
            let post = state.posts.iter().find(|post| post.is_thread(thread));
            let Some(post) = post.cloned() else {
                continue;
            };
            let unique = post.relieved_request();
            let held = post.held.lock().take_if(|_| unique != 0);
            let Some(mut entry) = held else {
                return false;
            };
            // What the kernel sent is in the thread's own copy.
            let headers = *entry.parts().0;
            entry.set_reply(unique, Some(errno), 0);
            let Err((begin, error)) = self.recruit(queue, &mut state, Begin::Send(entry)) else {
                return true;
            };
            tracing::warn!(%error, queue, "no thread to answer in another's place");
            if let Begin::Send(mut entry) = begin {
                *entry.parts_mut().0 = headers;
                *post.held.lock() = Some(entry);
            }
            return false;
        }
        false
    }

    /// Puts a thread on its queue's CPU, or where `Placement` wants it.
    pub(super) fn settle(&self, post: &Post) {
        if !self.placement.is_free() {
            return self.put(post, Role::Reading);
        }
        let allowed = self.allowed.as_ref();
        let Some(cpu) = cpus::only(post.queue)
            .filter(|_| allowed.is_none_or(|allowed| allowed.is_set(post.queue)))
        else {
            return;
        };
        // A CPU that is not there: the thread serves its queue from elsewhere.
        if let Err(errno) = sched_setaffinity(None, &cpu) {
            tracing::debug!(%errno, queue = post.queue, "a thread cannot be pinned");
        }
    }

    /// Whether threads may leave their queue's CPU: nobody has put them there on purpose, and there
    /// is another one.
    pub(super) fn may_roam(&self) -> bool {
        let allowed = self.allowed.as_ref();
        self.placement.is_free() && allowed.is_some_and(|allowed| allowed.count() > 1)
    }

    /// Lets the calling thread run wherever this process may.
    pub(super) fn unsettle(&self, post: &Post) {
        if let Some(allowed) = &self.allowed
            && let Err(errno) = sched_setaffinity(None, allowed)
        {
            tracing::debug!(%errno, queue = post.queue, "a thread cannot leave its CPU");
        }
    }

    fn put(&self, post: &Post, role: Role) {
        if !self.placement.is_free() {
            post.place(&self.placement, role);
        }
    }

    /// Fetches what waits in a queue whose threads are all away, by a request of our own. For the
    /// thread that has just offered an entry there.
    pub(super) fn provoke(&self, post: &Post) {
        // The request goes to the queue of the CPU it is sent from.
        let elsewhere = sched_getaffinity(None).ok();
        let here = cpus::only(post.queue);
        let moved = match (&elsewhere, here) {
            (Some(now), Some(here)) if *now != here => sched_setaffinity(None, &here).is_ok(),
            _ => false,
        };
        let files = self.files_nearest_to(post.queue);
        let provoked = files
            .iter()
            .any(|file| self.server.connection.provoke(*file).is_ok());
        if !provoked && !self.life.has_ended() {
            let nudged = cpus::only(post.queue)
                .ok_or_else(|| Errno::RANGE.into())
                .and_then(|cpu| self.nudges.nudge(post.queue, cpu));
            if let Err(error) = nudged {
                tracing::warn!(%error, queue = post.queue, "waiting requests cannot be fetched");
            }
        }
        if moved && let Some(elsewhere) = elsewhere {
            // It was there before.
            let _ = sched_setaffinity(None, &elsewhere);
        }
    }

    /// Regular files the kernel may know, those of this queue's threads first.
    fn files_nearest_to(&self, queue: usize) -> Vec<NodeId> {
        let mut files = Vec::new();
        let others = (0..self.queues.len()).filter(|other| *other != queue);
        for state in std::iter::once(queue)
            .chain(others)
            .filter_map(|queue| self.queue(queue))
        {
            let known = state
                .posts
                .iter()
                .map(|post| post.file.load(Ordering::Relaxed));
            files.extend(known.filter(|file| *file != 0).map(NodeId));
        }
        files
    }
}

fn make_tools(server: &Server) -> Result<Tools, Errno> {
    let ring = Ring::new(server.connection.clone(), wide::ENTRIES)?;
    Ok((ring, Scratch::new()?))
}

impl QueueState {
    /// Whether all that are present carry a request out.
    pub(super) fn is_busy(&self) -> bool {
        let handling = |post: &&Arc<Post>| Seat::is_handling(post.word());
        self.posts.iter().filter(handling).count() >= self.present
    }
}
