//! The threads of all queues: who serves which, who is away with a request that takes long.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::super::placement::{Placement, Role};
use super::super::watchdog::Watchdog;
use super::super::worker_state::WorkerState;
use super::super::{RingReport, Server, TransportReport};
use super::cpus;
use super::entry::RingEntry;
use super::idle::Idle;
use super::interrupt::Unmatched;
use super::kick::Kicks;
use super::late::Late;
use super::probe::Prepared;
use super::queue::Ring;
use super::queue_worker::QueueWorker;
use super::reclaimed::ReclaimQueue;
use super::shares::Shares;
use super::thread_budget::{Admission, ThreadBudget};
use super::work::{self, Begin, Scratch};
use super::{batch, start, watch};
use crate::session::Life;
use crate::types::{Errno, NodeId};

/// The threads of the queues and what they share.
pub(crate) struct RingWorkerPool {
    pub(super) server: Arc<Server>,
    pub(super) life: Arc<Life>,
    pub(super) watchdog: Watchdog,
    pub(super) queues: Vec<Queue>,
    /// Requests that are to be interrupted and go on.
    pub(super) interrupts: AtomicUsize,
    pub(super) unmatched: Unmatched,
    pub(super) kicks: Arc<Kicks>,
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
    pub(super) threads: Mutex<ThreadBudget>,
    pub(super) departed: Condvar,
}

/// Who serves a queue. A lock of its own: what blocks on one CPU is no business of the others.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Queue {
    pub(super) state: Mutex<QueueState>,
    /// Entries on their way to a thread with several.
    pub(super) reclaimed: ReclaimQueue,
    /// How many threads it has.
    pub(super) threads: AtomicUsize,
}

/// The threads of a queue.
#[derive(Default)]
pub(super) struct QueueState {
    pub(super) queue_workers: Vec<Arc<QueueWorker>>,
    /// Those that wait for requests or carry one out and are not away with it.
    pub(super) present: usize,
    /// Those that have no entry, because their last request waits; not present.
    pub(super) idle: Vec<Arc<Idle>>,
}

/// What a thread works with.
type Tools = (Ring, Scratch);

/// Threads of a queue where requests keep waiting.
pub(super) const BACKLOG_THRESHOLD: usize = 2;

impl RingWorkerPool {
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
            kicks: Kicks::new(mountpoint, prepared.entries.len()),
            placement,
            allowed: sched_getaffinity(None).ok(),
            payload_bytes: prepared.payload_bytes,
            tools,
            threads: Mutex::new(ThreadBudget::new(
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
        let worker_pool = self.clone();
        self.watchdog.start(move || watch::watch(&worker_pool))?;
        let Prepared { ring, entries, .. } = prepared;
        let worker_pool = self.clone();
        self.threads.lock().running += 1;
        let spawned = thread::Builder::new()
            .name("strandfs-ring".to_owned())
            .spawn(move || {
                start::start(&worker_pool, ring, entries, refused);
                worker_pool.depart();
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
    pub(super) fn spawn_worker(
        self: &Arc<Self>,
        queue: usize,
        state: &mut QueueState,
        begin: Begin,
    ) -> Result<(), (Begin, io::Error)> {
        let first = state.queue_workers.is_empty();
        let admission = match begin {
            _ if first => Admission::First,
            Begin::TakeOver(_) => Admission::Reserved,
            Begin::Send(_) => Admission::InPlace,
            _ => Admission::Further,
        };
        let number = match self.threads.lock().admit(admission) {
            Ok(number) => number,
            Err(error) => return Err((begin, error)),
        };
        // Its memory is had first: a thread that has to give up would be no help.
        let had = match admission {
            Admission::First | Admission::Reserved => self.tools.lock().pop(),
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
        let queue_worker = Arc::new(QueueWorker::new(queue, number, counts));
        let handed = Arc::new(Mutex::new(Some(begin)));
        let spawned = thread::Builder::new()
            .name("strandfs-io".to_owned())
            .spawn({
                let (worker_pool, queue_worker, handed) =
                    (self.clone(), queue_worker.clone(), handed.clone());
                move || {
                    let begin = handed.lock().take();
                    work::work(&worker_pool, &queue_worker, ring, begin, scratch);
                }
            });
        if let Err(error) = spawned {
            self.server.connection.counter().leave(&queue_worker.counts);
            self.depart();
            let begin = handed.lock().take();
            return Err((begin.unwrap_or(Begin::Nothing), error));
        }
        state.queue_workers.push(queue_worker);
        state.present += 1;
        self.note_threads(queue, state);
        Ok(())
    }

    /// The threads of a queue are more or fewer.
    pub(super) fn note_threads(&self, queue: usize, state: &QueueState) {
        if let Some(queue) = self.queues.get(queue) {
            queue
                .threads
                .store(state.queue_workers.len(), Ordering::Relaxed);
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
    pub(super) fn reinforce(self: &Arc<Self>, queue_worker: &QueueWorker) {
        let Some(mut state) = self.queue(queue_worker.queue) else {
            return;
        };
        if state.queue_workers.len() >= BACKLOG_THRESHOLD {
            return;
        }
        if let Err(error) = self.spawn_worker_to_offer(queue_worker.queue, &mut state) {
            tracing::debug!(%error, queue = queue_worker.queue, "one thread has to do");
        }
    }

    /// A further thread with an entry of its own.
    fn spawn_worker_to_offer(
        self: &Arc<Self>,
        queue: usize,
        state: &mut QueueState,
    ) -> io::Result<()> {
        let entry = self.further_entry(queue)?;
        let bytes = entry.bytes();
        if let Err((_, error)) = self.spawn_worker(queue, state, Begin::Offer(entry)) {
            self.threads.lock().buffer_bytes -= bytes;
            self.report();
            return Err(error);
        }
        Ok(())
    }

    /// Counts a thread as away while the request of `word` runs on it, and sees to it that the
    /// queue is served. False if that request is over.
    pub(super) fn hand_off(self: &Arc<Self>, queue_worker: &Arc<QueueWorker>, word: u64) -> bool {
        let Some(mut state) = self.queue(queue_worker.queue) else {
            return false;
        };
        self.hand_off_in(&mut state, queue_worker, word)
    }

    /// The same, with the queue's lock held.
    pub(super) fn hand_off_in(
        self: &Arc<Self>,
        state: &mut QueueState,
        queue_worker: &Arc<QueueWorker>,
        word: u64,
    ) -> bool {
        if !queue_worker.hand_off(word) {
            return false;
        }
        state.present = state.present.saturating_sub(1);
        self.shares.note_blocked(queue_worker);
        self.put(queue_worker, Role::Working);
        self.server.connection.counter().count_relief();
        if state.present > 0 || self.life.has_ended() {
            return true;
        }
        if let Err(error) = self.spawn_worker_to_offer(queue_worker.queue, state) {
            // The first of its threads that is done goes on with what waits.
            tracing::warn!(%error, queue = queue_worker.queue, "no further thread for a queue");
        }
        true
    }

    /// A thread that was away is done with its request.
    pub(super) fn return_worker(&self, queue_worker: &Arc<QueueWorker>) {
        let Some(mut state) = self.queue(queue_worker.queue) else {
            return;
        };
        if queue_worker.finish_handed_off() {
            self.interrupts.fetch_sub(1, Ordering::Relaxed);
        }
        self.note_unblocked(queue_worker);
        state.present += 1;
        queue_worker.become_reader();
        self.put(queue_worker, Role::Reading);
    }

    /// Answers the request that a thread is away with, in its place: a further thread sends the
    /// reply, for the entry's next request comes to whoever did. False if there is none, if the
    /// data is moved within the entry itself, or if there is no room for a thread.
    pub(crate) fn answer_for(self: &Arc<Self>, thread: u32, errno: Errno) -> bool {
        for queue in 0..self.queues.len() {
            let Some(mut state) = self.queue(queue) else {
                break;
            };
            let queue_worker = state
                .queue_workers
                .iter()
                .find(|queue_worker| queue_worker.is_thread(thread));
            let Some(queue_worker) = queue_worker.cloned() else {
                continue;
            };
            let unique = queue_worker.handed_off_request();
            let held = queue_worker.held.lock().take_if(|_| unique != 0);
            let Some(mut entry) = held else {
                return false;
            };
            // What the kernel sent is in the thread's own copy.
            let headers = *entry.parts().0;
            entry.set_reply(unique, Some(errno), 0);
            let Err((begin, error)) = self.spawn_worker(queue, &mut state, Begin::Send(entry))
            else {
                return true;
            };
            tracing::warn!(%error, queue, "no thread to answer in another's place");
            if let Begin::Send(mut entry) = begin {
                *entry.parts_mut().0 = headers;
                *queue_worker.held.lock() = Some(entry);
            }
            return false;
        }
        false
    }

    /// Puts a thread on its queue's CPU, or where `Placement` wants it.
    pub(super) fn settle(&self, queue_worker: &QueueWorker) {
        if !self.placement.is_free() {
            return self.put(queue_worker, Role::Reading);
        }
        let allowed = self.allowed.as_ref();
        let Some(cpu) = cpus::only(queue_worker.queue)
            .filter(|_| allowed.is_none_or(|allowed| allowed.is_set(queue_worker.queue)))
        else {
            return;
        };
        // A CPU that is not there: the thread serves its queue from elsewhere.
        if let Err(errno) = sched_setaffinity(None, &cpu) {
            tracing::debug!(%errno, queue = queue_worker.queue, "a thread cannot be pinned");
        }
    }

    /// Whether threads may leave their queue's CPU: nobody has put them there on purpose, and there
    /// is another one.
    pub(super) fn may_be_unpinned(&self) -> bool {
        let allowed = self.allowed.as_ref();
        self.placement.is_free() && allowed.is_some_and(|allowed| allowed.count() > 1)
    }

    /// Lets the calling thread run wherever this process may.
    pub(super) fn unsettle(&self, queue_worker: &QueueWorker) {
        if let Some(allowed) = &self.allowed
            && let Err(errno) = sched_setaffinity(None, allowed)
        {
            tracing::debug!(%errno, queue = queue_worker.queue, "a thread cannot leave its CPU");
        }
    }

    fn put(&self, queue_worker: &QueueWorker, role: Role) {
        if !self.placement.is_free() {
            queue_worker.place(&self.placement, role);
        }
    }

    /// Fetches what waits in a queue whose threads are all away, by a request of our own. For the
    /// thread that has just offered an entry there.
    pub(super) fn kick_from(&self, queue_worker: &QueueWorker) {
        // The request goes to the queue of the CPU it is sent from.
        let elsewhere = sched_getaffinity(None).ok();
        let here = cpus::only(queue_worker.queue);
        let moved = match (&elsewhere, here) {
            (Some(now), Some(here)) if *now != here => sched_setaffinity(None, &here).is_ok(),
            _ => false,
        };
        let files = self.files_nearest_to(queue_worker.queue);
        let kicked_from = files
            .iter()
            .any(|file| self.server.connection.kick_from(*file).is_ok());
        if !kicked_from && !self.life.has_ended() {
            let kicked = cpus::only(queue_worker.queue)
                .ok_or_else(|| Errno::RANGE.into())
                .and_then(|cpu| self.kicks.kick(queue_worker.queue, cpu));
            if let Err(error) = kicked {
                tracing::warn!(%error, queue = queue_worker.queue, "waiting requests cannot be fetched");
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
                .queue_workers
                .iter()
                .map(|queue_worker| queue_worker.file.load(Ordering::Relaxed));
            files.extend(known.filter(|file| *file != 0).map(NodeId));
        }
        files
    }
}

fn make_tools(server: &Server) -> Result<Tools, Errno> {
    let ring = Ring::new(server.connection.clone(), batch::ENTRIES)?;
    Ok((ring, Scratch::new()?))
}

impl QueueState {
    /// Whether all that are present carry a request out.
    pub(super) fn is_busy(&self) -> bool {
        let handling =
            |queue_worker: &&Arc<QueueWorker>| WorkerState::is_handling(queue_worker.word());
        self.queue_workers.iter().filter(handling).count() >= self.present
    }
}
