//! How long a run may take, and how long it will.

use std::time::{Duration, Instant};

use crate::progress::Step;

/// Of one run.
pub struct Clock {
    began: Instant,
    deadline: Option<Instant>,
    /// When the repetitions that are planned now will be over.
    end: Instant,
}

impl Clock {
    /// From now until `deadline`.
    pub fn start(deadline: Option<Instant>) -> Self {
        let began = Instant::now();
        Self {
            began,
            deadline,
            end: began,
        }
    }

    /// Since it began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// That so many repetitions of this length are still to come.
    pub fn plan(&mut self, repetition: Duration, repetitions: usize) {
        let left = repetition.saturating_mul(u32::try_from(repetitions).unwrap_or(u32::MAX));
        let end = Instant::now().checked_add(left);
        self.end = match (end, self.deadline) {
            (Some(end), Some(deadline)) => end.min(deadline),
            (Some(end), None) => end,
            (None, known) => known.unwrap_or(self.end),
        };
    }

    /// Whether something that takes so long is over in time.
    pub fn has_time_for(&self, what: Duration) -> bool {
        let end = Instant::now().checked_add(what);
        self.deadline
            .is_none_or(|deadline| end.is_some_and(|end| end < deadline))
    }

    /// A step of which is known what is left: done and total are milliseconds, so that whoever shows them
    /// has the time left in what remains.
    pub fn step<'a>(&self, what: &'a str, subject: &'a str) -> Step<'a> {
        let done = self.elapsed().as_millis() as usize;
        let total = self.end.saturating_duration_since(self.began).as_millis() as usize;
        Step {
            done,
            total: total.max(done + 1),
            what,
            subject,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_what_is_planned_and_never_beyond_the_end() {
        let mut open = Clock::start(None);
        assert!(open.has_time_for(Duration::from_secs(1 << 40)));
        open.plan(Duration::from_secs(2), 10);
        let step = open.step("it", "");
        assert!(
            (19_000..=20_001).contains(&(step.total - step.done)),
            "{step:?}"
        );
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut ends = Clock::start(Some(deadline));
        ends.plan(Duration::from_secs(2), 10);
        let step = ends.step("it", "");
        assert!(
            (4_000..=5_001).contains(&(step.total - step.done)),
            "{step:?}"
        );
        assert!(ends.has_time_for(Duration::from_secs(4)));
        assert!(!ends.has_time_for(Duration::from_secs(6)));
    }
}
