//! The thread that reads `/dev/fuse` runs where its caller runs.
//!
//! A caller that waits for its answer leaves its CPU idle. If its request is served there, nobody
//! has to be woken on another CPU, which costs more than most requests do. Callers on several CPUs,
//! or one that has many requests under way or moves much data, are served from any CPU: there the
//! server's work goes on beside theirs.

use std::time::{Duration, Instant};

/// Requests of which a judgement is made.
const WINDOW: u32 = 32;
/// Where the same caller is, is asked no more often than this: the question wakes a thread.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// It is asked at the first request after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(4);
/// To read a request that is there already takes less.
const AT_HAND: Duration = Duration::from_micros(3);
/// A message that is long to copy: its caller has better to do meanwhile.
const LARGE_BYTES: usize = 32 << 10;

/// A request that was carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Who asked; 0 if nobody waits, or nobody that can be seen.
    pub thread: u32,
    /// When it was read.
    pub arrived: Instant,
    /// How long the reader waited for it.
    pub waited: Duration,
    /// The longer of question and answer.
    pub bytes: usize,
}

/// Where the reader is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Where it is.
    Stay,
    /// Where this thread is.
    With(u32),
    /// Anywhere.
    Anywhere,
    /// Anywhere, and others read as well: requests wait for the reader.
    Crowded,
}

/// The requests since the last judgement.
#[derive(Debug, Default)]
pub(super) struct Callers {
    last: u32,
    requests: u32,
    /// How often another caller's came than the one before.
    changes: u32,
    /// How many were there before the reader looked.
    at_hand: u32,
    large: u32,
    follows: bool,
    looked: Option<Instant>,
    /// Who was looked for then.
    found: u32,
}

impl Callers {
    /// Notes a request, and judges.
    pub(super) fn note(&mut self, served: Served) -> Verdict {
        if served.thread == 0 {
            return Verdict::Stay;
        }
        self.requests += 1;
        self.changes += u32::from(served.thread != self.last);
        self.at_hand += u32::from(served.waited < AT_HAND);
        self.large += u32::from(served.bytes >= LARGE_BYTES);
        self.last = served.thread;
        if self.requests < WINDOW {
            return match self.follows {
                true => self.look(served, LOOK_AGAIN),
                false => Verdict::Stay,
            };
        }
        let (before, is_one, is_crowded) = (self.follows, self.is_one(), self.is_crowded());
        self.follows = is_one;
        (self.requests, self.changes, self.at_hand, self.large) = (0, 0, 0, 0);
        match (before, self.follows) {
            (true, true) if served.thread == self.found => self.look(served, LOOK_EVERY),
            (_, true) => self.look(served, Duration::ZERO),
            (_, false) if is_crowded => Verdict::Crowded,
            (true, false) => Verdict::Anywhere,
            (false, false) => Verdict::Stay,
        }
    }

    /// Whether the reader is to run where its caller does.
    pub(super) fn are_followed(&self) -> bool {
        self.follows
    }

    /// Asks where the caller is, unless that was done within this time.
    fn look(&mut self, served: Served, every: Duration) -> Verdict {
        let since = self.looked.map(|looked| served.arrived - looked);
        if since.is_some_and(|since| since < every) {
            return Verdict::Stay;
        }
        (self.looked, self.found) = (Some(served.arrived), served.thread);
        Verdict::With(served.thread)
    }

    /// Whether one caller waits for one answer. Programs that follow each other, as a script's, are
    /// one caller; so is one that closes files, which is told to the server while it goes on.
    fn is_one(&self) -> bool {
        let few = |count: u32| count * 4 <= self.requests;
        few(self.changes) && few(self.large) && !few(self.requests - self.at_hand)
    }

    /// Whether requests come faster than they are carried out. What is long to copy keeps the other
    /// CPUs busy as it is.
    fn is_crowded(&self) -> bool {
        self.at_hand * 2 >= self.requests && self.large * 4 <= self.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What requests of these callers lead to, one after the other.
    fn judged(
        callers: &mut Callers,
        threads: impl Iterator<Item = u32>,
        change: impl Fn(&mut Served),
    ) -> Vec<Verdict> {
        let mut now = callers.looked.unwrap_or_else(Instant::now);
        let note = |thread| {
            let waited = Duration::from_micros(20);
            now += waited;
            let mut served = Served {
                thread,
                arrived: now,
                waited,
                bytes: 100,
            };
            change(&mut served);
            callers.note(served)
        };
        let verdicts = threads.map(note);
        verdicts
            .filter(|verdict| *verdict != Verdict::Stay)
            .collect()
    }

    fn of(thread: u32, requests: usize) -> impl Iterator<Item = u32> {
        std::iter::repeat_n(thread, requests)
    }

    #[test]
    fn one_caller_is_followed_and_looked_for_now_and_then() {
        let mut callers = Callers::default();
        let verdicts = judged(&mut callers, of(7, 3200), |_| {});
        // One request is served in 20 us: as soon as it counts as one caller, then every 100 or more.
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::With(7)));
        assert!((20..=32).contains(&verdicts.len()), "{}", verdicts.len());
    }

    #[test]
    fn after_a_pause_the_caller_is_looked_for_at_once() {
        let mut callers = Callers::default();
        judged(&mut callers, of(7, 32), |_| {});
        assert_eq!(judged(&mut callers, of(7, 5), |_| {}), []);
        let later = |served: &mut Served| served.arrived += Duration::from_millis(20);
        assert_eq!(judged(&mut callers, of(8, 5), later), [Verdict::With(8)]);
    }

    #[test]
    fn callers_at_the_same_time_are_served_from_anywhere() {
        let mut callers = Callers::default();
        judged(&mut callers, of(7, 32), |_| {});
        let two = (0..320).map(|number| 7 + number % 2);
        assert_eq!(judged(&mut callers, two, |_| {}), [Verdict::Anywhere]);
        assert_eq!(judged(&mut callers, of(7, 32), |_| {}), [Verdict::With(7)]);
    }

    #[test]
    fn programs_that_follow_each_other_are_one_caller() {
        let mut callers = Callers::default();
        let script = (0..320).map(|number| 7 + number / 8);
        assert_eq!(judged(&mut callers, script, |_| {}).len(), 10);
    }

    #[test]
    fn a_caller_with_many_requests_under_way_is_not_followed() {
        let mut callers = Callers::default();
        let deep = |served: &mut Served| served.waited = Duration::from_micros(1);
        assert_eq!(
            judged(&mut callers, of(7, 320), deep),
            [Verdict::Crowded; 10]
        );
    }

    #[test]
    fn a_caller_that_moves_much_data_is_not_followed() {
        let mut callers = Callers::default();
        let large = |served: &mut Served| served.bytes = 128 << 10;
        assert_eq!(judged(&mut callers, of(7, 320), large), []);
    }

    #[test]
    fn what_nobody_waits_for_counts_for_nothing() {
        let mut callers = Callers::default();
        assert_eq!(judged(&mut callers, of(0, 320), |_| {}), []);
        let among = (0..64).map(|number| if number % 2 == 0 { 7 } else { 0 });
        assert_eq!(judged(&mut callers, among, |_| {}), [Verdict::With(7)]);
    }
}
