//! How much a connection has to do: requests by operation, how long they take, and the threads that
//! carry them out.
//!
//! Each thread counts for itself, in memory no other thread writes to; whoever wants to know adds
//! up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::abi::Opcode;
use crate::latency::{Histogram, LiveHistogram, raise};
use crate::types::Errno;

/// Room for every operation's number below this. The few above share the first place: no
/// operation is number 0.
const SLOTS: usize = 64;

/// Room for every error's number below this; others share the first place, which no error has.
const ERRNOS: usize = 134;

/// How long a request took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// From when it came to when its thread was done with it.
    pub(crate) whole: Duration,
    /// Without a thread, of this, where it was without one.
    pub(crate) queued: Option<Duration>,
    /// In calls to what the filesystem stands on.
    pub(crate) below: Duration,
    /// Handing the answer to the kernel, where that is a call for each.
    pub(crate) answering: Option<Duration>,
}

/// How long requests of one operation took.
#[derive(Default)]
struct Durations {
    whole: LiveHistogram,
    queued: LiveHistogram,
    below: LiveHistogram,
    answering: LiveHistogram,
}

impl Durations {
    fn absorb(&self, other: &Durations) {
        self.whole.absorb(&other.whole);
        self.queued.absorb(&other.queued);
        self.below.absorb(&other.below);
        self.answering.absorb(&other.answering);
    }
}

/// What there is to count of one operation.
#[derive(Default)]
struct OfOperation {
    requests: AtomicU64,
    errors: AtomicU64,
    durations: Durations,
}

/// One thread's counts, on cache lines of their own.
#[repr(align(128))]
pub(crate) struct Counts {
    operations: Box<[OfOperation]>,
    errnos: [AtomicU64; ERRNOS],
    /// The beginning of all times here.
    epoch: Instant,
    /// Since when the request has been there that the thread is with, in nanoseconds from the epoch; 0: it is
    /// with none.
    since: AtomicU64,
}

/// Who keeps requests that no thread is with.
pub(crate) trait Keeps: Send + Sync {
    /// Adds since when each of them has been there.
    fn add_kept(&self, since: &mut Vec<Instant>);
}

/// Counting is for the thread that owns the counts only, which is why no other thread's addition can
/// get lost between a load and a store.
impl Counts {
    fn new(epoch: Instant) -> Self {
        Self {
            operations: (0..SLOTS).map(|_| OfOperation::default()).collect(),
            errnos: [const { AtomicU64::new(0) }; ERRNOS],
            epoch,
            since: AtomicU64::new(0),
        }
    }

    /// The thread is with a request from now on, which has been there since then.
    pub(crate) fn begin(&self, since: Instant) {
        let from_epoch = since.saturating_duration_since(self.epoch).as_nanos();
        let from_epoch = u64::try_from(from_epoch).unwrap_or(u64::MAX).max(1);
        self.since.store(from_epoch, Ordering::Relaxed);
    }

    /// It is with none any more.
    pub(crate) fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    fn since(&self) -> Option<Instant> {
        match self.since.load(Ordering::Relaxed) {
            0 => None,
            from_epoch => self.epoch.checked_add(Duration::from_nanos(from_epoch)),
        }
    }

    fn of(&self, opcode: u32) -> Option<&OfOperation> {
        let place = self.operations.get(opcode as usize);
        place.or(self.operations.first())
    }

    /// Counts a request.
    pub(crate) fn count(&self, opcode: u32) {
        if let Some(own) = self.of(opcode) {
            raise(&own.requests, 1);
        }
    }

    /// Counts how long a request took that its thread is done with, and the error it was answered with.
    pub(crate) fn count_done(&self, opcode: u32, times: Times, error: Option<Errno>) {
        self.end();
        let Some(own) = self.of(opcode) else { return };
        own.durations.whole.add_alone(times.whole);
        if let Some(queued) = times.queued {
            own.durations.queued.add_alone(queued);
        }
        if !times.below.is_zero() {
            own.durations.below.add_alone(times.below);
        }
        if let Some(answering) = times.answering {
            own.durations.answering.add_alone(answering);
        }
        let Some(error) = error else { return };
        raise(&own.errors, 1);
        let number = usize::try_from(error.raw_os_error()).ok();
        let place = number.and_then(|number| self.errnos.get(number));
        if let Some(place) = place.or(self.errnos.first()) {
            raise(place, 1);
        }
    }

    /// Takes over the counts of a thread that has ended.
    fn absorb(&self, other: &Counts) {
        for (own, further) in self.operations.iter().zip(&other.operations) {
            let requests = further.requests.load(Ordering::Relaxed);
            if requests == 0 {
                continue;
            }
            raise(&own.requests, requests);
            raise(&own.errors, further.errors.load(Ordering::Relaxed));
            own.durations.absorb(&further.durations);
        }
        for (own, further) in self.errnos.iter().zip(&other.errnos) {
            raise(own, further.load(Ordering::Relaxed));
        }
    }
}

/// The counts of a connection.
pub(crate) struct Traffic {
    state: Mutex<State>,
    reliefs: AtomicU64,
    most_threads: AtomicUsize,
}

struct State {
    epoch: Instant,
    keepers: Vec<Weak<dyn Keeps>>,
    working: Vec<Arc<Counts>>,
    /// What threads counted that have ended.
    past: Counts,
    most_at_once: usize,
}

impl State {
    fn all(&self) -> impl Iterator<Item = &Counts> {
        let working = self.working.iter().map(|counts| &**counts);
        working.chain([&self.past])
    }
}

impl Traffic {
    pub(crate) fn new() -> Self {
        let epoch = Instant::now();
        Self {
            state: Mutex::new(State {
                epoch,
                keepers: Vec::new(),
                working: Vec::new(),
                past: Counts::new(epoch),
                most_at_once: 0,
            }),
            reliefs: AtomicU64::new(0),
            most_threads: AtomicUsize::new(0),
        }
    }

    /// The session may have so many threads.
    pub(crate) fn set_most_threads(&self, most: usize) {
        self.most_threads.store(most, Ordering::Relaxed);
    }

    /// Counts for a new thread.
    pub(crate) fn join(&self) -> Arc<Counts> {
        let mut state = self.state.lock();
        let counts = Arc::new(Counts::new(state.epoch));
        state.working.push(counts.clone());
        state.most_at_once = state.most_at_once.max(state.working.len());
        counts
    }

    /// A thread ends; what it counted stays.
    pub(crate) fn leave(&self, counts: &Arc<Counts>) {
        let mut state = self.state.lock();
        let before = state.working.len();
        state.working.retain(|known| !Arc::ptr_eq(known, counts));
        if state.working.len() < before {
            state.past.absorb(counts);
        }
    }

    /// The reader's role went to another thread while its request went on.
    pub(crate) fn count_relief(&self) {
        self.reliefs.fetch_add(1, Ordering::Relaxed);
    }

    /// Some requests are there that no thread is with.
    pub(crate) fn add_keeper(&self, keeper: Weak<dyn Keeps>) {
        self.state.lock().keepers.push(keeper);
    }

    /// For how long the requests have been there that are under way, the longest first.
    fn under_way(&self) -> Vec<Duration> {
        let state = self.state.lock();
        let mut since: Vec<Instant> = state.working.iter().filter_map(|it| it.since()).collect();
        let keepers = state.keepers.clone();
        // Theirs are taken with others held.
        drop(state);
        for keeper in keepers.iter().filter_map(Weak::upgrade) {
            keeper.add_kept(&mut since);
        }
        since.sort_unstable();
        let now = Instant::now();
        since
            .into_iter()
            .map(|since| now.saturating_duration_since(since))
            .collect()
    }

    /// The state now.
    pub(crate) fn report(&self) -> TrafficReport {
        let state = self.state.lock();
        let mut total = [0; SLOTS];
        for counts in state.all() {
            for (sum, own) in total.iter_mut().zip(&counts.operations) {
                *sum += own.requests.load(Ordering::Relaxed);
            }
        }
        let threads = state.working.len();
        let most_at_once = state.most_at_once;
        drop(state);
        let known = |opcode: Opcode| {
            let count = total.get(opcode as usize).copied().unwrap_or_default();
            (count > 0).then_some((opcode, count))
        };
        let under_way = self.under_way();
        let requests: Vec<_> = Opcode::ALL.iter().copied().filter_map(known).collect();
        let named: u64 = requests.iter().map(|(_, count)| count).sum();
        TrafficReport {
            unknown: total.iter().sum::<u64>() - named,
            requests,
            under_way,
            threads,
            most_at_once,
            most_threads: self.most_threads.load(Ordering::Relaxed),
            reliefs: self.reliefs.load(Ordering::Relaxed),
        }
    }

    /// How long requests took.
    pub(crate) fn latencies(&self) -> LatencyReport {
        let state = self.state.lock();
        let of = |opcode: Opcode| {
            let mut sum = OperationLatency::of(opcode);
            for counts in state.all() {
                if let Some(own) = counts.operations.get(opcode as usize) {
                    sum.errors += own.errors.load(Ordering::Relaxed);
                    own.durations.whole.add_to(&mut sum.whole);
                    own.durations.queued.add_to(&mut sum.queued);
                    own.durations.below.add_to(&mut sum.below);
                    own.durations.answering.add_to(&mut sum.answering);
                }
            }
            (sum.whole.count() > 0).then_some(sum)
        };
        let operations = Opcode::ALL.iter().copied().filter_map(of).collect();
        let errors = (0..ERRNOS).filter_map(|number| {
            let all = state.all().filter_map(|counts| counts.errnos.get(number));
            let count: u64 = all.map(|count| count.load(Ordering::Relaxed)).sum();
            (count > 0).then(|| (i32::try_from(number).unwrap_or_default(), count))
        });
        LatencyReport {
            operations,
            errors: errors.collect(),
        }
    }
}

/// What a connection has had to do so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficReport {
    /// Requests by operation, without those that never came.
    pub requests: Vec<(Opcode, u64)>,
    /// Requests of no operation known here.
    pub unknown: u64,
    /// For how long those have been there that are under way, the longest first. Not those that are answered
    /// later ([`Context::defer`](crate::Context::defer)), and those that no thread has read.
    pub under_way: Vec<Duration>,
    /// Threads now: the reader, those with a request, those that wait for work.
    pub threads: usize,
    /// The most threads there were at any time.
    pub most_at_once: usize,
    /// The most threads there may be.
    pub most_threads: usize,
    /// How often a request was about to block or was stuck, and another thread took over reading.
    pub reliefs: u64,
}

/// How long the requests of a connection took so far.
///
/// Not timed are reads and writes that a thread of the io_uring transport answers in a batch without
/// waiting: to read the clock would take a good part of the time that they do. A request that is answered
/// later ([`Context::defer`](crate::Context::defer)) counts with the time that a thread was with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyReport {
    /// Operations, without those that never came.
    pub operations: Vec<OperationLatency>,
    /// Requests that were answered with an error, by the error's number; 0 stands for numbers that
    /// Linux has no name for.
    pub errors: Vec<(i32, u64)>,
}

/// How long the requests of one operation took. The time that the filesystem's own work took is what
/// is left of [`whole`](Self::whole) without the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationLatency {
    /// The operation.
    pub opcode: Opcode,
    /// How many were answered with an error.
    pub errors: u64,
    /// From when a request was read to when its thread was done with it.
    pub whole: Histogram,
    /// Without a thread, of those that had to wait for one.
    pub queued: Histogram,
    /// In calls to what the filesystem stands on
    /// ([`Filesystem::time_below`](crate::Filesystem::time_below)), of those that made any.
    pub below: Histogram,
    /// Handing the answer to the kernel. Over io_uring that is not a call for each answer, and not
    /// known.
    pub answering: Histogram,
}

impl OperationLatency {
    fn of(opcode: Opcode) -> Self {
        Self {
            opcode,
            errors: 0,
            whole: Histogram::default(),
            queued: Histogram::default(),
            below: Histogram::default(),
            answering: Histogram::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_counted_outlives_it() {
        let traffic = Traffic::new();
        let (first, second) = (traffic.join(), traffic.join());
        first.count(Opcode::Read as u32);
        second.count(Opcode::Read as u32);
        second.count(Opcode::Lookup as u32);
        second.count(Opcode::CuseInit as u32);
        second.count(63);
        traffic.leave(&second);
        traffic.leave(&second);
        let report = traffic.report();
        assert_eq!(report.requests, [(Opcode::Lookup, 1), (Opcode::Read, 2)]);
        assert_eq!(report.unknown, 2);
        assert_eq!((report.threads, report.most_at_once), (1, 2));
    }

    #[test]
    fn how_long_requests_took_outlives_the_thread_too() {
        let traffic = Traffic::new();
        let (first, second) = (traffic.join(), traffic.join());
        let us = Duration::from_micros;
        let quick = Times {
            whole: us(5),
            ..Times::default()
        };
        first.count(Opcode::Read as u32);
        first.count_done(Opcode::Read as u32, quick, None);
        let slow = Times {
            whole: us(900),
            queued: Some(us(500)),
            below: us(300),
            answering: Some(us(40)),
        };
        for error in [Errno::NOENT, Errno::from_raw_os_error(500)] {
            second.count(Opcode::Read as u32);
            second.count_done(Opcode::Read as u32, slow, Some(error));
        }
        traffic.leave(&second);
        let report = traffic.latencies();
        let [read] = &report.operations[..] else {
            panic!("{report:?}");
        };
        assert_eq!((read.opcode, read.errors), (Opcode::Read, 2));
        assert_eq!(read.whole.count(), 3);
        assert_eq!(read.whole.total_ns, 1_805_000);
        assert_eq!((read.queued.count(), read.queued.total_ns), (2, 1_000_000));
        assert_eq!((read.below.count(), read.below.total_ns), (2, 600_000));
        assert_eq!(
            (read.answering.count(), read.answering.total_ns),
            (2, 80_000)
        );
        assert_eq!(report.errors, [(0, 1), (Errno::NOENT.raw_os_error(), 1)]);
    }
}
