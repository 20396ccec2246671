//! Open files that may have been closed for the last time already. The kernel tells of a last close
//! without waiting for the answer (RELEASE), so that what its caller has another process ask for next
//! may be here before it. It does wait where it tells of every close (FLUSH): of those whose close
//! has just been told it is known that RELEASE may follow, or may not, if the file has another
//! descriptor.

use std::collections::HashMap;
use std::time::Duration;

/// For so long after a close was told its RELEASE may be on its way.
const RECENT_MS: u64 = 1000;
/// How long who wants a lock waits for a RELEASE that may be on its way.
const PATIENCE: Duration = Duration::from_millis(50);
/// The same where no close is told, for a second after the last who waited in vain.
const SHORT_PATIENCE: Duration = Duration::from_millis(3);

/// What is known of closes of one open file, in coarse monotonic milliseconds.
enum Known {
    /// One was told then.
    ToldMs(u64),
    /// None is ever told; somebody waited in vain then, 0 if nobody has.
    InVainMs(u64),
}

/// Open files by address. Empty while no close of a file with locks is told.
#[derive(Default)]
pub(super) struct Closing {
    files: HashMap<usize, Known>,
}

impl Closing {
    /// A close was told.
    pub fn told(&mut self, through: usize, now_ms: u64) {
        self.files.insert(through, Known::ToldMs(now_ms));
    }

    /// Somebody locks through the file, which is not closed then; `untold` if its closes are not told.
    pub fn locks(&mut self, through: usize, untold: bool) {
        if untold {
            let known = self.files.entry(through);
            known.or_insert(Known::InVainMs(0));
        } else if !self.files.is_empty() {
            self.files.remove(&through);
        }
    }

    /// RELEASE.
    pub fn over(&mut self, through: usize) {
        if !self.files.is_empty() {
            self.files.remove(&through);
        }
    }

    /// How long to wait for the RELEASE of a file that is held against somebody.
    pub fn patience(&self, through: usize, now_ms: u64) -> Duration {
        let is_recent = |at_ms: u64| now_ms.saturating_sub(at_ms) <= RECENT_MS;
        match self.files.get(&through) {
            Some(Known::ToldMs(at_ms)) if is_recent(*at_ms) => PATIENCE,
            Some(Known::InVainMs(at_ms)) if *at_ms > 0 && is_recent(*at_ms) => SHORT_PATIENCE,
            Some(Known::InVainMs(_)) => PATIENCE,
            Some(Known::ToldMs(_)) | None => Duration::ZERO,
        }
    }

    /// Somebody waited for it in vain.
    pub fn in_vain(&mut self, through: usize, now_ms: u64) {
        match self.files.get_mut(&through) {
            Some(Known::InVainMs(at_ms)) => *at_ms = now_ms.max(1),
            Some(Known::ToldMs(_)) => {
                self.files.remove(&through);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_held_against_is_waited_for_once_after_each_close_that_was_told() {
        let mut closing = Closing::default();
        assert_eq!(closing.patience(1, 5), Duration::ZERO);
        closing.told(1, 5);
        assert_eq!(closing.patience(1, 6), PATIENCE);
        assert_eq!(closing.patience(1, 6 + RECENT_MS), Duration::ZERO, "old");
        closing.in_vain(1, 60);
        assert_eq!(closing.patience(1, 60), Duration::ZERO);
        closing.told(1, 70);
        closing.locks(1, false);
        assert_eq!(closing.patience(1, 71), Duration::ZERO, "it was used since");
    }

    #[test]
    fn whose_closes_are_not_told_is_always_waited_for_but_soon_not_for_long() {
        let mut closing = Closing::default();
        closing.locks(2, true);
        assert_eq!(closing.patience(2, 9), PATIENCE);
        closing.in_vain(2, 60);
        closing.locks(2, true);
        assert_eq!(closing.patience(2, 61), SHORT_PATIENCE);
        assert_eq!(closing.patience(2, 61 + RECENT_MS), PATIENCE);
        closing.over(2);
        assert_eq!(closing.patience(2, 62), Duration::ZERO);
    }
}
