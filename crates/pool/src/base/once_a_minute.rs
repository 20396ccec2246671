//! What users can provoke at any rate is logged once a minute.

use std::sync::atomic::{AtomicU64, Ordering};

const EVERY_MS: u64 = 60_000;

/// When it was logged last.
#[derive(Default)]
pub(crate) struct OnceAMinute(AtomicU64);

impl OnceAMinute {
    /// Whether it is time to log it again, at this moment of the coarse monotonic clock.
    pub(crate) fn again(&self, now_ms: u64) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        let due = last == 0 || now_ms.saturating_sub(last) >= EVERY_MS;
        due && self
            .0
            .compare_exchange(last, now_ms.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_happening_is_told_of_once_a_minute() {
        let told = OnceAMinute::default();
        assert!(told.again(0), "the clock begins at 0");
        assert!(!told.again(5) && !told.again(EVERY_MS));
        assert!(told.again(EVERY_MS + 1) && !told.again(EVERY_MS + 2));
    }
}
