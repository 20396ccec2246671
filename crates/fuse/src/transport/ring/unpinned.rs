//! Where the thread of a queue runs: on its queue's CPU, or, while requests keep waiting there, on
//! any.
//!
//! One request at a time is served fastest where its caller runs: nobody has to be woken on
//! another CPU. A caller with many under way goes on meanwhile, and would share its CPU with the
//! thread that serves them, however many others idle. The kernel does not say how many requests
//! wait, but a look without waiting finds one exactly if there is one.

use super::batch::CROWD_THRESHOLD;

/// Requests between two looks while nothing waits: a look that finds nothing is one system call
/// more.
const SPACING: u32 = 16;
/// Looks in a row that find a request before the thread leaves its CPU. Callers that wait for
/// their answers cause a few: eight of them on two CPUs lost a tenth of their speed at 8 or 16,
/// while one program with 32 requests under way causes any number.
const DEEP: u32 = 64;
/// Looks in a row that find nothing before it comes home, if it found enough before.
const PATIENCE: u32 = 64;
/// Looks without a request that one with makes up for. A thread that runs beside its caller often
/// finds nothing although more is on its way.
const WORTH: u32 = 3;

/// What a look says about where the thread is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Where it is.
    Stay,
    /// On any CPU.
    Unpinned,
    /// On that of its queue.
    Home,
}

/// What a thread's looks have found.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    is_unpinned: bool,
    /// At home: finds in a row. Elsewhere: looks without any until it comes home.
    score: u32,
    /// Requests since the last look.
    since: u32,
}

impl Backlog {
    /// Whether to look for the next request before waiting for it. Asked once for each.
    pub(super) fn is_to_look(&mut self) -> bool {
        self.since = self.since.wrapping_add(1);
        self.is_unpinned || self.score > 0 || self.since >= SPACING
    }

    /// Of a thread with several entries, for which nobody has to look: so many requests came together,
    /// as if as many looks but one had found one.
    pub(super) fn note_batch(&mut self, requests: u32) -> Verdict {
        let others = requests.saturating_sub(1);
        let enough = if self.is_unpinned {
            1
        } else {
            CROWD_THRESHOLD - 1
        };
        self.note_looks(others, others >= enough)
    }

    /// Whether the thread may be away from its queue's CPU.
    pub(super) fn is_unpinned(&self) -> bool {
        self.is_unpinned
    }

    /// A look has found a request, or not.
    pub(super) fn note(&mut self, found: bool) -> Verdict {
        self.since = 0;
        self.note_looks(1, found)
    }

    fn note_looks(&mut self, looks: u32, found: bool) -> Verdict {
        self.score = match (self.is_unpinned, found) {
            (false, false) => 0,
            (false, true) => self.score + looks,
            (true, false) => self.score.saturating_sub(1),
            (true, true) => (self.score + WORTH * looks).min(PATIENCE),
        };
        if !self.is_unpinned && self.score >= DEEP {
            (self.is_unpinned, self.score) = (true, PATIENCE);
            return Verdict::Unpinned;
        }
        if self.is_unpinned && self.score == 0 {
            self.is_unpinned = false;
            return Verdict::Home;
        }
        Verdict::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves requests of which every look finds one or none; what is said beside `Stay`.
    fn serve(backlog: &mut Backlog, requests: u32, found: impl Fn(u32) -> bool) -> Vec<Verdict> {
        let mut said = Vec::new();
        for number in 0..requests {
            if backlog.is_to_look() {
                said.push(backlog.note(found(number)));
            }
        }
        said.retain(|verdict| *verdict != Verdict::Stay);
        said
    }

    #[test]
    fn one_caller_at_a_time_keeps_the_thread_at_home_and_costs_few_looks() {
        let mut backlog = Backlog::default();
        let looks = (0..16 * SPACING).filter(|_| {
            let looks = backlog.is_to_look();
            assert!(!looks || backlog.note(false) == Verdict::Stay);
            looks
        });
        assert_eq!(looks.count(), 16);
        assert_eq!(serve(&mut backlog, 1000, |_| false), []);
    }

    #[test]
    fn a_few_callers_that_wait_keep_it_at_home() {
        let mut backlog = Backlog::default();
        // Four of them: three requests wait whenever one has been waited for.
        assert_eq!(serve(&mut backlog, 1000, |number| number % 4 != 0), []);
    }

    #[test]
    fn several_at_once_send_it_away_and_one_at_a_time_brings_it_home() {
        let mut backlog = Backlog::default();
        let mut note = |requests, times| {
            let said = (0..times).map(|_| backlog.note_batch(requests));
            said.filter(|verdict| *verdict != Verdict::Stay)
                .collect::<Vec<_>>()
        };
        assert_eq!(note(4, 1000), [], "a few callers that wait");
        assert_eq!(note(CROWD_THRESHOLD, 1000), [Verdict::Unpinned]);
        assert_eq!(note(2, 1000), []);
        assert_eq!(note(1, 1000), [Verdict::Home]);
    }

    #[test]
    fn a_backlog_sends_it_away_once_and_calm_brings_it_home() {
        let mut backlog = Backlog::default();
        assert_eq!(serve(&mut backlog, 1000, |_| true), [Verdict::Unpinned]);
        // Its caller is the slower one now.
        assert_eq!(serve(&mut backlog, 1000, |number| number % 3 == 0), []);
        assert_eq!(
            serve(&mut backlog, PATIENCE + 1, |_| false),
            [Verdict::Home]
        );
        assert_eq!(serve(&mut backlog, 1000, |_| false), []);
        assert_eq!(serve(&mut backlog, 1000, |_| true), [Verdict::Unpinned]);
    }
}
