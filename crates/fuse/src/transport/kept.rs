//! Requests of `/dev/fuse` that are carried out later, with no thread staying with them: such as
//! meet something that passes by itself (a lease), and those of a user whose share of threads is
//! taken.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use zerocopy::FromBytes;

use super::interrupt::has_to_be_done;
use crate::abi::InHeader;
use crate::traffic::Keeps;

/// Bytes that the kept requests of one user may take. Whoever has more gets EAGAIN.
const MOST_BYTES_OF_USER: usize = 64 << 20;
/// A request is tried again after such a part of the time it has waited already, at most.
const PART_OF_TIME: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The more of a user's requests wait, the less often each is tried.
const TIME_EACH: Duration = Duration::from_millis(1);
/// What keeping a request costs beside its bytes, roughly.
const OVERHEAD_BYTES: usize = 256;
/// The clock looks again after this long: a wake-up that came before the wait is made good by then.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// A request as it was read.
pub(super) struct KeptRequest {
    pub(super) unique: u64,
    pub(super) uid: u32,
    /// When it was read.
    pub(super) since: Instant,
    pub(super) bytes: Box<[u8]>,
}

impl KeptRequest {
    /// Whether it is carried out, interrupted or not.
    pub(super) fn has_to_be_done(&self) -> bool {
        let header = InHeader::read_from_prefix(&self.bytes);
        header.is_ok_and(|(header, argument)| has_to_be_done(header.opcode, argument))
    }

    fn weight(&self) -> usize {
        self.bytes.len() + OVERHEAD_BYTES
    }
}

/// What the kept requests of one user amount to.
#[derive(Clone, Copy, Default)]
struct Load {
    requests: u32,
    bytes: usize,
}

/// Where a kept request waits.
#[derive(Clone, Copy)]
enum Place {
    /// For a time.
    Due(Instant),
    /// For a thread of its user's share, as the number says in turn.
    Share(u32, u64),
    /// For any thread, in turn.
    Ready(u64),
}

/// Requests in the order they came.
type Queue = BTreeMap<u64, KeptRequest>;

/// All of them, and the clock: the thread that looks when they are due.
#[derive(Default)]
pub(super) struct KeptAndClock {
    kept: Mutex<Kept>,
    due_changed: Condvar,
    clock_runs: AtomicBool,
}

impl KeptAndClock {
    /// The requests. Locked after the worker table.
    pub(super) fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }

    /// A request was kept for a time: has the clock look again. True if no clock runs: the caller
    /// starts one, or says that it could not ([`Self::clock_ended`]).
    pub(super) fn needs_clock(&self) -> bool {
        // Nothing but the flag itself: what the clock reads is under a lock.
        if self.clock_runs.swap(true, Ordering::Relaxed) {
            self.due_changed.notify_one();
            return false;
        }
        true
    }

    /// No clock runs: the next request that is kept starts one.
    pub(super) fn clock_ended(&self) {
        self.clock_runs.store(false, Ordering::Relaxed);
    }

    /// Has the clock see that the mount has ended.
    pub(super) fn wake_clock(&self) {
        self.due_changed.notify_all();
    }

    /// One look of the clock: how many requests became ready. At none, sleeps until the next is due,
    /// half a second at most.
    pub(super) fn ripen_or_sleep(&self) -> usize {
        let mut kept = self.kept.lock();
        let ripe = kept.ripen(Instant::now());
        if ripe == 0 {
            let sleep = kept.next_due().map_or(LONGEST_SLEEP, |due| {
                due.saturating_duration_since(Instant::now())
                    .min(LONGEST_SLEEP)
            });
            self.due_changed.wait_for(&mut kept, sleep);
        }
        ripe
    }
}

impl Keeps for KeptAndClock {
    fn add_kept(&self, since: &mut Vec<Instant>) {
        since.extend(self.kept.lock().since());
    }
}

/// The requests themselves.
#[derive(Default)]
pub(super) struct Kept {
    places: HashMap<u64, Place>,
    due: BTreeMap<(Instant, u64), KeptRequest>,
    of_share: HashMap<u32, Queue>,
    ready: Queue,
    of_user: HashMap<u32, Load>,
    turns: u64,
}

impl Kept {
    /// Keeps a request for a while. It comes back if its user has too many.
    pub(super) fn keep_for(
        &mut self,
        request: KeptRequest,
        time: Duration,
    ) -> Result<(), KeptRequest> {
        if !self.weigh(&request) {
            return Err(request);
        }
        let load = self.of_user.get(&request.uid).copied().unwrap_or_default();
        let patience = (request.since.elapsed() / PART_OF_TIME).min(LONGEST_PAUSE);
        let at = Instant::now() + time.max(patience).max(TIME_EACH * load.requests);
        self.places.insert(request.unique, Place::Due(at));
        self.due.insert((at, request.unique), request);
        Ok(())
    }

    /// Keeps a request until a thread of its user is done. It comes back if its user has too many.
    pub(super) fn keep_for_share(&mut self, request: KeptRequest) -> Result<(), KeptRequest> {
        if !self.weigh(&request) {
            return Err(request);
        }
        let (uid, turn) = (request.uid, self.next_turn());
        self.places.insert(request.unique, Place::Share(uid, turn));
        self.of_share.entry(uid).or_default().insert(turn, request);
        Ok(())
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    fn make_ready(&mut self, request: KeptRequest) {
        let turn = self.next_turn();
        self.places.insert(request.unique, Place::Ready(turn));
        self.ready.insert(turn, request);
    }

    /// Whether there is room for it, which it takes then.
    fn weigh(&mut self, request: &KeptRequest) -> bool {
        let load = self.of_user.get(&request.uid).copied().unwrap_or_default();
        let with_it = Load {
            requests: load.requests + 1,
            bytes: load.bytes + request.weight(),
        };
        if with_it.bytes > MOST_BYTES_OF_USER {
            return false;
        }
        self.of_user.insert(request.uid, with_it);
        true
    }

    fn lighten(&mut self, request: &KeptRequest) {
        self.places.remove(&request.unique);
        if let Some(load) = self.of_user.get_mut(&request.uid) {
            load.requests = load.requests.saturating_sub(1);
            load.bytes = load.bytes.saturating_sub(request.weight());
            if load.requests == 0 {
                self.of_user.remove(&request.uid);
            }
        }
    }

    /// A thread of this user is done: one of the requests that wait for that may go. Whether there
    /// was any.
    pub(super) fn let_go(&mut self, uid: u32) -> bool {
        let queue = self.of_share.get_mut(&uid);
        let Some((_, request)) = queue.and_then(BTreeMap::pop_first) else {
            return false;
        };
        self.tidy(uid);
        self.make_ready(request);
        true
    }

    fn tidy(&mut self, uid: u32) {
        if self.of_share.get(&uid).is_some_and(BTreeMap::is_empty) {
            self.of_share.remove(&uid);
        }
    }

    /// Whose time has come is for any thread now: how many those are.
    fn ripen(&mut self, now: Instant) -> usize {
        let mut ripe = 0;
        while let Some(first) = self.due.first_entry() {
            if first.key().0 > now {
                break;
            }
            let request = first.remove();
            self.make_ready(request);
            ripe += 1;
        }
        ripe
    }

    /// When the next one is due.
    fn next_due(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Since when each has been there.
    fn since(&self) -> impl Iterator<Item = Instant> {
        let of_share = self.of_share.values().flat_map(Queue::values);
        let all = self.due.values().chain(self.ready.values()).chain(of_share);
        all.map(|request| request.since)
    }

    /// One to be carried out now.
    pub(super) fn take_ready(&mut self) -> Option<KeptRequest> {
        let (_, request) = self.ready.pop_first()?;
        self.lighten(&request);
        Some(request)
    }

    /// Whether there is one.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether none is kept.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// This one, wherever it waits.
    pub(super) fn get(&self, unique: u64) -> Option<&KeptRequest> {
        match *self.places.get(&unique)? {
            Place::Due(at) => self.due.get(&(at, unique)),
            Place::Ready(turn) => self.ready.get(&turn),
            Place::Share(uid, turn) => self.of_share.get(&uid)?.get(&turn),
        }
    }

    /// Takes this one out, wherever it waits: false if it is not kept (any more).
    pub(super) fn take(&mut self, unique: u64) -> bool {
        let request = match self.places.get(&unique).copied() {
            None => None,
            Some(Place::Due(at)) => self.due.remove(&(at, unique)),
            Some(Place::Ready(turn)) => {
                let request = self.ready.remove(&turn);
                // A thread is on its way to it: the turn is the next one's.
                if let Some(request) = &request {
                    self.let_go(request.uid);
                }
                request
            }
            Some(Place::Share(uid, turn)) => {
                let queue = self.of_share.get_mut(&uid);
                let request = queue.and_then(|queue| queue.remove(&turn));
                self.tidy(uid);
                request
            }
        };
        let Some(request) = request else {
            return false;
        };
        self.lighten(&request);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(unique: u64, uid: u32, len: usize) -> KeptRequest {
        KeptRequest {
            unique,
            uid,
            since: Instant::now(),
            bytes: vec![0; len].into(),
        }
    }

    #[test]
    fn what_is_kept_comes_back_when_it_is_due() {
        let mut kept = Kept::default();
        let hour = Duration::from_secs(3600);
        assert!(kept.keep_for(request(2, 7, 10), Duration::ZERO).is_ok());
        assert!(kept.keep_for(request(4, 7, 10), hour).is_ok());
        assert!(!kept.is_ready());
        assert_eq!(kept.ripen(Instant::now() + hour / 2), 1);
        assert_eq!(kept.take_ready().map(|it| it.unique), Some(2));
        assert!(kept.next_due().is_some() && !kept.is_ready());
        assert!(kept.take(4) && !kept.take(4));
        assert!(kept.is_empty() && kept.next_due().is_none() && kept.of_user.is_empty());
    }

    #[test]
    fn a_users_own_wait_for_that_users_threads() {
        let mut kept = Kept::default();
        for unique in [2, 4, 6] {
            assert!(kept.keep_for_share(request(unique, 7, 10)).is_ok());
        }
        assert!(!kept.let_go(8));
        assert!(kept.take(4));
        assert!(kept.let_go(7) && kept.let_go(7) && !kept.let_go(7));
        let order: Vec<u64> = std::iter::from_fn(|| kept.take_ready())
            .map(|it| it.unique)
            .collect();
        assert_eq!(order, [2, 6]);
        assert!(kept.is_empty() && kept.of_share.is_empty());
    }

    /// The one that was let go is interrupted before a thread takes it: nobody else would wake the next.
    #[test]
    fn the_turn_of_an_interrupted_request_is_the_next_ones() {
        let mut kept = Kept::default();
        for unique in [2, 4] {
            assert!(kept.keep_for_share(request(unique, 7, 10)).is_ok());
        }
        assert!(kept.let_go(7) && kept.take(2));
        assert_eq!(kept.take_ready().map(|it| it.unique), Some(4));
        assert!(kept.is_empty() && kept.of_share.is_empty());
    }

    #[test]
    fn what_gives_back_a_lock_is_not_ended_before_it_is_begun() {
        use crate::abi::{FileLock, LkIn, Opcode};
        use zerocopy::IntoBytes;

        let asked = |opcode: Opcode, kind: i32| {
            let header = InHeader {
                opcode: opcode as u32,
                ..InHeader::default()
            };
            let lock = LkIn {
                lk: FileLock {
                    kind: kind.cast_unsigned(),
                    ..FileLock::default()
                },
                ..LkIn::default()
            };
            let bytes = [header.as_bytes(), lock.as_bytes()].concat();
            KeptRequest {
                bytes: bytes.into(),
                ..request(2, 7, 0)
            }
        };
        assert!(asked(Opcode::Flush, 0).has_to_be_done());
        assert!(asked(Opcode::Setlkw, libc::F_UNLCK).has_to_be_done());
        assert!(!asked(Opcode::Setlkw, libc::F_WRLCK).has_to_be_done());
        assert!(!asked(Opcode::Open, libc::F_UNLCK).has_to_be_done());
    }

    #[test]
    fn nobody_keeps_more_than_a_share_of_memory() {
        let mut kept = Kept::default();
        let half = MOST_BYTES_OF_USER / 2;
        assert!(kept.keep_for_share(request(2, 7, half)).is_ok());
        assert!(kept.keep_for_share(request(4, 7, half)).is_err());
        assert!(kept.keep_for_share(request(6, 8, half)).is_ok());
        assert!(kept.take(2));
        assert!(kept.keep_for_share(request(4, 7, half)).is_ok());
    }
}
