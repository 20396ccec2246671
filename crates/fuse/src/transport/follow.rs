//! The thread that reads `/dev/fuse` runs where its caller runs.
//!
//! A caller that waits for its answer leaves its CPU idle. If its request is served there, nobody
//! has to be woken on another CPU, which costs more than most requests do. Callers on several CPUs,
//! or one that has many requests under way, are served from any CPU: there the server's work goes on beside theirs.
//!
//! Where CPUs share a cache the kernel would undo that with every answer: it wakes the caller while the
//! reader still runs, finds the caller's CPU taken, and puts the caller on an idle one
//! (`select_idle_sibling` in kernel/sched/fair.c). A CPU that runs nothing but `SCHED_IDLE` counts as idle
//! there. So a reader that follows its caller *yields*: it has that policy, the caller stays, runs at once,
//! and the reader goes on when the caller has asked again. Such a reader starves if others want that CPU,
//! too: it yields to one caller alone, which asks quickly, and the watchdog ends it within milliseconds.

use std::time::{Duration, Instant};

/// Requests of which a judgement is made.
const WINDOW: u32 = 32;
/// Where the same caller is, is asked no more often than this: the question wakes a thread.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// It is asked at the first request after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(4);
/// The same while the reader gives way to its caller: on the caller's CPU, and on another.
const LOOK_TOGETHER: Duration = Duration::from_millis(16);
const LOOK_APART: Duration = Duration::from_micros(500);
/// To read a request that is there already takes less.
const AT_HAND: Duration = Duration::from_micros(3);
/// The reader keeps its CPU for so long once giving it away has starved it; twice as long each time it happens
/// again within the last.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(3200);
const CALM: Duration = Duration::from_secs(1);
/// One request of so many is looked at for whether others are queued behind it.
const SAMPLE: u32 = 4;
/// A caller that takes longer to ask again does not mind that somebody has to be woken.
const SOON: Duration = Duration::from_micros(300);
/// A message that takes long to copy. While the reader copies it, the time for which it waited says nothing of a queue.
const LARGE_BYTES: usize = 512 << 10;

/// A request that was carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Who asked; 0 if nobody waits, or nobody that can be seen.
    pub thread: u32,
    /// Who asked before, whoever read that.
    pub before: u32,
    /// Whether two read.
    pub are_two: bool,
    /// When it was read.
    pub arrived: Instant,
    /// How long the reader waited for it.
    pub waited: Duration,
    /// Whether another request was there when it was read; `None`: nobody looked.
    pub is_queued: Option<bool>,
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
    /// Anywhere, and a second reads as well: several callers wait for their answers; whether requests
    /// wait for the readers.
    TakingTurns { are_crowded: bool },
    /// Anywhere. Two read, and one caller is alone.
    Alone,
}

/// The requests since the last judgement.
#[derive(Debug, Default)]
pub(super) struct Callers {
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
    /// Whether all requests since then are that caller's, and come soon.
    is_lone: bool,
    /// Whether the reader gives way to its caller.
    yields: bool,
    /// How long the reader waited for a message that nobody waits for: the first since it answered somebody.
    unawaited: Option<Duration>,
    /// It does not before this time, which was so long after it had starved.
    resume: Option<Instant>,
    pause: Duration,
}

impl Callers {
    /// Notes a request, and judges. What a caller asks after it has closed a file or forgotten one is at hand
    /// once the reader is done with that, whoever runs where: what counts is how long that was waited for.
    pub(super) fn note(&mut self, mut served: Served) -> Verdict {
        if served.thread == 0 {
            self.unawaited.get_or_insert(served.waited);
            return Verdict::Stay;
        }
        served.waited = self.unawaited.take().unwrap_or(served.waited);
        self.requests += 1;
        self.changes += u32::from(served.thread != served.before);
        self.at_hand += match served.is_queued {
            Some(is_queued) if self.large > 0 => u32::from(is_queued),
            Some(is_queued) => u32::from(is_queued) * SAMPLE,
            None => u32::from(served.waited < AT_HAND && !self.yields),
        };
        self.is_lone &= served.thread == self.found && served.waited < SOON;
        self.large += u32::from(served.bytes >= LARGE_BYTES);
        if self.requests < WINDOW {
            return match (self.follows, self.yields) {
                (true, true) => self.look(served, self.look_yielding(served)),
                (true, false) => self.look(served, LOOK_AGAIN),
                (false, _) => Verdict::Stay,
            };
        }
        let (before, is_crowded) = (self.follows, self.is_crowded());
        let (is_one, is_alone, take_turns) = (self.is_one(), self.is_alone(), self.take_turns());
        self.follows = is_one && !served.are_two;
        (self.requests, self.changes, self.at_hand, self.large) = (0, 0, 0, 0);
        match (before, self.follows) {
            (_, false) if served.are_two => match is_crowded {
                _ if is_alone => Verdict::Alone,
                true => Verdict::Crowded,
                false => Verdict::TakingTurns { are_crowded: false },
            },
            (_, false) if take_turns => Verdict::TakingTurns {
                are_crowded: is_crowded,
            },
            (true, true) if self.yields && served.thread == self.found => {
                self.look(served, self.look_yielding(served))
            }
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

    /// Whether the reader is to give its CPU to its caller: to nobody but one that makes requests one soon after
    /// the other.
    pub(super) fn want_yielding(&self, now: Instant) -> bool {
        self.follows && self.is_lone && self.resume.is_none_or(|resume| now >= resume)
    }

    /// The reader gave its CPU away and did not get it back soon: somebody else wanted it as well.
    pub(super) fn back_off(&mut self, now: Instant) {
        let was_calm = self.resume.is_none_or(|resume| now > resume + CALM);
        self.pause = match was_calm {
            true => PAUSE,
            false => (self.pause * 2).min(PAUSE_MAX),
        };
        self.resume = Some(now + self.pause);
    }

    /// Notes whether the reader does.
    pub(super) fn note_yielding(&mut self, yields: bool) {
        self.yields = yields;
    }

    /// Whether somebody is to look if requests are queued, where it says nothing how long one waited: while the
    /// reader is not running, the next is there when it is; a large one was copied meanwhile.
    pub(super) fn wants_sample(&self) -> bool {
        self.large > 0 || self.yields && self.requests.is_multiple_of(SAMPLE)
    }

    /// Asks where the caller is, unless that was done within this time.
    fn look(&mut self, served: Served, every: Duration) -> Verdict {
        let since = self.looked.map(|looked| served.arrived - looked);
        if since.is_some_and(|since| since < every) {
            return Verdict::Stay;
        }
        (self.looked, self.found) = (Some(served.arrived), served.thread);
        self.is_lone = true;
        Verdict::With(served.thread)
    }

    /// How often the caller is looked for while the reader gives way to it. Where both share a CPU, its next
    /// request is there by the time the reader runs again; where the reader has to wait, they do not.
    fn look_yielding(&self, served: Served) -> Duration {
        match served.waited < AT_HAND {
            true => LOOK_TOGETHER,
            false => LOOK_APART,
        }
    }

    /// Whether one caller waits for one answer. Programs that follow each other, as a script's, are
    /// one caller; so is one that closes files, which is told to the server while it goes on.
    fn is_one(&self) -> bool {
        let few = |count: u32| count * 4 <= self.requests;
        !self.take_turns() && !few(self.requests.saturating_sub(self.at_hand))
    }

    /// Whether several callers wait for their answers.
    fn take_turns(&self) -> bool {
        self.changes * 4 > self.requests
    }

    /// Whether a second reader is of no use: another caller may have asked once.
    fn is_alone(&self) -> bool {
        self.changes * 16 <= self.requests
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
        let mut before = 0;
        let note = |thread| {
            let waited = Duration::from_micros(20);
            now += waited;
            let mut served = Served {
                thread,
                before: match thread {
                    0 => before,
                    _ => std::mem::replace(&mut before, thread),
                },
                are_two: false,
                arrived: now,
                waited,
                is_queued: None,
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
        let are_crowded = false;
        let turns = Verdict::TakingTurns { are_crowded };
        assert_eq!(judged(&mut callers, two, |_| {}), [turns; 10]);
        assert_eq!(judged(&mut callers, of(7, 32), |_| {}), [Verdict::With(7)]);
    }

    #[test]
    fn nobody_is_followed_by_two() {
        let mut callers = Callers::default();
        judged(&mut callers, of(7, 32), |_| {});
        let by_two = |served: &mut Served| served.are_two = true;
        let alone = judged(&mut callers, of(7, 96), by_two);
        assert_eq!(alone, [Verdict::Alone; 3]);
        assert!(!callers.are_followed() && !callers.want_yielding(Instant::now()));
        let two = (0..96).map(|number| 7 + number % 2);
        let are_crowded = false;
        let turns = Verdict::TakingTurns { are_crowded };
        assert_eq!(judged(&mut callers, two, by_two), [turns; 3]);
        let (another, deep) = (
            (0..32).map(|number| 7 + u32::from(number == 9)),
            |served: &mut Served| {
                (served.are_two, served.waited) = (true, Duration::ZERO);
            },
        );
        assert_eq!(
            judged(&mut callers, another, by_two),
            [turns],
            "two changes, and the first"
        );
        assert_eq!(
            judged(&mut callers, (0..32).map(|number| 7 + number % 2), deep),
            [Verdict::Crowded]
        );
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
    fn way_is_given_to_one_quick_caller_alone() {
        let mut callers = Callers::default();
        let start = Instant::now();
        judged(&mut callers, of(7, 31), |_| {});
        assert!(!callers.want_yielding(start), "not known yet");
        judged(&mut callers, of(7, 1), |_| {});
        assert!(callers.want_yielding(start));
        judged(&mut callers, of(8, 1), |_| {});
        assert!(!callers.want_yielding(start), "another one waits");
        judged(&mut callers, of(7, 3200), |_| {});
        assert!(callers.want_yielding(start));
        let slow = |served: &mut Served| served.waited = Duration::from_millis(1);
        judged(&mut callers, of(7, 1), slow);
        assert!(!callers.want_yielding(start), "it has other things to do");
    }

    #[test]
    fn a_reader_that_starved_keeps_its_cpu_for_longer_and_longer() {
        let mut callers = Callers::default();
        judged(&mut callers, of(7, 32), |_| {});
        let start = Instant::now();
        callers.back_off(start);
        assert!(!callers.want_yielding(start + PAUSE / 2));
        assert!(callers.want_yielding(start + PAUSE));
        callers.back_off(start + PAUSE);
        assert!(!callers.want_yielding(start + PAUSE * 2));
        assert!(callers.want_yielding(start + PAUSE * 3));
        for _ in 0..20 {
            callers.back_off(start + PAUSE);
        }
        assert!(callers.want_yielding(start + PAUSE + PAUSE_MAX));
        callers.back_off(start + PAUSE * 2 + PAUSE_MAX + CALM);
        assert_eq!(callers.pause, PAUSE, "long ago");
    }

    #[test]
    fn while_way_is_given_a_queue_is_what_was_seen_of_it() {
        let mut callers = Callers::default();
        judged(&mut callers, of(7, 32), |_| {});
        callers.note_yielding(true);
        assert!(callers.wants_sample());
        // Its next request is there whenever the reader runs again.
        let together = |served: &mut Served| served.waited = Duration::from_micros(1);
        let asked = judged(&mut callers, of(7, 320), together);
        assert!(
            asked.iter().all(|verdict| *verdict == Verdict::With(7)),
            "{asked:?}"
        );
        let number = std::cell::Cell::new(0_u32);
        let deep = |served: &mut Served| {
            served.waited = Duration::from_micros(1);
            served.is_queued = number
                .replace(number.get() + 1)
                .is_multiple_of(SAMPLE)
                .then_some(true);
        };
        let verdicts = judged(&mut callers, of(7, 64), deep);
        assert_eq!(verdicts.last(), Some(&Verdict::Crowded));
    }

    /// A sample stands for the requests after it, which may be looked at one by one again.
    #[test]
    fn samples_and_looks_at_hand_may_count_more_requests_than_there_were() {
        let mut callers = Callers::default();
        judged(&mut callers, of(7, 30), |served| {
            served.waited = Duration::ZERO
        });
        callers.note_yielding(true);
        let sampled = |served: &mut Served| served.is_queued = Some(true);
        assert_eq!(
            judged(&mut callers, of(7, 2), sampled),
            [Verdict::Crowded],
            "38 of 32"
        );
    }

    /// Of 128 KiB each cost three times what it does now, and of 1 MiB a fifth more: to wake a thread on another CPU
    /// took as long as to copy that.
    #[test]
    fn a_caller_that_moves_much_data_is_followed() {
        for bytes in [128 << 10, 1 << 20] {
            let large = |served: &mut Served| served.bytes = bytes;
            let verdicts = judged(&mut Callers::default(), of(7, 320), large);
            assert!(verdicts.len() > 1, "{bytes}: {verdicts:?}");
            assert!(verdicts.iter().all(|verdict| *verdict == Verdict::With(7)));
        }
    }

    /// The reader copies each of its requests before the next, so that none seems to be there at once.
    #[test]
    fn a_caller_with_many_large_requests_under_way_is_not_followed() {
        let mut callers = Callers::default();
        let number = std::cell::Cell::new(0_u32);
        let deep = |served: &mut Served| {
            served.bytes = 1 << 20;
            served.waited = Duration::from_micros(100);
            // Nobody looks before the first of a window.
            let is_first = number.replace(number.get() + 1).is_multiple_of(WINDOW);
            served.is_queued = (!is_first).then_some(true);
        };
        assert_eq!(judged(&mut callers, of(7, 320), deep), []);
        assert!(!callers.are_followed());
    }

    /// As when it opens and closes files.
    #[test]
    fn a_caller_that_closes_what_it_has_opened_is_followed() {
        let opens_and_closes = |waited: u64| {
            let among = (0..640).map(|number| if number % 2 == 0 { 0 } else { 7 });
            judged(&mut Callers::default(), among, |served| {
                served.waited = match served.thread {
                    0 => Duration::from_micros(waited),
                    _ => Duration::ZERO,
                };
            })
        };
        let verdicts = opens_and_closes(20);
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::With(7)));
        assert!(verdicts.len() > 2, "{}", verdicts.len());
        assert_eq!(opens_and_closes(1), [Verdict::Crowded; 10]);
    }

    #[test]
    fn what_nobody_waits_for_counts_for_nothing() {
        let mut callers = Callers::default();
        assert_eq!(judged(&mut callers, of(0, 320), |_| {}), []);
        let among = (0..64).map(|number| if number % 2 == 0 { 7 } else { 0 });
        assert_eq!(judged(&mut callers, among, |_| {}), [Verdict::With(7)]);
    }
}
