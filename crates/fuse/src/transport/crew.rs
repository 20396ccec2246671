//! The threads of a session. Exactly one is the reader; the others carry out requests they read
//! while they were, or are parked. The lock is taken only when a role changes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Server;
use super::buffer::{ReplyBuffer, RequestBuffer};
use super::device;
use super::kept::Kept;
use super::later::OverDevice;
use super::placement::{Placement, Role};
use super::ring::RingCrew;
use super::seat::{Baton, Seat};
use super::shares::Blocked;
use super::watchdog::{self, Watchdog};
use super::{PEACE, PRESS};
use crate::connection::Substitute;
use crate::session::Life;
use crate::sys;
use crate::types::Errno;

/// Parked threads that are kept for ever.
const KEPT: usize = 4;
/// How long the others are kept.
const IDLE: Duration = Duration::from_secs(10);

/// The threads of a session and what they share.
pub(crate) struct Crew {
    pub(super) server: Arc<Server>,
    pub(super) life: Arc<Life>,
    pub(super) watchdog: Watchdog,
    pub(super) roster: Mutex<Roster>,
    pub(super) placement: Placement,
    /// Whose requests are interrupted from here as well.
    pub(super) ring: OnceLock<Arc<RingCrew>>,
    departed: Condvar,
    pub(super) max_threads: AtomicUsize,
    /// So many threads are blocked that it matters who asks.
    pub(super) crowded: AtomicBool,
    /// Requests that no thread stays with; locked after the roster.
    pub(super) kept: Mutex<Kept>,
    pub(super) due_changed: Condvar,
    pub(super) clock_runs: AtomicBool,
    /// How answers go that come later.
    pub(super) late: Arc<OverDevice>,
}

/// Who does what.
#[derive(Default)]
pub(super) struct Roster {
    /// The reader.
    pub(super) reader: Option<Arc<Seat>>,
    /// Threads without work, the one parked last on top: its caches are warmest.
    parked: Vec<Arc<Seat>>,
    /// Every thread.
    pub(super) seats: Vec<Arc<Seat>>,
    /// The reader wanted relief and there was nobody.
    starved: bool,
    /// Requests that are to be interrupted and go on.
    pub(super) interrupts: usize,
    /// Threads started so far.
    started: usize,
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
    /// It waits, for at most so long.
    Park(Option<Duration>),
    /// It ends.
    Leave,
}

impl Crew {
    pub(crate) fn new(
        server: Arc<Server>,
        life: Arc<Life>,
        max_threads: usize,
        placement: Placement,
    ) -> Arc<Self> {
        let late = Arc::new(OverDevice(server.connection.clone()));
        Arc::new(Self {
            server,
            life,
            late,
            crowded: AtomicBool::new(false),
            kept: Mutex::default(),
            due_changed: Condvar::new(),
            clock_runs: AtomicBool::new(false),
            watchdog: Watchdog::new(),
            roster: Mutex::default(),
            placement,
            ring: OnceLock::new(),
            departed: Condvar::new(),
            max_threads: AtomicUsize::new(max_threads),
        })
    }

    /// From now on there may be so many threads.
    pub(crate) fn set_max_threads(&self, max_threads: usize) {
        self.max_threads.store(max_threads, Ordering::Relaxed);
    }

    /// Most requests come to these threads.
    pub(crate) fn set_ring(&self, ring: Arc<RingCrew>) {
        // Set once: a session has one.
        let _ = self.ring.set(ring);
    }

    /// Starts the reader and the watchdog.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        let own: Weak<Self> = Arc::downgrade(self);
        self.server.connection.set_substitute(own);
        sys::install_wake_handler()?;
        let mut roster = self.roster.lock();
        let first = self.recruit(&mut roster)?;
        roster.reader = Some(first.clone());
        drop(roster);
        let crew = self.clone();
        let watched = self.watchdog.start(move || watchdog::watch(&crew));
        if watched.is_err() {
            self.roster.lock().closed = true;
            first.hand(Baton::Leave);
        } else {
            first.hand(Baton::Read);
        }
        watched
    }

    /// A new thread, waiting for a baton. Its memory is had first: a thread that has to give up
    /// would be no help.
    fn recruit(self: &Arc<Self>, roster: &mut Roster) -> io::Result<Arc<Seat>> {
        let request = RequestBuffer::new(self.server.payload_bytes)?;
        let reply = ReplyBuffer::new(self.server.payload_bytes)?;
        let traffic = self.server.connection.counter();
        let seat = Arc::new(Seat::new(roster.started, traffic.join()));
        let (crew, own) = (self.clone(), seat.clone());
        let spawned = thread::Builder::new()
            .name("strandfs-device".to_owned())
            .spawn(move || device::work(&crew, &own, request, reply));
        if let Err(error) = spawned {
            traffic.leave(&seat.counts);
            return Err(error);
        }
        roster.started += 1;
        roster.seats.push(seat.clone());
        Ok(seat)
    }

    /// Hands the reader's role on while the request of `word` runs on `seat`. False if that
    /// request is over or nobody can take the role; the next thread without work then does.
    pub(super) fn relieve(self: &Arc<Self>, seat: &Seat, word: u64) -> bool {
        let mut roster = self.roster.lock();
        if roster.closed {
            return false;
        }
        let Some(next) = self.successor(&mut roster) else {
            roster.starved = true;
            return false;
        };
        if !seat.relieve(word) {
            roster.parked.push(next);
            return false;
        }
        seat.place(&self.placement, Role::Working);
        self.server.connection.counter().count_relief();
        self.note_blocked(&mut roster, seat);
        roster.reader = Some(next.clone());
        drop(roster);
        next.hand(Baton::Read);
        true
    }

    pub(super) fn successor(self: &Arc<Self>, roster: &mut Roster) -> Option<Arc<Seat>> {
        if let Some(parked) = roster.parked.pop() {
            return Some(parked);
        }
        if roster.seats.len() >= self.max_threads.load(Ordering::Relaxed) {
            return None;
        }
        match self.recruit(roster) {
            Ok(seat) => Some(seat),
            Err(error) => {
                tracing::warn!(%error, threads = roster.seats.len(), "no further thread");
                None
            }
        }
    }

    /// What a thread that finished a request as no reader does next.
    pub(super) fn rejoin(&self, seat: &Arc<Seat>) -> Next {
        let mut roster = self.roster.lock();
        if seat.finish_relieved() {
            roster.interrupts = roster.interrupts.saturating_sub(1);
        }
        self.note_unblocked(&mut roster, seat);
        if roster.closed {
            return Next::Leave;
        }
        if std::mem::take(&mut roster.starved)
            && let Some(reader) = roster.reader.clone()
            && reader.relieve(reader.word())
        {
            reader.place(&self.placement, Role::Working);
            self.server.connection.counter().count_relief();
            self.note_blocked(&mut roster, &reader);
            roster.reader = Some(seat.clone());
            return Next::Read;
        }
        if let Some(next) = self.next_kept() {
            return next;
        }
        Self::park(&mut roster, seat)
    }

    /// What a thread does next that was to carry out kept requests and found none.
    pub(super) fn idle(&self, seat: &Arc<Seat>) -> Next {
        let mut roster = self.roster.lock();
        if roster.closed {
            return Next::Leave;
        }
        Self::park(&mut roster, seat)
    }

    fn park(roster: &mut Roster, seat: &Arc<Seat>) -> Next {
        let surplus = roster.parked.len() >= KEPT;
        roster.parked.push(seat.clone());
        Next::Park(surplus.then_some(IDLE))
    }

    /// Whether a thread that was parked for long may end.
    pub(super) fn may_retire(&self, seat: &Arc<Seat>) -> bool {
        let mut roster = self.roster.lock();
        let place = roster.parked.iter().position(|it| Arc::ptr_eq(it, seat));
        match place {
            // Not parked: a baton is on its way.
            None => false,
            Some(place) if place < KEPT => false,
            Some(place) => {
                roster.parked.remove(place);
                true
            }
        }
    }

    /// A thread ends.
    pub(super) fn depart(&self, seat: &Arc<Seat>) {
        let mut roster = self.roster.lock();
        roster.seats.retain(|it| !Arc::ptr_eq(it, seat));
        roster.parked.retain(|it| !Arc::ptr_eq(it, seat));
        self.server.connection.counter().leave(&seat.counts);
        self.departed.notify_all();
    }

    /// After the end of the mount: sends the parked threads away, waits at most `patience` for
    /// those with a request, and interrupts their system calls after a while.
    pub(crate) fn disband(&self, patience: Duration) {
        let start = Instant::now();
        let mut roster = self.roster.lock();
        roster.closed = true;
        for seat in std::mem::take(&mut roster.parked) {
            seat.hand(Baton::Leave);
        }
        self.watchdog.wake();
        self.due_changed.notify_all();
        while !roster.seats.is_empty() && start.elapsed() < patience {
            // The reader may be reading from a connection that could not be aborted.
            let impatient = start.elapsed() >= PEACE;
            for seat in &roster.seats {
                let reading = !Seat::is_handling(seat.word()) && seat.relieved_request() == 0;
                if reading || impatient {
                    seat.signal();
                }
            }
            self.departed.wait_for(&mut roster, PRESS);
        }
        if !roster.seats.is_empty() {
            tracing::warn!(threads = roster.seats.len(), "requests outlive the mount");
        }
    }
}

impl Substitute for Crew {
    /// The kernel takes one answer to a request: the thread's own finds nobody waiting.
    fn answer_for(&self, thread: u32, errno: Errno) -> bool {
        let unique = {
            let roster = self.roster.lock();
            let seat = roster.seats.iter().find(|seat| seat.is_thread(thread));
            seat.map_or(0, |seat| seat.relieved_request())
        };
        if unique == 0 {
            return (self.ring.get()).is_some_and(|ring| ring.answer_for(thread, errno));
        }
        device::answer_with_error(&self.server, unique, errno)
    }
}
