//! How much a connection has to do: requests by operation, and the threads that carry them out.
//!
//! Each thread counts for itself, in memory no other thread writes to; whoever wants to know adds
//! up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::abi::Opcode;

/// Room for every operation's number below this. The few above share the first place: no
/// operation is number 0.
const SLOTS: usize = 64;

/// One thread's counts, on cache lines of their own.
#[repr(align(128))]
pub(crate) struct Counts {
    requests: [AtomicU64; SLOTS],
}

impl Counts {
    fn new() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; SLOTS],
        }
    }

    /// Counts a request; for the thread that owns the counts only, which is why no other thread's
    /// addition can get lost between the load and the store.
    pub(crate) fn count(&self, opcode: u32) {
        let place = self.requests.get(opcode as usize);
        if let Some(place) = place.or(self.requests.first()) {
            place.store(place.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    fn add_to(&self, total: &mut [u64; SLOTS]) {
        for (sum, own) in total.iter_mut().zip(&self.requests) {
            *sum += own.load(Ordering::Relaxed);
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
    working: Vec<Arc<Counts>>,
    /// What threads counted that have ended.
    past: [u64; SLOTS],
    most_at_once: usize,
}

impl Traffic {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                working: Vec::new(),
                past: [0; SLOTS],
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
        let counts = Arc::new(Counts::new());
        let mut state = self.state.lock();
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
            counts.add_to(&mut state.past);
        }
    }

    /// The reader's role went to another thread while its request went on.
    pub(crate) fn count_relief(&self) {
        self.reliefs.fetch_add(1, Ordering::Relaxed);
    }

    /// The state now.
    pub(crate) fn report(&self) -> TrafficReport {
        let state = self.state.lock();
        let mut total = state.past;
        for counts in &state.working {
            counts.add_to(&mut total);
        }
        let threads = state.working.len();
        let most_at_once = state.most_at_once;
        drop(state);
        let known = |opcode: Opcode| {
            let count = total.get(opcode as usize).copied().unwrap_or_default();
            (count > 0).then_some((opcode, count))
        };
        let requests: Vec<_> = Opcode::ALL.iter().copied().filter_map(known).collect();
        let named: u64 = requests.iter().map(|(_, count)| count).sum();
        TrafficReport {
            unknown: total.iter().sum::<u64>() - named,
            requests,
            threads,
            most_at_once,
            most_threads: self.most_threads.load(Ordering::Relaxed),
            reliefs: self.reliefs.load(Ordering::Relaxed),
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
    /// Threads now: the reader, those with a request, those that wait for work.
    pub threads: usize,
    /// The most threads there were at any time.
    pub most_at_once: usize,
    /// The most threads there may be.
    pub most_threads: usize,
    /// How often a request was about to block or was stuck, and another thread took over reading.
    pub reliefs: u64,
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
}
