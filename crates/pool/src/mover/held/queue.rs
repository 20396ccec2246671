//! Who waits for room on one branch, in the order in which they came.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::caller::Doing;
use super::ledger::Facts;
use super::room;
use crate::base::branch::BranchId;
use crate::base::sys;
use crate::mover::Mover;
use crate::mover::gain::{Gain, InVain, Remains, Room};
use crate::mover::relay::Relay;

/// For so long after somebody had to wait room is made for what comes next.
const WANTED_FOR: Duration = Duration::from_secs(2);
/// At least for so long nothing is tried again where nothing could be moved.
const HOPELESS_FOR: Duration = Duration::from_secs(5);

/// Those of one branch.
pub(super) struct Queue {
    pub(super) branch: BranchId,
    /// The threads that make room.
    pub(super) relay: Relay,
    state: Mutex<State>,
    news: Condvar,
    gain: Mutex<Gain>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    next: u64,
    /// A thread makes room.
    working: bool,
    last_wait: Option<Instant>,
    /// Until then nothing can be moved.
    hopeless_until: Option<Instant>,
    /// The first who waits was last kept by nothing but what others are allowed and may not take.
    kept_by_promises: bool,
    /// How often those who wait were decided on.
    settled: u64,
}

/// One who waits.
pub(super) struct Waiting {
    number: u64,
    pub(super) who: Who,
    pub(super) need_bytes: u64,
    pub(super) since: Instant,
    /// What a request is told; and what was found out of a thread.
    verdict: Verdict,
}

/// An access, or a request of the pool's own.
pub(super) enum Who {
    /// The descriptor by which it is answered, its thread, and the file.
    Access {
        file: OwnedFd,
        thread: i32,
        facts: Facts,
    },
    Request,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Open,
    /// It takes no room.
    Reads,
    Granted,
    Refused,
}

/// What becomes of one who waits, at one look.
pub(super) enum Fate {
    Waits,
    /// Goes on, and takes the room it wanted.
    Fits,
    /// Goes on, and takes none, or what there is.
    Goes(Why),
}

/// Why somebody goes on without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Reads,
    Dead,
    /// `relocate.hold` is over.
    Late,
    /// Nothing can be moved.
    Hopeless,
}

impl Waiting {
    /// What can be said without knowing of the room.
    pub(super) fn goes(&self, longest: Duration, now: Instant) -> Option<Why> {
        if self.verdict == Verdict::Reads {
            return Some(Why::Reads);
        }
        if now.saturating_duration_since(self.since) >= longest {
            return Some(Why::Late);
        }
        match &self.who {
            Who::Access { thread, .. } if !sys::thread_lives(*thread) => Some(Why::Dead),
            _ => None,
        }
    }
}

impl Queue {
    pub(super) fn new(branch: BranchId) -> Arc<Queue> {
        Arc::new(Queue {
            branch,
            relay: Relay::default(),
            state: Mutex::default(),
            news: Condvar::new(),
            gain: Mutex::default(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    pub(super) fn wake(&self) {
        self.news.notify_all();
    }

    /// Whether somebody waits, or did a moment ago.
    pub(super) fn is_wanted(&self) -> bool {
        let state = self.state.lock();
        let lately = state.last_wait.is_some_and(|at| at.elapsed() < WANTED_FOR);
        lately || !state.waiting.is_empty()
    }

    /// What those who wait need together.
    pub(super) fn need_bytes(&self) -> u64 {
        let state = self.state.lock();
        let needs = state
            .waiting
            .iter()
            .filter(|it| it.verdict == Verdict::Open);
        needs.fold(0, |sum, it| sum.saturating_add(it.need_bytes))
    }

    /// How many accesses to files of this owner wait.
    pub(super) fn len_of(&self, owner: u32) -> usize {
        let state = self.state.lock();
        let is_of = |it: &&Waiting| match &it.who {
            Who::Access { facts, .. } => facts.owner == owner,
            Who::Request => false,
        };
        state.waiting.iter().filter(is_of).count()
    }

    /// All who wait were decided on. `kept_by_promises`: the first would fit, but for what others were allowed.
    pub(super) fn note_settled(&self, kept_by_promises: bool) {
        let mut state = self.state.lock();
        state.kept_by_promises = kept_by_promises;
        state.settled += 1;
        drop(state);
        self.news.notify_all();
    }

    /// How often those who wait were decided on, and whether what others were allowed kept the first of them
    /// then: that is taken, or forgotten, soon.
    pub(super) fn settled(&self) -> (u64, bool) {
        let state = self.state.lock();
        (state.settled, state.kept_by_promises)
    }

    /// Whether nothing can be moved for now.
    pub(super) fn is_hopeless(&self) -> bool {
        let until = self.state.lock().hopeless_until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// One more waits; its number.
    pub(super) fn push(&self, who: Who, need_bytes: u64) -> u64 {
        let mut state = self.state.lock();
        let (number, now) = (state.next, Instant::now());
        state.next += 1;
        state.last_wait = Some(now);
        state.waiting.push_back(Waiting {
            number,
            who,
            need_bytes,
            since: now,
            verdict: Verdict::Open,
        });
        self.news.notify_all();
        number
    }

    /// What was found out of the thread of an access.
    pub(super) fn note(&self, number: u64, doing: Doing) {
        let mut state = self.state.lock();
        let mut waiting = state.waiting.iter_mut();
        if let Some(found) = waiting.find(|it| it.number == number)
            && doing == Doing::Reads
        {
            found.verdict = Verdict::Reads;
        }
    }

    /// Decides on all, in their order; `done` gets the accesses that go on. Requests are told by it.
    pub(super) fn settle(
        &self,
        mut decide: impl FnMut(&Waiting) -> Fate,
        mut done: impl FnMut(Waiting, Fate),
    ) {
        let mut state = self.state.lock();
        let mut gone = Vec::new();
        let mut rest = VecDeque::with_capacity(state.waiting.len());
        for mut waiting in std::mem::take(&mut state.waiting) {
            let is_request = matches!(waiting.who, Who::Request);
            if is_request && waiting.verdict != Verdict::Open {
                rest.push_back(waiting);
                continue;
            }
            match decide(&waiting) {
                Fate::Waits => rest.push_back(waiting),
                fate if is_request => {
                    waiting.verdict = match fate {
                        Fate::Fits => Verdict::Granted,
                        _ => Verdict::Refused,
                    };
                    rest.push_back(waiting);
                }
                fate => gone.push((waiting, fate)),
            }
        }
        state.waiting = rest;
        drop(state);
        self.news.notify_all();
        gone.into_iter()
            .for_each(|(waiting, fate)| done(waiting, fate));
    }

    /// A request waits for room, no longer than that; whether there is some now.
    pub(super) fn wait(
        self: &Arc<Self>,
        pool: &Arc<Mover>,
        need_bytes: u64,
        longest: Duration,
    ) -> bool {
        if self.is_hopeless() {
            return false;
        }
        let number = self.push(Who::Request, need_bytes);
        pool.held_writers.of(self.branch);
        room::make(pool, self);
        pool.held_writers.kick();
        let deadline = Instant::now() + longest;
        let mut state = self.state.lock();
        loop {
            let at = state.waiting.iter().position(|it| it.number == number);
            let Some(at) = at else { return false };
            let verdict = state.waiting.get(at).map(|it| it.verdict);
            let late = pool.held.ended() || Instant::now() >= deadline;
            match verdict {
                Some(Verdict::Open) if !late => {
                    let pause = Instant::now() + Duration::from_millis(500);
                    self.news.wait_until(&mut state, pause.min(deadline));
                }
                verdict => {
                    state.waiting.remove(at);
                    return verdict == Some(Verdict::Granted);
                }
            }
        }
    }

    /// Nothing can be moved; those who wait go on by that. `spent`: what it took to find out.
    pub(super) fn give_up(&self, spent: Duration) {
        let pause = (spent * 20).clamp(HOPELESS_FOR, HOPELESS_FOR * 12);
        self.state.lock().hopeless_until = Some(Instant::now() + pause);
    }

    /// Notes what a move off the branch has come to.
    pub(super) fn note_gain(
        &self,
        bytes: u64,
        rooms: (&Room, &Room),
        total_bytes: u64,
        remains: impl FnOnce() -> Remains,
    ) -> Option<InVain> {
        let now = Instant::now();
        (self.gain.lock()).note(bytes, rooms, total_bytes, now, remains)
    }

    /// Nothing is to be moved for so long.
    pub(super) fn rest_for(&self, pause: Duration) {
        self.state.lock().hopeless_until = Some(Instant::now() + pause);
    }

    /// Whether the caller is to start a thread that makes room.
    pub(super) fn begin_work(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().working, true)
    }

    /// The thread ends.
    pub(super) fn end_work(&self) {
        self.state.lock().working = false;
    }

    /// Waits for somebody to wait. False: nobody came, and the thread is not working any more.
    pub(super) fn next_work(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        if state.waiting.is_empty() && self.news.wait_for(&mut state, patience).timed_out() {
            state.working = false;
            return false;
        }
        true
    }

    /// Waits a moment, or for news.
    pub(super) fn pause(&self, pause: Duration) {
        let mut state = self.state.lock();
        self.news.wait_for(&mut state, pause);
    }
}
