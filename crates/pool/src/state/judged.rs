//! What was judged of a directory a moment ago.

use parking_lot::Mutex;

use crate::base::exposure::Exposures;

/// How long that holds.
const HOLDS_MS: u64 = 1000;

/// To whom new names in it would be exposed: that takes a look at its copies and those above it.
#[derive(Default)]
pub struct Judged(Mutex<Option<Judgement>>);

struct Judgement {
    at_ms: u64,
    /// Of the view.
    generation: u64,
    exposures: Exposures,
}

impl Judged {
    /// What was found under the view of this generation.
    pub(crate) fn get(&self, now_ms: u64, generation: u64) -> Option<Exposures> {
        let judgement = self.0.lock();
        let known = judgement.as_ref()?;
        let holds = known.generation == generation && now_ms.saturating_sub(known.at_ms) < HOLDS_MS;
        holds.then(|| known.exposures.clone())
    }

    /// Keeps what was found.
    pub(crate) fn note(&self, now_ms: u64, generation: u64, exposures: &Exposures) {
        *self.0.lock() = Some(Judgement {
            at_ms: now_ms,
            generation,
            exposures: exposures.clone(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::exposure::Exposure;

    #[test]
    fn a_judgement_holds_for_a_moment_and_under_its_view() {
        let judged = Judged::default();
        assert_eq!(judged.get(5, 1), None);
        let found = Exposures::from_elem(Exposure::default(), 2);
        judged.note(5, 1, &found);
        assert_eq!(judged.get(6, 1), Some(found));
        assert_eq!(judged.get(6, 2), None);
        assert_eq!(judged.get(5 + HOLDS_MS, 1), None);
    }
}
