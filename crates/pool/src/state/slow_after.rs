//! `slow.log`, where each request finds it without looking at the options.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// From which time on a request is slow.
pub(crate) struct SlowAfter {
    ns: AtomicU64,
}

/// No request is.
const NEVER: u64 = u64::MAX;

impl Default for SlowAfter {
    fn default() -> Self {
        Self {
            ns: AtomicU64::new(NEVER),
        }
    }
}

impl SlowAfter {
    /// Requests that take so long are slow; zero: none are.
    pub(crate) fn set(&self, after: Duration) {
        let ns = match after.is_zero() {
            true => NEVER,
            false => u64::try_from(after.as_nanos()).unwrap_or(NEVER),
        };
        self.ns.store(ns, Ordering::Relaxed);
    }

    /// The time; none where no request is slow.
    pub(crate) fn get(&self) -> Option<Duration> {
        let ns = self.ns.load(Ordering::Relaxed);
        (ns != NEVER).then(|| Duration::from_nanos(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_never() {
        let after = SlowAfter::default();
        assert_eq!(after.get(), None);
        after.set(Duration::from_millis(100));
        assert_eq!(after.get(), Some(Duration::from_millis(100)));
        after.set(Duration::ZERO);
        assert_eq!(after.get(), None);
    }
}
