//! The threads of all queues: who serves which, who is away with a request that takes long.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::Server;
use super::super::placement::{Placement, Role};
use super::super::watchdog::Watchdog;
use super::interrupt::{self, Interrupts};
use super::kick::Kicks;
use super::late::Late;
use super::pinning::Pinning;
use super::probe::Prepared;
use super::queue_worker::QueueWorker;
use super::queues::{QueueState, Queues};
use super::resources::Resources;
use super::shares::{self, Shares};
use super::thread_budget::Admission;
use super::work::{self, Begin};
use super::{ending, start, watch};
use crate::life::Life;
use crate::types::Errno;

/// The threads of the queues and what they share. What is done with them stands in the file of its
/// subject; here is how threads start, are handed off and return.
pub(crate) struct RingWorkerPool {
    pub(super) server: Arc<Server>,
    pub(super) life: Arc<Life>,
    pub(super) watchdog: Watchdog,
    pub(super) queues: Queues,
    pub(super) interrupts: Interrupts,
    pub(super) kicks: Arc<Kicks>,
    /// Requests that no thread is with.
    pub(super) late: Arc<Late>,
    /// Whose requests have threads away; locked after a queue.
    pub(super) shares: Shares,
    pub(super) pinning: Pinning,
    /// Locked after a queue.
    pub(super) resources: Resources,
}

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
        let queues = prepared.entries.len();
        Ok(Arc::new(Self {
            resources: Resources::new(server.connection.clone(), prepared, max_threads),
            late: Late::new(queues)?,
            server,
            life,
            watchdog: Watchdog::new(),
            queues: Queues::new(queues),
            interrupts: Interrupts::default(),
            kicks: Kicks::new(mountpoint, queues),
            shares: Shares::new(max_threads, queues),
            pinning: Pinning::new(placement),
        }))
    }

    /// Starts the thread that starts the others, and the watchdog. `refused` is called, on that
    /// thread, if the kernel will not have the entries: all then goes over `/dev/fuse`.
    pub(crate) fn start(
        self: &Arc<Self>,
        prepared: Prepared,
        refused: impl FnOnce(Errno) + Send + 'static,
    ) -> io::Result<()> {
        let late = Arc::downgrade(&self.late);
        self.server.connection.counter().add_keeper(late);
        let worker_pool = self.clone();
        self.watchdog.start(move || watch::watch(&worker_pool))?;
        let Prepared { ring, entries, .. } = prepared;
        self.resources.admit(Admission::Starter)?;
        let worker_pool = self.clone();
        let spawned = thread::Builder::new()
            .name("strandfs-ring".to_owned())
            .spawn(move || {
                start::start(&worker_pool, ring, entries, refused);
                worker_pool.resources.depart();
            });
        let give_up = |_: &io::Error| self.resources.give_up(Admission::Starter);
        spawned.map(drop).inspect_err(give_up)
    }

    /// What `status` shows.
    pub(crate) fn report(&self) {
        self.resources.report();
    }

    /// The kernel wants this request interrupted.
    pub(crate) fn interrupt(self: &Arc<Self>, unique: u64) {
        interrupt::interrupt(self, unique);
    }

    /// After the end of the mount: waits at most `patience` for the threads, and interrupts the
    /// system calls of those that take long. The kernel has sent the idle ones home itself.
    pub(crate) fn disband(&self, patience: Duration) {
        self.watchdog.wake();
        (self.resources).wait_for_all(patience, |impatient| ending::press_on(self, impatient));
    }

    /// A further thread for a queue. What it would begin with comes back if there can be none.
    // Rare, and the entry is not to be boxed for it.
    #[allow(clippy::result_large_err)]
    pub(super) fn spawn_worker(
        self: &Arc<Self>,
        queue: usize,
        state: &mut QueueState,
        begin: Begin,
    ) -> Result<(), (Begin, io::Error)> {
        let admission = match begin {
            _ if state.queue_workers.is_empty() => Admission::First,
            Begin::TakeOver(_) => Admission::Reserved,
            Begin::Send(_) => Admission::InPlace,
            _ => Admission::Further,
        };
        let number = match self.resources.admit(admission) {
            Ok(number) => number,
            Err(error) => return Err((begin, error)),
        };
        self.spawn_admitted(queue, number, admission, begin)
            .map(|queue_worker| self.queues.add(state, queue_worker))
            .inspect_err(|_| self.resources.give_up(admission))
    }

    // Rare, and the entry is not to be boxed for it.
    #[allow(clippy::result_large_err)]
    fn spawn_admitted(
        self: &Arc<Self>,
        queue: usize,
        number: usize,
        admission: Admission,
        begin: Begin,
    ) -> Result<Arc<QueueWorker>, (Begin, io::Error)> {
        // Its memory is had first: a thread that has to give up would be no help.
        let (ring, scratch) = match self.resources.take_tools(admission) {
            Ok(tools) => tools,
            Err(errno) => return Err((begin, errno.into())),
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
            let begin = handed.lock().take();
            return Err((begin.unwrap_or(Begin::Nothing), error));
        }
        Ok(queue_worker)
    }

    /// A second thread for a queue whose callers are faster than one. They share a CPU, so two are
    /// enough for any number of them.
    pub(super) fn reinforce(self: &Arc<Self>, queue_worker: &QueueWorker) {
        let Some(mut state) = self.queues.lock(queue_worker.queue) else {
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
        let entry = self.resources.further_entry(queue)?;
        let bytes = entry.bytes();
        let spawned = self.spawn_worker(queue, state, Begin::Offer(entry));
        spawned.map_err(|(_, error)| {
            self.resources.forget_entry(bytes);
            error
        })
    }

    /// Counts a thread as away while the request of `word` runs on it, and sees to it that the
    /// queue is served. False if that request is over.
    pub(super) fn hand_off(self: &Arc<Self>, queue_worker: &Arc<QueueWorker>, word: u64) -> bool {
        let Some(mut state) = self.queues.lock(queue_worker.queue) else {
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
        state.leave();
        self.shares.note_blocked(queue_worker);
        self.pinning.place(queue_worker, Role::Working);
        self.server.connection.counter().count_relief();
        if state.present() > 0 || self.life.has_ended() {
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
        let Some(mut state) = self.queues.lock(queue_worker.queue) else {
            return;
        };
        if queue_worker.finish_handed_off() {
            self.interrupts.end_one();
        }
        shares::note_unblocked(self, queue_worker);
        state.become_present();
        queue_worker.become_reader();
        self.pinning.place(queue_worker, Role::Reading);
    }

    /// Answers the request that a thread is away with, in its place: a further thread sends the
    /// reply, for the entry's next request comes to whoever did. False if there is none, if the
    /// data is moved within the entry itself, or if there is no room for a thread.
    pub(crate) fn answer_for(self: &Arc<Self>, thread: u32, errno: Errno) -> bool {
        for queue in 0..self.queues.len() {
            let Some(mut state) = self.queues.lock(queue) else {
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
}
