//! Requests that came over a ring and are answered later, while no thread stays with them.
//!
//! A request keeps its entry until its reply is committed, so each that waits takes an entry, and
//! its thread goes on with a new one. A reply is committed by one thread that never carries anything
//! out, the *keeper*, whoever answers: from then on the entry is the keeper's, with the kernel, which
//! may put the next request of its queue into it. Such a request goes with its entry to a thread of
//! the queue that has none, or to a further one; and where no further thread may be, to one that
//! waits in its ring, which gives the entry back with the reply. A thread whose request waits takes
//! no new entry while the keeper has some of its queue with the kernel: so there are never many more
//! entries than requests have waited at the same time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::crew::RingCrew;
use super::entry::RingEntry;
use super::headcount::Admission;
use super::queue::{Completion, Ring};
use super::work::Begin;
use crate::deferred::AnswerLater;
use crate::types::Errno;

/// How many requests of one user, other than root, may wait. What wants to wait beyond gets ENOLCK.
const MOST_OF_USER: usize = 4096;
/// How many of all users.
const MOST: usize = 32_768;
/// Replies that are committed with one call.
const COMMITS: u32 = 64;
/// Pause before a thread is looked for again, for a request that has none.
const RETRY: Duration = Duration::from_millis(10);
/// A request is tried again after such a part of the time it has waited already, at most.
const PART_OF_TIME: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The more requests wait to be tried again, the less often each is.
const TIME_EACH: Duration = Duration::from_millis(1);

/// Where a request is that no thread is with.
enum Place {
    /// Its thread is not done with it yet.
    Begun,
    /// It was answered before its thread was done.
    Answered(Result<(), Errno>),
    /// It waits for its answer.
    Waits(RingEntry),
    /// It is carried out again then.
    Again(RingEntry, Instant),
}

#[derive(Default)]
struct State {
    places: HashMap<u64, (u32, Place)>,
    of_user: HashMap<u32, usize>,
    due: BTreeMap<(Instant, u64), ()>,
    /// When those came that are carried out again.
    since: HashMap<u64, Instant>,
    /// Replies for the keeper to commit.
    replies: Vec<RingEntry>,
    /// Requests that came in an entry of the keeper's and have no thread, by queue.
    requests: Vec<VecDeque<RingEntry>>,
}

impl State {
    fn remove(&mut self, unique: u64) -> Option<Place> {
        let (uid, place) = self.places.remove(&unique)?;
        if let Some(count) = self.of_user.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&uid);
            }
        }
        Some(place)
    }

    fn add(&mut self, unique: u64, uid: u32, place: Place) {
        *self.of_user.entry(uid).or_default() += 1;
        self.places.insert(unique, (uid, place));
    }

    fn has_room(&self, uid: u32) -> bool {
        let own = self.of_user.get(&uid).copied().unwrap_or_default();
        uid == 0 || own < MOST_OF_USER && self.places.len() < MOST
    }
}

/// All requests that no thread is with.
pub(super) struct Late {
    state: Mutex<State>,
    /// Entries of each queue that the keeper has with the kernel.
    spare: Box<[AtomicUsize]>,
    /// Requests of each queue without a thread.
    stranded: Box<[AtomicUsize]>,
    /// Requests that are known to have been tried before.
    tried: AtomicUsize,
    /// Wakes the keeper.
    news: Arc<OwnedFd>,
    runs: AtomicBool,
}

/// What a thread does with an entry whose request waits.
pub(super) enum Parked {
    /// Nothing: it is not the thread's any more.
    Kept,
    /// It answers: that was decided meanwhile.
    Reply(RingEntry, Result<(), Errno>),
}

impl Late {
    pub(super) fn new(queues: usize) -> Result<Arc<Self>, Errno> {
        let counts = || (0..queues).map(|_| AtomicUsize::new(0)).collect();
        let state = State {
            requests: (0..queues).map(|_| VecDeque::new()).collect(),
            ..State::default()
        };
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            spare: counts(),
            stranded: counts(),
            tried: AtomicUsize::new(0),
            news: Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?),
            runs: AtomicBool::new(false),
        }))
    }

    /// A request is going to be answered later; ENOLCK if too many are.
    pub(super) fn begin(&self, unique: u64, uid: u32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if !state.has_room(uid) {
            return Err(Errno::NOLCK);
        }
        state.add(unique, uid, Place::Begun);
        Ok(())
    }

    /// Its thread has been answered for by somebody else.
    pub(super) fn forget(&self, unique: u64) {
        self.state.lock().remove(unique);
    }

    /// Its thread is done with it.
    pub(super) fn park(&self, unique: u64, entry: RingEntry) -> Parked {
        let mut state = self.state.lock();
        match state.places.get_mut(&unique) {
            Some((_, place @ Place::Begun)) => {
                *place = Place::Waits(entry);
                Parked::Kept
            }
            _ => {
                let answered = match state.remove(unique) {
                    Some(Place::Answered(result)) => result,
                    _ => Err(Errno::IO),
                };
                Parked::Reply(entry, answered)
            }
        }
    }

    /// Whether a request may wait to be carried out again.
    pub(super) fn may_try_again(&self, unique: u64, uid: u32, at_most: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.has_room(uid) {
            return false;
        }
        let since = *state.since.entry(unique).or_insert_with(Instant::now);
        self.tried.store(state.since.len(), Ordering::Relaxed);
        since.elapsed() <= at_most
    }

    /// A request is answered: nothing is known of it any more.
    pub(super) fn is_over(&self, unique: u64) {
        if self.tried.load(Ordering::Relaxed) > 0 {
            let mut state = self.state.lock();
            state.since.remove(&unique);
            self.tried.store(state.since.len(), Ordering::Relaxed);
        }
    }

    /// A request is to be carried out again after this time.
    pub(super) fn park_for(&self, unique: u64, uid: u32, entry: RingEntry, after: Duration) {
        let mut state = self.state.lock();
        let waited = state
            .since
            .get(&unique)
            .map_or(Duration::ZERO, Instant::elapsed);
        let own = state.of_user.get(&uid).copied().unwrap_or_default();
        let crowd = TIME_EACH * u32::try_from(own).unwrap_or(u32::MAX);
        let patience = (waited / PART_OF_TIME).min(LONGEST_PAUSE);
        let at = Instant::now() + after.max(patience).max(crowd);
        state.add(unique, uid, Place::Again(entry, at));
        state.due.insert((at, unique), ());
        drop(state);
        self.wake();
    }

    /// Ends one that waits to be carried out again; false if there is none such.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        if !matches!(state.places.get(&unique), Some((_, Place::Again(..)))) {
            return false;
        }
        let Some(Place::Again(mut entry, at)) = state.remove(unique) else {
            return false;
        };
        state.due.remove(&(at, unique));
        state.since.remove(&unique);
        entry.set_reply(unique, Some(Errno::INTR), 0);
        state.replies.push(entry);
        drop(state);
        self.wake();
        true
    }

    /// An entry of the keeper's, with its reply.
    pub(super) fn give_back(&self, entry: RingEntry) {
        self.state.lock().replies.push(entry);
        self.wake();
    }

    /// Whether the keeper has entries of this queue with the kernel.
    pub(super) fn serves(&self, queue: usize) -> bool {
        let spare = self.spare.get(queue);
        spare.is_some_and(|spare| spare.load(Ordering::SeqCst) > 0)
    }

    /// Whether a request of this queue has no thread.
    pub(super) fn is_stranded(&self, queue: usize) -> bool {
        let stranded = self.stranded.get(queue);
        stranded.is_some_and(|stranded| stranded.load(Ordering::Relaxed) > 0)
    }

    /// A request of this queue that has no thread.
    pub(super) fn take_stranded(&self, queue: usize) -> Option<RingEntry> {
        if !self.is_stranded(queue) {
            return None;
        }
        let mut state = self.state.lock();
        let requests = state.requests.get_mut(queue)?;
        let entry = requests.pop_front();
        let left = requests.len();
        self.stranded.get(queue)?.store(left, Ordering::Relaxed);
        entry
    }

    fn strand(&self, entry: RingEntry) {
        let queue = usize::from(entry.queue());
        let mut state = self.state.lock();
        if let (Some(requests), Some(count)) =
            (state.requests.get_mut(queue), self.stranded.get(queue))
        {
            requests.push_back(entry);
            count.store(requests.len(), Ordering::Relaxed);
        }
    }

    fn wake(&self) {
        // Fails only if the counter is full, and then the keeper is awake.
        let _ = rustix::io::write(&self.news, &1_u64.to_ne_bytes());
    }

    /// What is due now, and when the next is.
    fn take_due(&self, now: Instant) -> (Vec<RingEntry>, Option<Duration>) {
        let mut due = Vec::new();
        let mut state = self.state.lock();
        while let Some(first) = state.due.first_entry() {
            let (at, unique) = *first.key();
            if at > now {
                return (due, Some(at - now));
            }
            first.remove();
            if let Some(Place::Again(entry, _)) = state.remove(unique) {
                due.push(entry);
            }
        }
        (due, None)
    }

    fn count_spare(&self, queue: u16, more: bool) {
        if let Some(spare) = self.spare.get(usize::from(queue)) {
            match more {
                true => spare.fetch_add(1, Ordering::SeqCst),
                false => spare.fetch_sub(1, Ordering::SeqCst),
            };
        }
    }
}

impl AnswerLater for Late {
    fn answer(&self, unique: u64, result: Result<(), Errno>) {
        let mut state = self.state.lock();
        match state.places.get_mut(&unique) {
            Some((_, place @ Place::Begun)) => *place = Place::Answered(result),
            Some((_, Place::Waits(_))) => {
                if let Some(Place::Waits(mut entry)) = state.remove(unique) {
                    entry.set_reply(unique, result.err(), 0);
                    entry.set_answered(None);
                    state.replies.push(entry);
                    drop(state);
                    self.wake();
                }
            }
            _ => {}
        }
    }
}

impl RingCrew {
    /// Sees to it that the keeper runs; false if it cannot.
    pub(super) fn has_keeper(self: &Arc<Self>) -> bool {
        if self.late.runs.swap(true, Ordering::SeqCst) {
            return true;
        }
        let started = self.start_keeper();
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread to answer waiting requests: each keeps its own");
            self.late.runs.store(false, Ordering::SeqCst);
        }
        started.is_ok()
    }

    fn start_keeper(self: &Arc<Self>) -> std::io::Result<()> {
        let ring = Ring::new(self.server.connection.clone(), COMMITS)?;
        self.threads.lock().admit(Admission::Further)?;
        let crew = self.clone();
        let spawned = thread::Builder::new()
            .name("strandfs-keeper".to_owned())
            .spawn(move || {
                if let Err(errno) = keep(&crew, ring) {
                    crew.end(errno);
                }
                crew.depart();
            });
        spawned.map(drop).inspect_err(|_| self.depart())
    }

    /// Finds a thread for a request that came in an entry of the keeper's, or is due again.
    fn deliver(self: &Arc<Self>, entry: RingEntry) {
        let queue = usize::from(entry.queue());
        let Some(mut state) = self.queue(queue) else {
            return;
        };
        if let Some(idle) = state.idle.pop() {
            state.present += 1;
            drop(state);
            return idle.give(Begin::Answer(entry));
        }
        let Err((begin, error)) = self.recruit(queue, &mut state, Begin::Answer(entry)) else {
            return;
        };
        tracing::debug!(%error, queue, "a request waits for a thread");
        if let Begin::Answer(entry) = begin {
            self.late.strand(entry);
        }
        // One that waits for requests looks for it when it is woken.
        let waiting = state.posts.iter().find(|post| post.is_at_rest());
        if let Some(post) = waiting {
            post.signal();
        }
    }

    /// Looks for threads for those that have none.
    fn deliver_stranded(self: &Arc<Self>) -> bool {
        let mut left = false;
        for queue in 0..self.queues.len() {
            if let Some(entry) = self.late.take_stranded(queue) {
                self.deliver(entry);
                left |= self.late.is_stranded(queue);
            }
        }
        left
    }
}

/// The life of the keeper.
fn keep(crew: &Arc<RingCrew>, mut ring: Ring) -> Result<(), Errno> {
    let late = Arc::clone(&crew.late);
    ring.start()?;
    // Room for the count that an eventfd gives.
    let count = RingEntry::new(0, rustix::param::page_size())?;
    ring.read_file(count, &late.news, 0, 0..size_of::<u64>());
    while !crew.life.has_ended() {
        let replies = std::mem::take(&mut late.state.lock().replies);
        for entry in replies {
            late.count_spare(entry.queue(), true);
            ring.commit(entry);
        }
        let (due, mut patience) = late.take_due(Instant::now());
        due.into_iter().for_each(|entry| crew.deliver(entry));
        if crew.deliver_stranded() || (0..crew.queues.len()).any(|queue| late.is_stranded(queue)) {
            patience = Some(patience.map_or(RETRY, |patience| patience.min(RETRY)));
        }
        match ring.wait(patience) {
            Ok(()) | Err(Errno::TIME) => {}
            Err(Errno::INTR) if !crew.life.has_ended() => {}
            Err(errno) => return Err(errno),
        }
        while let Some(completion) = ring.next() {
            match completion {
                Completion::Request(entry) => {
                    late.count_spare(entry.queue(), false);
                    crew.deliver(entry);
                }
                Completion::Transferred(entry, _) => {
                    ring.read_file(entry, &late.news, 0, 0..size_of::<u64>());
                }
                // Nobody waited for that reply: the entry is offered anew.
                Completion::Lost(entry, Errno::NOENT) => ring.register(entry),
                Completion::Lost(_, errno) => return Err(errno),
            }
        }
    }
    Ok(())
}
