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
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::super::caller;
use super::super::interrupt::has_to_be_done;
use super::entry::RingEntry;
use crate::deferred::AnswerLater;
use crate::traffic::Keeps;
use crate::types::Errno;

/// How many requests of one user, other than root, may wait. What wants to wait beyond gets ENOLCK.
const MOST_OF_USER: usize = 4096;
/// How many of all users.
const MOST: usize = 32_768;
/// Payload of one user's requests that wait for the user's share. What is more gets EAGAIN.
const MOST_BYTES_OF_USER: usize = 64 << 20;
/// A request is tried again after such a part of the time it has waited already, at most.
const PART_OF_TIME: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The more requests wait to be tried again, the less often each is.
const TIME_EACH: Duration = Duration::from_millis(1);

/// After such a time of waiting the caller is looked at: most locks are free before.
const LOOK_AFTER: Duration = Duration::from_millis(30);
/// So many at a time.
const LOOKS: usize = 64;

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
    /// It waits for a thread of its user's share.
    Share(RingEntry),
}

#[derive(Default)]
struct State {
    places: HashMap<u64, (u32, Place)>,
    of_user: HashMap<u32, usize>,
    due: BTreeMap<(Instant, u64), ()>,
    /// Who waits for their user's share, in turn.
    of_share: HashMap<u32, VecDeque<u64>>,
    /// Those that need not any more and have not been begun.
    let_go: HashMap<u64, u32>,
    /// Payload of what waits for its user's share.
    share_bytes: HashMap<u32, usize>,
    /// Those that began to wait then: whether their callers still do is looked for once.
    looks: VecDeque<(Instant, u64, u32)>,
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
        self.check_counts();
        Some(place)
    }

    fn add(&mut self, unique: u64, uid: u32, place: Place) {
        *self.of_user.entry(uid).or_default() += 1;
        let other = self.places.insert(unique, (uid, place));
        debug_assert!(other.is_none(), "{unique} waits twice");
        self.check_counts();
    }

    /// Each request that waits is counted for one user.
    fn check_counts(&self) {
        debug_assert_eq!(self.of_user.values().sum::<usize>(), self.places.len());
    }

    /// Has the first of this user's that wait for their share begun next; whether there is any.
    fn let_go(&mut self, uid: u32) -> bool {
        let Some(queue) = self.of_share.get_mut(&uid) else {
            return false;
        };
        let first = queue.pop_front();
        if queue.is_empty() {
            self.of_share.remove(&uid);
        }
        let Some((unique, place)) =
            first.and_then(|unique| Some((unique, &mut self.places.get_mut(&unique)?.1)))
        else {
            return false;
        };
        let now = Instant::now();
        let mut bytes = 0;
        *place = match std::mem::replace(place, Place::Begun) {
            Place::Share(entry) => {
                bytes = entry.payload_bytes();
                Place::Again(entry, now)
            }
            other => other,
        };
        self.lighten(uid, bytes);
        self.due.insert((now, unique), ());
        self.let_go.insert(unique, uid);
        true
    }

    /// Has the caller looked at after a while; whether nobody waits for that time yet.
    fn look_later(&mut self, entry: &RingEntry) -> bool {
        let Some(header) = entry.header() else {
            return false;
        };
        let (is_first, thread) = (self.looks.is_empty(), caller::of(&header));
        if thread == 0 {
            return false;
        }
        let at = Instant::now() + LOOK_AFTER;
        self.looks.push_back((at, header.unique, thread));
        is_first
    }

    fn lighten(&mut self, uid: u32, bytes: usize) {
        if let Some(load) = self.share_bytes.get_mut(&uid) {
            *load = load.saturating_sub(bytes);
            if *load == 0 {
                self.share_bytes.remove(&uid);
            }
        }
    }

    /// The request that no thread is with, unless somebody else answers it.
    fn entry(&self, unique: u64) -> Option<&RingEntry> {
        match self.places.get(&unique) {
            Some((_, Place::Again(entry, _) | Place::Share(entry))) => Some(entry),
            Some(_) => None,
            None => {
                let mut stranded = self.requests.iter().flatten();
                stranded.find(|entry| entry.unique() == unique)
            }
        }
    }

    /// Takes that request away from where it waits.
    fn withdraw(&mut self, unique: u64) -> Option<RingEntry> {
        let uid = self.places.get(&unique).map(|(uid, _)| *uid);
        let entry = match (uid, self.remove(unique)) {
            (_, Some(Place::Again(entry, at))) => {
                self.due.remove(&(at, unique));
                entry
            }
            (Some(uid), Some(Place::Share(entry))) => {
                self.lighten(uid, entry.payload_bytes());
                self.forget_of_share(uid, unique);
                entry
            }
            _ => self.requests.iter_mut().find_map(|queue| {
                let place = queue.iter().position(|entry| entry.unique() == unique)?;
                queue.remove(place)
            })?,
        };
        self.since.remove(&unique);
        if let Some(uid) = self.let_go.remove(&unique) {
            // Its turn is the next one's.
            self.let_go(uid);
        }
        Some(entry)
    }

    /// This one waits no more.
    fn forget_of_share(&mut self, uid: u32, unique: u64) {
        if let Some(queue) = self.of_share.get_mut(&uid) {
            queue.retain(|waiting| *waiting != unique);
            if queue.is_empty() {
                self.of_share.remove(&uid);
            }
        }
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
    /// How many have been let go and not begun.
    let_go: AtomicUsize,
    /// Wakes the keeper.
    pub(super) news: Arc<OwnedFd>,
    pub(super) runs: AtomicBool,
}

impl Keeps for Late {
    fn add_kept(&self, since: &mut Vec<Instant>) {
        let state = self.state.lock();
        let kept = state.places.iter().filter_map(|(unique, (_, place))| {
            let (Place::Again(entry, _) | Place::Share(entry)) = place else {
                return None;
            };
            let began = state.since.get(unique).copied();
            began.or(entry.waits_since())
        });
        since.extend(kept);
    }
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
            let_go: AtomicUsize::new(0),
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
        // It is not carried out again any more.
        state.since.remove(&unique);
        self.tried.store(state.since.len(), Ordering::Relaxed);
        state.add(unique, uid, Place::Begun);
        Ok(())
    }

    /// Its thread has been answered for by somebody else.
    pub(super) fn forget(&self, unique: u64) {
        self.is_over(unique);
        self.state.lock().remove(unique);
    }

    /// Its thread is done with it.
    pub(super) fn park(&self, unique: u64, entry: RingEntry) -> Parked {
        let mut state = self.state.lock();
        match state.places.get(&unique) {
            Some((_, Place::Begun)) => {
                let is_first = state.look_later(&entry);
                if let Some((_, place)) = state.places.get_mut(&unique) {
                    *place = Place::Waits(entry);
                }
                drop(state);
                if is_first {
                    self.wake();
                }
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
    pub(super) fn park_for(&self, unique: u64, uid: u32, mut entry: RingEntry, after: Duration) {
        entry.begin_to_wait();
        let mut state = self.state.lock();
        let waited = state
            .since
            .get(&unique)
            .map_or(Duration::ZERO, Instant::elapsed);
        let own = state.of_user.get(&uid).copied().unwrap_or_default();
        let crowd = TIME_EACH * u32::try_from(own).unwrap_or(u32::MAX);
        let patience = (waited / PART_OF_TIME).min(LONGEST_PAUSE);
        let at = Instant::now() + after.max(patience).max(crowd);
        state.look_later(&entry);
        state.add(unique, uid, Place::Again(entry, at));
        state.due.insert((at, unique), ());
        drop(state);
        self.wake();
    }

    /// A request is to wait for its user's share; it comes back if too many do.
    pub(super) fn park_for_share(
        &self,
        unique: u64,
        uid: u32,
        mut entry: RingEntry,
    ) -> Result<(), RingEntry> {
        entry.begin_to_wait();
        let mut state = self.state.lock();
        if !state.has_room(uid) {
            return Err(entry);
        }
        let load = state.share_bytes.get(&uid).copied().unwrap_or_default();
        if load + entry.payload_bytes() > MOST_BYTES_OF_USER {
            return Err(entry);
        }
        *state.share_bytes.entry(uid).or_default() += entry.payload_bytes();
        let is_first = state.look_later(&entry);
        state.add(unique, uid, Place::Share(entry));
        state.of_share.entry(uid).or_default().push_back(unique);
        drop(state);
        if is_first {
            self.wake();
        }
        Ok(())
    }

    /// One request of each user who may begin another goes on, of those that wait for their share.
    pub(super) fn let_go(&self, may_begin: impl Fn(u32) -> bool) {
        let mut state = self.state.lock();
        if state.of_share.is_empty() {
            return;
        }
        let users: Vec<u32> = state.of_share.keys().copied().collect();
        for uid in users.into_iter().filter(|uid| may_begin(*uid)) {
            state.let_go(uid);
        }
        self.let_go.store(state.let_go.len(), Ordering::Relaxed);
        drop(state);
        self.wake();
    }

    /// Whether any has been let go and not begun.
    pub(super) fn has_let_go(&self) -> bool {
        self.let_go.load(Ordering::Relaxed) > 0
    }

    /// Whether this one has been let go; it is begun now.
    pub(super) fn take_let_go(&self, unique: u64) -> bool {
        if !self.has_let_go() {
            return false;
        }
        let mut state = self.state.lock();
        let was = state.let_go.remove(&unique).is_some();
        self.let_go.store(state.let_go.len(), Ordering::Relaxed);
        was
    }

    /// Ends one that no thread is with and nobody else answers, unless it gives back what others wait
    /// for; false if there is none such.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        let Some(entry) = state.entry(unique) else {
            return false;
        };
        let argument = &entry.parts().0.op_in;
        if (entry.header()).is_some_and(|header| has_to_be_done(header.opcode, argument)) {
            return true;
        }
        let Some(mut entry) = state.withdraw(unique) else {
            return false;
        };
        self.let_go.store(state.let_go.len(), Ordering::Relaxed);
        for (count, requests) in self.stranded.iter().zip(&state.requests) {
            count.store(requests.len(), Ordering::Relaxed);
        }
        // What was sent with it needs no memory any more.
        entry.trim();
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

    /// Whether the keeper has entries of this queue with the kernel. A thread that is about to do
    /// without an entry asks with the queue's lock, which the keeper takes after it has lost one.
    pub(super) fn serves(&self, queue: usize) -> bool {
        let spare = self.spare.get(queue);
        spare.is_some_and(|spare| spare.load(Ordering::Relaxed) > 0)
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

    pub(super) fn strand(&self, mut entry: RingEntry) {
        entry.begin_to_wait();
        let queue = usize::from(entry.queue());
        let mut state = self.state.lock();
        if let (Some(requests), Some(count)) =
            (state.requests.get_mut(queue), self.stranded.get(queue))
        {
            requests.push_back(entry);
            count.store(requests.len(), Ordering::Relaxed);
        }
    }

    /// The replies that are to be committed.
    pub(super) fn take_replies(&self) -> Vec<RingEntry> {
        std::mem::take(&mut self.state.lock().replies)
    }

    /// Whose caller is to be looked at now, of those that still wait; and when the next is.
    pub(super) fn take_looks(&self, now: Instant) -> (Vec<(u64, u32)>, Option<Duration>) {
        let mut found = Vec::new();
        let mut state = self.state.lock();
        while let Some((at, unique, thread)) = state.looks.front().copied() {
            if found.len() >= LOOKS {
                return (found, Some(Duration::ZERO));
            }
            if at > now {
                // All of a while together: most of them are answered by then.
                return (found, Some(LOOK_AFTER));
            }
            state.looks.pop_front();
            if state.places.contains_key(&unique) {
                found.push((unique, thread));
            }
        }
        (found, None)
    }

    fn wake(&self) {
        // Fails only if the counter is full, and then the keeper is awake.
        let _ = rustix::io::write(&self.news, &1_u64.to_ne_bytes());
    }

    /// What is due now, and when the next is.
    pub(super) fn take_due(&self, now: Instant) -> (Vec<RingEntry>, Option<Duration>) {
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

    pub(super) fn count_spare(&self, queue: u16, more: bool) {
        if let Some(spare) = self.spare.get(usize::from(queue)) {
            let before = match more {
                true => spare.fetch_add(1, Ordering::Relaxed),
                false => spare.fetch_sub(1, Ordering::Relaxed),
            };
            debug_assert!(more || before > 0, "an entry that the keeper never had");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{InHeader, Opcode};
    use zerocopy::IntoBytes;

    const MALLORY: u32 = 6101;

    fn entry(unique: u64, opcode: Opcode, payload: u32) -> RingEntry {
        let mut entry = RingEntry::new(0, 8192).unwrap();
        let header = InHeader {
            unique,
            opcode: opcode as u32,
            pid: 7,
            ..InHeader::default()
        };
        let (headers, _) = entry.parts_mut();
        headers.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        headers.ring_ent_in_out.payload_sz = payload;
        entry
    }

    fn waits_for_share(late: &Late, unique: u64) {
        let parked = late.park_for_share(unique, MALLORY, entry(unique, Opcode::Open, 0));
        assert!(parked.is_ok());
    }

    fn answered(late: &Late) -> Vec<u64> {
        let replies = late.take_replies();
        // The header of a reply has the number where that of a request has.
        replies.iter().map(RingEntry::unique).collect()
    }

    #[test]
    fn an_interrupt_finds_a_request_wherever_it_waits() {
        let late = Late::new(1).unwrap();
        late.park_for(2, MALLORY, entry(2, Opcode::Open, 0), LONGEST_PAUSE);
        waits_for_share(&late, 4);
        // Many came at once, and no thread was left for this one.
        late.strand(entry(6, Opcode::Open, 0));
        for unique in [2, 4, 6] {
            assert!(late.interrupt(unique) && !late.interrupt(unique));
        }
        assert_eq!(answered(&late), [2, 4, 6]);
        let state = late.state.lock();
        assert!(state.places.is_empty() && state.due.is_empty());
        assert!(state.of_share.is_empty() && state.of_user.is_empty());
        drop(state);
        assert!(!late.is_stranded(0));
    }

    #[test]
    fn what_has_to_be_done_goes_on_though_it_is_interrupted() {
        let late = Late::new(1).unwrap();
        let parked = late.park_for_share(2, MALLORY, entry(2, Opcode::Flush, 0));
        assert!(parked.is_ok());
        late.strand(entry(4, Opcode::Flush, 0));
        assert!(late.interrupt(2) && late.interrupt(4));
        assert_eq!(answered(&late), []);
        late.let_go(|_| true);
        assert_eq!(late.take_due(Instant::now()).0.len(), 1);
        assert!(late.take_stranded(0).is_some());
    }

    /// The one that was let go is interrupted before a thread begins it: nobody else would wake the next.
    #[test]
    fn the_turn_of_an_interrupted_request_is_the_next_ones() {
        for stranded in [false, true] {
            let late = Late::new(1).unwrap();
            waits_for_share(&late, 2);
            waits_for_share(&late, 4);
            late.let_go(|_| true);
            if stranded {
                let (due, _) = late.take_due(Instant::now());
                due.into_iter().for_each(|entry| late.strand(entry));
            }
            assert!(late.interrupt(2));
            let (due, _) = late.take_due(Instant::now());
            assert_eq!(due.iter().map(RingEntry::unique).collect::<Vec<_>>(), [4]);
            assert!(late.take_let_go(4) && !late.has_let_go());
        }
    }

    #[test]
    fn the_callers_of_those_that_wait_for_long_are_looked_at() {
        let late = Late::new(1).unwrap();
        for unique in [2, 4] {
            late.begin(unique, MALLORY).unwrap();
            assert!(matches!(
                late.park(unique, entry(unique, Opcode::Setlkw, 0)),
                Parked::Kept
            ));
        }
        late.park_for(6, MALLORY, entry(6, Opcode::Open, 0), LONGEST_PAUSE);
        late.park_for(8, MALLORY, entry(8, Opcode::Read, 0), LONGEST_PAUSE);
        late.answer(2, Ok(()));
        let now = Instant::now();
        let (none, next) = late.take_looks(now);
        assert!(none.is_empty() && next.is_some_and(|next| next <= LOOK_AFTER));
        let (found, next) = late.take_looks(now + LOOK_AFTER);
        // Nobody waits for what is read ahead.
        assert_eq!(found, [(4, 7), (6, 7)]);
        assert!(next.is_none());
    }

    #[test]
    fn nothing_is_known_of_attempts_when_a_request_is_left_to_others() {
        let late = Late::new(1).unwrap();
        assert!(late.may_try_again(2, MALLORY, LONGEST_PAUSE));
        late.begin(2, MALLORY).unwrap();
        assert!(late.may_try_again(4, MALLORY, LONGEST_PAUSE));
        late.forget(4);
        assert_eq!(late.tried.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_waits_for_a_share_takes_a_share_of_memory() {
        let late = Late::new(1).unwrap();
        let half = (MOST_BYTES_OF_USER / 2) as u32;
        let park =
            |unique, uid| late.park_for_share(unique, uid, entry(unique, Opcode::Write, half));
        assert!(park(2, MALLORY).is_ok() && park(4, MALLORY).is_ok());
        assert!(park(6, MALLORY).is_err() && park(8, 6102).is_ok());
        assert!(late.interrupt(2) && park(6, MALLORY).is_ok());
        late.let_go(|uid| uid == MALLORY);
        assert!(park(10, MALLORY).is_ok());
    }
}
