//! What is asked of a branch: how often, how long that takes, how much is moved, and what fails.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strandfs_fuse::latency::{Histogram, LiveHistogram};

use crate::base::branch::is_failure;
use crate::base::counters::{self, Padded};
use crate::base::error::Error;

/// Declares the kinds and their names in one list.
macro_rules! kinds {
    ($($(#[doc = $meaning:literal])* $kind:ident = $name:literal,)*) => {
        /// What a branch is asked for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Call {
            $($(#[doc = $meaning])* $kind,)*
        }

        impl Call {
            /// All of them, with their names for programs, which never change.
            pub const ALL: &[(Call, &'static str)] = &[$((Call::$kind, $name),)*];
        }
    };
}

kinds! {
    /// Whether a directory has a name, and what it is of.
    Lookup = "lookup",
    /// Attributes of something found before.
    Stat = "stat",
    /// To open a file.
    Open = "open",
    /// To make a file, a directory, a link or anything else.
    Make = "make",
    /// To remove a name.
    Remove = "remove",
    /// To give something another name.
    Rename = "rename",
    /// To read from a file, through the server.
    Read = "read",
    /// To write to a file, through the server.
    Write = "write",
    /// To change a file's or directory's attributes or length, or to allocate room.
    Change = "change",
    /// To put on the disk what was written.
    Sync = "sync",
    /// The names in a directory.
    List = "list",
    /// Extended attributes.
    Xattr = "xattr",
    /// How much room there is.
    Space = "space",
}

/// How many kinds there are.
const KINDS: usize = Call::ALL.len();

/// What is counted of one kind.
#[derive(Default)]
struct OfKind {
    timed: LiveHistogram,
    untimed: AtomicU64,
    failures: AtomicU64,
    bytes: AtomicU64,
}

/// The calls to one branch. Each thread counts in one of several places, so that threads on different
/// CPUs seldom write to the same memory.
pub struct Calls {
    places: Box<[Padded<[OfKind; KINDS]>]>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            places: counters::places(),
        }
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calls")
    }
}

thread_local! {
    /// For how long this thread has waited for branches, in nanoseconds.
    static WAITED_NS: Cell<u64> = const { Cell::new(0) };
    /// The longest call that this thread waited for since it was asked to forget: its time, and whose it
    /// was, as an address.
    static LONGEST: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// Forgets the longest call of this thread.
pub(crate) fn forget_longest() {
    LONGEST.set((0, 0));
}

/// Whether these counted the longest call of this thread since it was asked to forget.
pub(crate) fn has_longest(calls: &Calls) -> bool {
    LONGEST.get().1 == calls.address()
}

/// For how long this thread has been in calls to branches, in all its life.
pub(crate) fn time_of_this_thread() -> Duration {
    Duration::from_nanos(WAITED_NS.get())
}

/// Runs `wait`, in which another thread makes calls to a branch for this one; the time counts as this
/// thread's.
pub(crate) fn waiting<T>(whose: &Calls, wait: impl FnOnce() -> T) -> T {
    let (began, before) = (Instant::now(), WAITED_NS.get());
    let outcome = wait();
    let took = nanoseconds(began.elapsed());
    // What the wait counted itself, because this thread made the call after all, is part of it.
    WAITED_NS.set(before.saturating_add(took));
    whose.note_longest(took);
    outcome
}

impl Calls {
    fn of(&self, call: Call) -> Option<&OfKind> {
        counters::place(&self.places)?.0.get(call as usize)
    }

    /// Makes a call and counts it.
    pub(crate) fn time<T, E: Copy + Into<Error>>(
        &self,
        call: Call,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let outcome = make();
        let error = outcome.as_ref().err().map(|error| (*error).into());
        self.note(call, began.elapsed(), error);
        outcome
    }

    /// Counts a call that was made by this thread.
    pub(crate) fn note(&self, call: Call, took: Duration, error: Option<Error>) {
        WAITED_NS.set(WAITED_NS.get().saturating_add(nanoseconds(took)));
        self.note_longest(nanoseconds(took));
        let Some(own) = self.of(call) else { return };
        own.timed.add(took);
        if error.is_some_and(|error| is_failure(error.errno)) {
            own.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_longest(&self, took_ns: u64) {
        if took_ns > LONGEST.get().0 {
            LONGEST.set((took_ns, self.address()));
        }
    }

    /// Another one may have it later: to be compared with those that are there.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Counts bytes that a call moved.
    pub(crate) fn moved(&self, call: Call, bytes: usize) {
        if let Some(own) = self.of(call) {
            own.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts a call that moved bytes and took less time than looking at the clock is worth.
    pub(crate) fn moved_at_once(&self, call: Call, bytes: usize) {
        if let Some(own) = self.of(call) {
            own.untimed.fetch_add(1, Ordering::Relaxed);
            own.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// What was counted so far of a kind.
    pub(crate) fn sum(&self, call: Call) -> CallSum {
        let mut sum = CallSum::default();
        for place in &self.places {
            let Some(own) = place.0.get(call as usize) else {
                continue;
            };
            own.timed.add_to(&mut sum.timed);
            sum.untimed += own.untimed.load(Ordering::Relaxed);
            sum.failures += own.failures.load(Ordering::Relaxed);
            sum.bytes += own.bytes.load(Ordering::Relaxed);
        }
        sum
    }
}

/// The calls of one kind to one branch.
#[derive(Debug, Default)]
pub(crate) struct CallSum {
    /// How long they took.
    pub timed: Histogram,
    /// Those beside, whose time is not known.
    pub untimed: u64,
    /// Those that failed for the branch's disk, filesystem or server.
    pub failures: u64,
    /// What they moved.
    pub bytes: u64,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn calls_are_counted_by_kind_wherever_they_are_made() {
        let calls = Calls::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _ = calls.time(Call::Stat, || Err::<(), _>(Errno::NOENT));
                    let _ = calls.time(Call::Read, || Err::<(), _>(Errno::IO));
                    calls.moved(Call::Read, 10);
                    calls.moved_at_once(Call::Read, 5);
                });
            }
        });
        let (stat, read) = (calls.sum(Call::Stat), calls.sum(Call::Read));
        assert_eq!((stat.timed.count(), stat.failures), (8, 0));
        assert_eq!((read.timed.count(), read.failures), (8, 8));
        assert_eq!((read.untimed, read.bytes), (8, 120));
        assert_eq!(calls.sum(Call::Write).timed.count(), 0);
    }

    #[test]
    fn a_thread_knows_how_long_it_waited_for_branches() {
        let calls = Calls::default();
        let before = time_of_this_thread();
        let pause = Duration::from_millis(2);
        let _ = calls.time(Call::Sync, || {
            std::thread::sleep(pause);
            Ok::<_, Errno>(())
        });
        let one = time_of_this_thread().saturating_sub(before);
        assert!(one >= pause, "{one:?}");
        // A call within a wait counts once.
        let began = Instant::now();
        waiting(&calls, || {
            let _ = calls.time(Call::Sync, || {
                std::thread::sleep(pause);
                Ok::<_, Errno>(())
            });
        });
        let both = time_of_this_thread().saturating_sub(before);
        assert!(
            both >= pause * 2 && both - one <= began.elapsed(),
            "{both:?}"
        );
    }
}
