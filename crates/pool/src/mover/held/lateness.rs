//! How late a thread is woken: pure.

use std::time::{Duration, Instant};

/// What was seen counts for half after so long.
const HALVED_AFTER: Duration = Duration::from_secs(10);

/// More says that the whole machine stood still, and its writers with it.
const LONGEST: Duration = Duration::from_secs(1);

/// The worst of lately.
pub(super) struct Lateness {
    worst: Duration,
    seen: Instant,
}

impl Lateness {
    pub(super) fn new(now: Instant) -> Lateness {
        Lateness {
            worst: Duration::ZERO,
            seen: now,
        }
    }

    /// It was so late.
    pub(super) fn note(&mut self, late: Duration, now: Instant) {
        let late = late.min(LONGEST);
        if late >= self.of(now) {
            (self.worst, self.seen) = (late, now);
        }
    }

    /// How late it may well be the next time.
    pub(super) fn of(&self, now: Instant) -> Duration {
        let ages =
            now.saturating_duration_since(self.seen).as_secs_f64() / HALVED_AFTER.as_secs_f64();
        self.worst.mul_f64(0.5_f64.powf(ages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts_and_is_forgotten_in_time() {
        let (begun, ms) = (Instant::now(), Duration::from_millis);
        let mut lateness = Lateness::new(begun);
        assert_eq!(lateness.of(begun), Duration::ZERO);
        lateness.note(ms(400), begun);
        lateness.note(ms(3), begun);
        assert_eq!(lateness.of(begun), ms(400));
        assert_eq!(lateness.of(begun + HALVED_AFTER), ms(200));
        lateness.note(ms(300), begun + HALVED_AFTER);
        assert_eq!(lateness.of(begun + HALVED_AFTER), ms(300));
        assert!(lateness.of(begun + HALVED_AFTER * 12) < ms(1));
        lateness.note(LONGEST * 60, begun);
        assert_eq!(lateness.of(begun), LONGEST);
    }
}
