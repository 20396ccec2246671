//! Which layer it is, or that the samples cannot tell.
//!
//! A layer is named when three things hold: its part is clear of zero (95 % bootstrap interval), it
//! was the largest in so many repetitions that chance would do it once in a hundred times at most
//! (sign test), and the next one is smaller by something worth the name. Else the answer is that it
//! cannot be told, and how many more repetitions might.

use crate::layers::attribution::{Layer, Split, part, part_estimate, share, total};
use crate::spread::{Lead, MOST_FURTHER_RUNS, lead};
use crate::stats::{Estimate, estimate, median};

/// The first has to lead the second by this share of the whole time.
const WORTH_NAMING: f64 = 0.05;
/// Pool and storage both below this share of the whole, beside what they cost together: then that is
/// the answer.
const NEXT_TO_NOTHING: f64 = 0.2;

/// The answer to one question.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding {
    /// This layer, with its share of the time.
    Layer(Layer, Estimate),
    /// Two cost about the same: more repetitions would not help.
    Alike(Layer, Layer),
    /// More repetitions may tell; at most [`MOST_FURTHER_RUNS`].
    Needs(usize),
    /// There is nothing to judge by.
    NoSamples,
}

/// Judges the parts of one row, or the average of several.
pub fn judge(splits: &[Option<Split>]) -> Finding {
    let known: Vec<Split> = splits.iter().copied().flatten().collect();
    let totals: Vec<f64> = known.iter().map(total).collect();
    let Some(whole) = median(&totals) else {
        return Finding::NoSamples;
    };
    let middle = |layer| median(&part(splits, layer)).unwrap_or(0.0);
    let mut ranked = contestants(&middle, whole);
    ranked.sort_by(|one, other| middle(*other).total_cmp(&middle(*one)));
    let (Some(&first), Some(&second)) = (ranked.first(), ranked.get(1)) else {
        return Finding::NoSamples;
    };
    let ahead = |split: &&Split| {
        let own = split.get(first as usize).copied().unwrap_or(0.0);
        let others = ranked.iter().filter(|layer| **layer != first);
        others
            .filter_map(|layer| split.get(*layer as usize))
            .all(|other| own > *other)
    };
    let wins = known.iter().filter(ahead).count();
    let apart: Vec<f64> = known
        .iter()
        .filter_map(|it| Some(it.get(first as usize)? - it.get(second as usize)?))
        .collect();
    let worth = estimate(&apart).is_some_and(|it| it.median >= WORTH_NAMING * whole);
    let clear = part_estimate(splits, first).is_some_and(|it| it.is_interval && it.low > 0.0);
    match (lead(wins, known.len()), clear, share(splits, first)) {
        (Lead::Clear, true, Some(share)) if worth => Finding::Layer(first, share),
        (Lead::Clear, true, _) | (Lead::Needs(MOST_FURTHER_RUNS), ..) => {
            Finding::Alike(first, second)
        }
        (Lead::Needs(more), ..) => Finding::Needs(more),
        // Ahead of the others always, and yet not clear of zero: all are next to nothing, or there
        // are too few repetitions for an interval.
        (Lead::Clear, false, _) => Finding::Needs(known.len()),
    }
}

/// What pool and storage cost together is nobody's own: it is named only when both are next to
/// nothing alone, else the larger of them is what to look at first.
fn contestants(middle: &impl Fn(Layer) -> f64, whole: f64) -> Vec<Layer> {
    let small = |layer| middle(layer) < NEXT_TO_NOTHING * whole;
    match small(Layer::Pool) && small(Layer::Storage) {
        true => Layer::ALL.to_vec(),
        false => vec![Layer::Machine, Layer::Pool, Layer::Storage],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splits(parts: &[Split]) -> Vec<Option<Split>> {
        parts.iter().copied().map(Some).collect()
    }

    fn named(finding: &Finding) -> Option<Layer> {
        match finding {
            Finding::Layer(layer, _) => Some(*layer),
            _ => None,
        }
    }

    #[test]
    fn the_largest_part_is_named_when_it_always_leads() {
        for layer in Layer::ALL {
            let mut split = [1.0, 1.0, 1.0, 0.5];
            split[layer as usize] = 20.0;
            let found = judge(&splits(&[split; 9]));
            assert_eq!(named(&found), Some(layer), "{found:?}");
        }
    }

    #[test]
    fn what_the_pool_multiplies_is_the_storages() {
        // A slow target, and a pool that asks it three times for each request.
        let found = judge(&splits(&[[0.01, 0.02, 1.0, 2.0]; 9]));
        assert_eq!(named(&found), Some(Layer::Storage));
    }

    #[test]
    fn a_lead_that_changes_names_nobody_and_says_how_many_more() {
        let (one, other) = ([1.0, 5.0, 4.0, 0.0], [1.0, 4.0, 5.0, 0.0]);
        let even = judge(&splits(&[one, other, one, other, one, other, one, other]));
        assert!(matches!(even, Finding::Alike(..)), "{even:?}");
        let rather = judge(&splits(&[one, one, one, one, other, one, one, one]));
        assert!(matches!(rather, Finding::Needs(1..20)), "{rather:?}");
    }

    #[test]
    fn a_lead_of_next_to_nothing_names_nobody() {
        let found = judge(&splits(&[[0.0, 5.0, 4.9, 0.1]; 20]));
        assert_eq!(found, Finding::Alike(Layer::Pool, Layer::Storage));
    }

    #[test]
    fn few_repetitions_name_nobody() {
        assert_eq!(judge(&[]), Finding::NoSamples);
        let found = judge(&splits(&[[0.0, 0.0, 9.0, 0.0]; 4]));
        assert!(matches!(found, Finding::Needs(_)), "{found:?}");
    }

    /// The acceptance on paper: a delay in one layer, noise on every rung; never another layer.
    #[test]
    fn noise_never_names_a_wrong_layer() {
        let mut random = fastrand::Rng::with_seed(99);
        let (mut right, mut runs) = (0, 0);
        for slow in [Layer::Pool, Layer::Storage] {
            for _ in 0..30 {
                let mut rungs: [Vec<Option<f64>>; 4] = Default::default();
                for _ in 0..9 {
                    // A hog takes up to two thirds of the CPU from any sample, with long tails.
                    let mut noisy = |exact: f64| {
                        let hog = if random.bool() {
                            1.0 + 2.0 * random.f64()
                        } else {
                            1.0
                        };
                        exact * hog
                    };
                    let delay = 6.0;
                    let (mut pool, mut storage) = (2.0, 0.1);
                    match slow {
                        Layer::Pool => pool += delay,
                        _ => storage += delay,
                    }
                    let exact = [1.0, 1.0 + pool, 1.0 + storage, 1.0 + pool + storage];
                    for (rung, exact) in rungs.iter_mut().zip(exact) {
                        rung.push(Some(noisy(exact)));
                    }
                }
                let [memory, pool_memory, target, pool_target] = &rungs;
                let found = judge(&crate::layers::attribution::split(
                    &crate::layers::attribution::Rungs {
                        memory,
                        pool_memory,
                        target,
                        pool_target,
                    },
                ));
                runs += 1;
                if let Some(layer) = named(&found) {
                    assert_eq!(layer, slow, "{found:?}");
                    right += 1;
                }
            }
        }
        assert!(right > runs / 10, "{right} of {runs} named at all");
    }

    /// One in a hundred a side: of a hundred two, and hardly ever nine.
    #[test]
    fn equals_are_not_named_by_chance() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut wrong = 0;
        for _ in 0..100 {
            let parts: Vec<Split> = (0..9)
                .map(|_| [0.1, 1.0 + random.f64(), 1.0 + random.f64(), 0.0])
                .collect();
            wrong += usize::from(named(&judge(&splits(&parts))).is_some());
        }
        assert!(wrong < 9, "{wrong} of 100");
    }
}
