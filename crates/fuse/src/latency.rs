//! How long things take: counts by duration, in buckets that double.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many buckets a [`Histogram`] has, the last one without an upper bound.
pub const BUCKETS: usize = 25;

/// The first bucket's bound: 2^10 ns.
const FIRST_BOUND_LOG2: u32 = 10;

/// The longest duration that is counted in this bucket, in nanoseconds: 1.024 us for the first, twice
/// that of the one before for others; none for the last, and where there is no such bucket.
pub fn bound_ns(bucket: usize) -> Option<u64> {
    let doublings = u32::try_from(bucket).ok()?;
    (bucket + 1 < BUCKETS).then(|| 1 << (FIRST_BOUND_LOG2 + doublings))
}

/// The bucket of a duration.
fn bucket_of(ns: u64) -> usize {
    let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
    let bucket = bits.saturating_sub(FIRST_BOUND_LOG2) as usize;
    bucket.min(BUCKETS - 1)
}

/// What was counted, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// How many there were, by duration; see [`bound_ns`].
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations, in nanoseconds.
    pub total_ns: u64,
}

impl Histogram {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Counts that many threads read, and one or several write. Nobody waits for anybody.
#[derive(Debug, Default)]
pub struct LiveHistogram {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
}

impl LiveHistogram {
    /// Counts one, where several threads do.
    pub fn add(&self, took: Duration) {
        let ns = nanoseconds(took);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts one, where no other thread does: an addition of another one could get lost.
    pub(crate) fn add_alone(&self, took: Duration) {
        let ns = nanoseconds(took);
        if let Some(bucket) = self.buckets.get(bucket_of(ns)) {
            raise(bucket, 1);
        }
        raise(&self.total_ns, ns);
    }

    /// Adds all counts to others.
    pub fn add_to(&self, total: &mut Histogram) {
        for (sum, own) in total.buckets.iter_mut().zip(&self.buckets) {
            *sum += own.load(Ordering::Relaxed);
        }
        total.total_ns += self.total_ns.load(Ordering::Relaxed);
    }

    /// Takes over what another counted that is not written to any more; for the one thread that
    /// writes here.
    pub(crate) fn absorb(&self, other: &LiveHistogram) {
        for (own, further) in self.buckets.iter().zip(&other.buckets) {
            raise(own, further.load(Ordering::Relaxed));
        }
        raise(&self.total_ns, other.total_ns.load(Ordering::Relaxed));
    }
}

/// Adds to a number that only this thread writes.
pub(crate) fn raise(number: &AtomicU64, by: u64) {
    number.store(
        number.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_that_has_room_for_it() {
        let fits = |ns: u64| (0..BUCKETS).find(|at| bound_ns(*at).is_none_or(|bound| ns <= bound));
        let around = (0..60).flat_map(|log| [(1 << log) - 1, 1 << log, (1 << log) + 1]);
        for ns in around.chain([0, u64::MAX]) {
            assert_eq!(Some(bucket_of(ns)), fits(ns), "{ns} ns");
        }
        assert_eq!(bound_ns(0), Some(1024));
        assert_eq!(bound_ns(BUCKETS - 2), Some(1024 << (BUCKETS - 2)));
        assert_eq!(bound_ns(BUCKETS - 1), None);
    }

    #[test]
    fn what_is_counted_is_found_and_taken_over() {
        let (one, other) = (LiveHistogram::default(), LiveHistogram::default());
        one.add(Duration::from_micros(1));
        one.add_alone(Duration::from_secs(100));
        other.add_alone(Duration::from_micros(2));
        other.absorb(&one);
        let mut total = Histogram::default();
        other.add_to(&mut total);
        assert_eq!((total.count(), total.total_ns), (3, 100_000_003_000));
        assert_eq!(total.buckets[..2], [1, 1]);
        assert_eq!(total.buckets[BUCKETS - 1], 1);
    }
}
