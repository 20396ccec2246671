//! What was judged of a directory a moment ago.

use parking_lot::Mutex;

use crate::base::exposure::Exposures;

/// How long that holds.
const HOLDS_MS: u64 = 1000;

/// To whom new names in it would be exposed: that takes a look at its copies and those above it.
#[derive(Default)]
pub struct Judged(Mutex<Option<Judgement>>);

struct Judgement {
    at: Moment,
    exposures: Exposures,
}

/// When a look at directories began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Coarse monotonic milliseconds.
    pub now_ms: u64,
    /// Of the view.
    pub generation: u64,
    /// The state of all directories: one that is renamed has others above it.
    pub structure: u64,
}

impl Moment {
    /// Whether what was found at `earlier` still holds.
    fn confirms(self, earlier: Moment) -> bool {
        let age_ms = self.now_ms.saturating_sub(earlier.now_ms);
        (self.generation, self.structure) == (earlier.generation, earlier.structure)
            && age_ms < HOLDS_MS
    }
}

impl Judged {
    /// What was found, if it still holds.
    pub(crate) fn get(&self, now: Moment) -> Option<Exposures> {
        let judgement = self.0.lock();
        let known = judgement.as_ref()?;
        now.confirms(known.at).then(|| known.exposures.clone())
    }

    /// Keeps what was found.
    pub(crate) fn note(&self, at: Moment, exposures: &Exposures) {
        let exposures = exposures.clone();
        *self.0.lock() = Some(Judgement { at, exposures });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::exposure::Exposure;

    #[test]
    fn a_judgement_holds_for_a_moment_under_its_view_and_while_no_directory_is_renamed() {
        let moment = |now_ms, generation, structure| Moment {
            now_ms,
            generation,
            structure,
        };
        let judged = Judged::default();
        assert_eq!(judged.get(moment(5, 1, 1)), None);
        let found = Exposures::from_elem(Exposure::default(), 2);
        judged.note(moment(5, 1, 1), &found);
        assert_eq!(judged.get(moment(6, 1, 1)), Some(found));
        assert_eq!(judged.get(moment(6, 2, 1)), None);
        assert_eq!(judged.get(moment(6, 1, 2)), None);
        assert_eq!(judged.get(moment(5 + HOLDS_MS, 1, 1)), None);
    }
}
