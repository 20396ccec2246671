//! The threads of a session. One is the reader, and one may be the second; the others carry out requests they
//! read while they were, or are parked. The lock is taken only when a role changes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Server;
use super::buffer::{ReplyBuffer, RequestBuffer};
use super::caller;
use super::device;
use super::further::FurtherReaders;
use super::kept::KeptAndClock;
use super::later::OverDevice;
use super::placement::{Placement, Role};
use super::ring::RingWorkerPool;
use super::second::{self, Second};
use super::shares::Blocked;
use super::watchdog::{self, Watchdog};
use super::whereabouts::Whereabouts;
use super::worker_state::{WakeReason, WorkerState};
use super::{END_IN_PEACE, INTERRUPT_EVERY};
use crate::affinity::{may_bind, note_allowed};
use crate::connection::Substitute;
use crate::life::Life;
use crate::sys;
use crate::traffic::Keeps;
use crate::types::Errno;

/// Parked threads that are kept for ever.
const KEPT: usize = 4;
/// How long the others are kept.
const IDLE: Duration = Duration::from_secs(10);

/// The threads of a session and what they share.
pub(crate) struct WorkerPool {
    own: Weak<Self>,
    pub(super) server: Arc<Server>,
    pub(super) life: Arc<Life>,
    pub(super) watchdog: Watchdog,
    pub(super) worker_table: Mutex<WorkerTable>,
    pub(super) placement: Placement,
    /// The reader may run where its caller does.
    pub(super) can_follow: bool,
    /// Whose requests are interrupted from here as well.
    pub(super) ring: OnceLock<Arc<RingWorkerPool>>,
    departed: Condvar,
    pub(super) max_threads: AtomicUsize,
    /// So many threads are blocked that it matters who asks.
    pub(super) crowded: AtomicBool,
    /// Requests that no thread stays with; locked after the worker table.
    pub(super) kept: KeptAndClock,
    /// Who reads beside the reader.
    pub(super) further: FurtherReaders,
    /// Where callers are.
    pub(super) whereabouts: Arc<Whereabouts>,
    /// How answers go that come later.
    pub(super) late: Arc<OverDevice>,
}

impl Keeps for WorkerPool {
    fn add_kept(&self, since: &mut Vec<Instant>) {
        self.kept.add_kept(since);
    }
}

/// Who does what.
#[derive(Default)]
pub(super) struct WorkerTable {
    /// The reader.
    pub(super) reader: Option<Arc<WorkerState>>,
    /// Who reads as well while callers take turns.
    pub(super) second: Second,
    /// Threads without work, the one parked last on top: its caches are warmest.
    parked: Vec<Arc<WorkerState>>,
    /// Every thread.
    pub(super) worker_states: Vec<Arc<WorkerState>>,
    /// The reader wanted relief and there was nobody.
    starved: bool,
    /// Requests that are to be interrupted and go on.
    pub(super) interrupts: usize,
    /// Threads started so far.
    started: usize,
    /// Threads whose request was answered in their place, and that are not back.
    lost: usize,
    pub(super) closed: bool,
    /// Whose requests run while others read.
    pub(super) blocked: Blocked,
}

/// What becomes of a thread that has no role.
pub(super) enum Next {
    /// It reads.
    Read,
    /// It carries out what was kept.
    Work,
    /// It reads beside the reader.
    Assist,
    /// It waits, for at most so long.
    Park(Option<Duration>),
    /// It ends.
    Leave,
}

impl WorkerPool {
    pub(crate) fn new(
        server: Arc<Server>,
        life: Arc<Life>,
        (max_threads, further_readers): (usize, Option<usize>),
        placement: Placement,
    ) -> Arc<Self> {
        note_allowed();
        let late = Arc::new(OverDevice(server.connection.clone()));
        Arc::new_cyclic(|own| Self {
            own: own.clone(),
            server,
            life,
            late,
            whereabouts: Arc::default(),
            further: FurtherReaders::new(further_readers),
            crowded: AtomicBool::new(false),
            kept: KeptAndClock::default(),
            watchdog: Watchdog::new(),
            worker_table: Mutex::default(),
            can_follow: placement.is_near_caller() && may_bind() && caller::proc_is_own(),
            placement,
            ring: OnceLock::new(),
            departed: Condvar::new(),
            max_threads: AtomicUsize::new(max_threads),
        })
    }

    /// Whether all requests come over `/dev/fuse`: beside io_uring hardly any do that somebody waits for.
    pub(super) fn carries_all(&self) -> bool {
        self.ring.get().is_none()
    }

    /// From now on there may be so many threads.
    pub(crate) fn set_max_threads(&self, max_threads: usize) {
        self.max_threads.store(max_threads, Ordering::Relaxed);
    }

    /// Most requests come to these threads.
    pub(crate) fn set_ring(&self, ring: Arc<RingWorkerPool>) {
        // Set once: a session has one.
        let _ = self.ring.set(ring);
    }

    /// Starts the reader and the watchdog.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        self.server.connection.set_substitute(self.own.clone());
        self.server
            .connection
            .counter()
            .add_keeper(self.own.clone());
        sys::install_wake_handler()?;
        let mut worker_table = self.worker_table.lock();
        let first = self.spawn_worker(&mut worker_table)?;
        worker_table.reader = Some(first.clone());
        drop(worker_table);
        let worker_pool = self.clone();
        let watched = self.watchdog.start(move || watchdog::watch(&worker_pool));
        if watched.is_err() {
            self.worker_table.lock().closed = true;
            first.hand(WakeReason::Leave);
        } else {
            first.hand(WakeReason::Read);
        }
        watched
    }

    /// A new thread, waiting for a wake reason. Its memory is had first: a thread that has to give up
    /// would be no help.
    fn spawn_worker(
        self: &Arc<Self>,
        worker_table: &mut WorkerTable,
    ) -> io::Result<Arc<WorkerState>> {
        let request = RequestBuffer::new(self.server.payload_bytes)?;
        let reply = ReplyBuffer::new(self.server.payload_bytes)?;
        let traffic = self.server.connection.counter();
        let worker_state = Arc::new(WorkerState::new(worker_table.started, traffic.join()));
        let (worker_pool, own) = (self.clone(), worker_state.clone());
        let spawned = thread::Builder::new()
            .name("strandfs-device".to_owned())
            .spawn(move || device::work(&worker_pool, &own, request, reply));
        if let Err(error) = spawned {
            traffic.leave(&worker_state.counts);
            return Err(error);
        }
        worker_table.started += 1;
        worker_table.worker_states.push(worker_state.clone());
        Ok(worker_state)
    }

    /// Hands the role of a reader on while the request of `word` runs on `worker_state`. False if that
    /// request is over or nobody can take the role; the next thread without work then does. Of two
    /// readers the other one goes on, and callers that still take turns have it call a second again.
    pub(super) fn hand_off(self: &Arc<Self>, worker_state: &WorkerState, word: u64) -> bool {
        let mut worker_table = self.worker_table.lock();
        if worker_table.closed {
            return false;
        }
        // The other one reads already.
        if worker_table.second.get().is_some() {
            if !worker_state.hand_off(word) {
                return false;
            }
            if let Some(other) = second::take_away(self, &mut worker_table, worker_state) {
                self.note_handed_off(&mut worker_table, worker_state, &other);
            }
            return true;
        }
        let Some(next) = self.successor(&mut worker_table) else {
            worker_table.starved = true;
            return false;
        };
        if !worker_state.hand_off(word) {
            worker_table.parked.push(next);
            return false;
        }
        self.note_handed_off(&mut worker_table, worker_state, &next);
        drop(worker_table);
        next.hand(WakeReason::Read);
        true
    }

    /// The reader goes on with its request, and another thread reads.
    fn note_handed_off(
        &self,
        worker_table: &mut WorkerTable,
        worker_state: &WorkerState,
        next: &Arc<WorkerState>,
    ) {
        worker_state.place(&self.placement, Role::Working);
        self.server.connection.counter().count_relief();
        self.note_blocked(worker_table, worker_state);
        self.interrupt_handed_off(worker_table, worker_state);
        worker_table.reader = Some(next.clone());
        worker_table.starved = false;
    }

    /// A thread without work, perhaps a new one.
    pub(super) fn successor(
        self: &Arc<Self>,
        worker_table: &mut WorkerTable,
    ) -> Option<Arc<WorkerState>> {
        self.successor_beyond(worker_table, 0)
    }

    /// The same for a request that was kept. A second reader cannot be told to carry it out while it
    /// waits in its read: where no other thread is left it is stood in for.
    pub(super) fn successor_for_kept(
        self: &Arc<Self>,
        worker_table: &mut WorkerTable,
    ) -> Option<Arc<WorkerState>> {
        let seconds = usize::from(worker_table.second.get().is_some());
        self.successor_beyond(worker_table, seconds)
    }

    fn successor_beyond(
        self: &Arc<Self>,
        worker_table: &mut WorkerTable,
        further: usize,
    ) -> Option<Arc<WorkerState>> {
        if let Some(parked) = worker_table.parked.pop() {
            return Some(parked);
        }
        // Who hangs is stood in for, though not without end.
        let most = self.max_threads.load(Ordering::Relaxed);
        if worker_table.worker_states.len() >= most + worker_table.lost.min(most) + further {
            return None;
        }
        match self.spawn_worker(worker_table) {
            Ok(worker_state) => Some(worker_state),
            Err(error) => {
                tracing::warn!(%error, threads = worker_table.worker_states.len(), "no further thread");
                None
            }
        }
    }

    /// There may be another thread: it reads, if the reader had wanted relief, or carries out what was
    /// kept.
    fn stand_in(self: &Arc<Self>) {
        let mut worker_table = self.worker_table.lock();
        if worker_table.closed {
            return;
        }
        let starving = (worker_table.starved.then(|| worker_table.reader.clone()))
            .flatten()
            .filter(|reader| WorkerState::is_handling(reader.word()));
        if let Some(reader) = starving {
            drop(worker_table);
            self.hand_off(&reader, reader.word());
            return;
        }
        if self.kept.lock().is_ready()
            && let Some(next) = self.successor_for_kept(&mut worker_table)
        {
            next.hand(WakeReason::Work);
        }
    }

    /// What a thread that finished a request as no reader does next.
    pub(super) fn return_worker(&self, worker_state: &Arc<WorkerState>) -> Next {
        let mut worker_table = self.worker_table.lock();
        let needed = self.finish(&mut worker_table, worker_state);
        needed.unwrap_or_else(|| Self::park(&mut worker_table, worker_state))
    }

    /// What a further reader does next that finished a request, unless it reads on.
    pub(super) fn go_on_reading(&self, worker_state: &Arc<WorkerState>) -> Option<Next> {
        let mut worker_table = self.worker_table.lock();
        self.finish(&mut worker_table, worker_state)
    }

    /// A request that was handed off is over, if there was one. What its thread is needed for.
    fn finish(
        &self,
        worker_table: &mut WorkerTable,
        worker_state: &Arc<WorkerState>,
    ) -> Option<Next> {
        if worker_state.finish_handed_off() {
            worker_table.interrupts = worker_table.interrupts.saturating_sub(1);
        }
        if worker_state.is_back() {
            worker_table.lost -= 1;
        }
        self.note_unblocked(worker_table, worker_state);
        if worker_table.closed {
            return Some(Next::Leave);
        }
        if std::mem::take(&mut worker_table.starved)
            && let Some(reader) = worker_table.reader.clone()
            && reader.hand_off(reader.word())
        {
            self.note_handed_off(worker_table, &reader, worker_state);
            return Some(Next::Read);
        }
        self.next_kept()
    }

    /// What a thread does next that was to carry out kept requests and found none.
    pub(super) fn idle(&self, worker_state: &Arc<WorkerState>) -> Next {
        let mut worker_table = self.worker_table.lock();
        if worker_table.closed {
            return Next::Leave;
        }
        Self::park(&mut worker_table, worker_state)
    }

    /// What a reader does next that gave its role up at rest.
    pub(super) fn next_without_role(
        &self,
        worker_table: &mut WorkerTable,
        worker_state: &Arc<WorkerState>,
    ) -> Next {
        if worker_table.closed {
            return Next::Leave;
        }
        let needed = self.next_kept();
        needed.unwrap_or_else(|| Self::park(worker_table, worker_state))
    }

    fn park(worker_table: &mut WorkerTable, worker_state: &Arc<WorkerState>) -> Next {
        let surplus = worker_table.parked.len() >= KEPT;
        worker_table.parked.push(worker_state.clone());
        Next::Park(surplus.then_some(IDLE))
    }

    /// Whether a thread that was parked for long may end.
    pub(super) fn may_retire(&self, worker_state: &Arc<WorkerState>) -> bool {
        let mut worker_table = self.worker_table.lock();
        let place = worker_table
            .parked
            .iter()
            .position(|it| Arc::ptr_eq(it, worker_state));
        match place {
            // Not parked: a wake reason is on its way.
            None => false,
            Some(place) if place < KEPT => false,
            Some(place) => {
                worker_table.parked.remove(place);
                true
            }
        }
    }

    /// A thread ends.
    pub(super) fn depart(&self, worker_state: &Arc<WorkerState>) {
        let mut worker_table = self.worker_table.lock();
        second::depart(self, &mut worker_table, worker_state);
        worker_table
            .worker_states
            .retain(|it| !Arc::ptr_eq(it, worker_state));
        worker_table
            .parked
            .retain(|it| !Arc::ptr_eq(it, worker_state));
        if worker_state.is_back() {
            worker_table.lost -= 1;
        }
        self.server.connection.counter().leave(&worker_state.counts);
        self.departed.notify_all();
    }

    /// After the end of the mount: sends the parked threads away, waits at most `patience` for
    /// those with a request, and interrupts their system calls after a while.
    pub(crate) fn disband(&self, patience: Duration) {
        let start = Instant::now();
        let mut worker_table = self.worker_table.lock();
        worker_table.closed = true;
        for worker_state in std::mem::take(&mut worker_table.parked) {
            worker_state.hand(WakeReason::Leave);
        }
        self.watchdog.wake();
        self.kept.wake_clock();
        while !worker_table.worker_states.is_empty() && start.elapsed() < patience {
            // The reader may be reading from a connection that could not be aborted.
            let impatient = start.elapsed() >= END_IN_PEACE;
            for worker_state in &worker_table.worker_states {
                let reading = !WorkerState::is_handling(worker_state.word())
                    && worker_state.handed_off_request() == 0;
                if reading || impatient {
                    worker_state.signal();
                }
            }
            self.departed.wait_for(&mut worker_table, INTERRUPT_EVERY);
        }
        if !worker_table.worker_states.is_empty() {
            tracing::warn!(
                threads = worker_table.worker_states.len(),
                "requests outlive the mount"
            );
        }
    }
}

impl WorkerPool {
    /// Answers in the place of a thread that is no reader. Under the lock: the thread may come back
    /// meanwhile.
    fn answer_handed_off(&self, thread: u32, errno: Errno) -> Answered {
        let mut worker_table = self.worker_table.lock();
        let is_it = |state: &&Arc<WorkerState>| state.is_thread(thread);
        let Some(worker_state) = worker_table.worker_states.iter().find(is_it).cloned() else {
            return Answered::NotOurs;
        };
        let word = worker_state.word();
        if WorkerState::is_handling(word) {
            return Answered::ByTheReader(worker_state, word);
        }
        let unique = worker_state.handed_off_request();
        if unique == 0 || !device::answer_with_error(&self.server, unique, errno) {
            return Answered::No;
        }
        worker_state.lose();
        worker_table.lost += 1;
        self.note_unblocked(&mut worker_table, &worker_state);
        Answered::Yes
    }
}

/// What came of answering in another thread's place.
enum Answered {
    Yes,
    /// Nobody waits for an answer.
    No,
    /// The thread is the reader, at this word: another one has to read first.
    ByTheReader(Arc<WorkerState>, u64),
    /// No thread of this transport.
    NotOurs,
}

impl Substitute for WorkerPool {
    /// The kernel takes one answer to a request: the thread's own finds nobody waiting. Another
    /// thread is started for the one that may not come back: where all had been with such requests,
    /// nobody would read any more.
    fn answer_for(&self, thread: u32, errno: Errno) -> bool {
        let Some(own) = self.own.upgrade() else {
            return false;
        };
        let mut answered = self.answer_handed_off(thread, errno);
        if let Answered::ByTheReader(worker_state, word) = &answered
            && own.hand_off(worker_state, *word)
        {
            answered = self.answer_handed_off(thread, errno);
        }
        match answered {
            Answered::Yes => {
                own.stand_in();
                true
            }
            Answered::No | Answered::ByTheReader(..) => false,
            Answered::NotOurs => {
                (self.ring.get()).is_some_and(|ring| ring.answer_for(thread, errno))
            }
        }
    }
}
