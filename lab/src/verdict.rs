//! Which layer it is, or that the samples cannot tell.
//!
//! The repetitions are drawn again with replacement, thousands of times (bootstrap), all rows of a
//! repetition together, and the parts are computed anew from each drawing. A layer is named when it
//! is the largest in nearly all drawings, and leads the next by something worth the name. Where the
//! medians spread too far for that, the lower quartiles are asked: what disturbs a machine only adds
//! time, so that they spread less; they have to name the layer that leads by the medians as well.
//! Else the answer is that it cannot be told, and how many more repetitions might.

use crate::layers::attribution::{Layer, Quantile, Split, Table, part, share, total};
use crate::stats::{Estimate, FEWEST_FOR_INTERVAL};

/// Share of the drawings in which a layer may not be the largest and still be named.
const ERROR: f64 = 0.005;
/// Standard deviations by which a lead is clear of zero at that error, if it is distributed normally.
const CLEAR: f64 = 2.6;
/// With fewer repetitions chance alone can put them all on one side (1/2 to the 7th is below 1 %).
const FEWEST: usize = 7;
/// The first has to lead the second by this share of the whole time.
const WORTH_NAMING: f64 = 0.05;
/// Pool and storage both below this share of the whole, beside what they cost together: then that is
/// the answer.
const NEXT_TO_NOTHING: f64 = 0.2;
/// Beyond so many further runs the answer is that the samples lie too far apart.
pub const MOST_FURTHER_RUNS: usize = 1000;
/// Drawings: enough for the 0.5 % tail.
const RESAMPLES: usize = 1_000;
/// The same samples always give the same answer.
const SEED: u64 = 0x5eed_1ead;

/// The answer to one question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finding {
    /// This layer, with its share of the time.
    Layer(Layer, Estimate),
    /// Two cost about the same: more repetitions would not help.
    Alike(Layer, Layer),
    /// So many more repetitions may tell; at most [`MOST_FURTHER_RUNS`].
    Needs(usize),
    /// There is nothing to judge by.
    NoSamples,
}

/// The answer and the parts it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The answer.
    pub finding: Finding,
    /// Whether it rests on the least disturbed quarter of the samples: the medians spread too far.
    pub is_undisturbed: bool,
    /// In the order of [`Layer::ALL`]; none without samples.
    pub parts: Vec<Estimate>,
}

/// Judges the times of one row, or of several together.
pub fn judge(table: &Table) -> Judgement {
    let Some(usual) = Drawings::new(table, Quantile::Median) else {
        return Judgement {
            finding: Finding::NoSamples,
            is_undisturbed: false,
            parts: Vec::new(),
        };
    };
    let parts = Layer::ALL.map(|layer| usual.estimate(&|it| part(it, layer)));
    let mut found = usual.find();
    let mut is_undisturbed = false;
    if let Finding::Needs(_) = found
        && let Some(undisturbed) = Drawings::new(table, Quantile::Lower)
        && let Finding::Layer(layer, share) = undisturbed.find()
        // What is slow only now and then is no disturbance: where the usual times point elsewhere,
        // nobody can tell.
        && usual.ranked().first() == Some(&layer)
    {
        is_undisturbed = true;
        found = Finding::Layer(layer, share);
    }
    Judgement {
        finding: found,
        is_undisturbed,
        parts: parts.to_vec(),
    }
}

/// The parts, and what they would have been in other runs like this one.
struct Drawings {
    middle: Split,
    drawn: Vec<Split>,
    /// Complete repetitions.
    count: usize,
}

impl Drawings {
    /// `None` without samples.
    fn new(table: &Table, quantile: Quantile) -> Option<Self> {
        let count = table.repetitions();
        let every: Vec<usize> = (0..count).collect();
        let middle = table.split(&every, quantile)?;
        let mut random = fastrand::Rng::with_seed(SEED);
        let draw = |_| {
            let picks: Vec<usize> = (0..count).map(|_| random.usize(..count)).collect();
            table.split(&picks, quantile)
        };
        let drawn = (0..RESAMPLES).filter_map(draw).collect();
        Some(Self {
            middle,
            drawn,
            count,
        })
    }

    /// The largest first. What pool and storage cost together is nobody's own: it is among them only
    /// when both are next to nothing alone, else the larger of them is what to look at first.
    fn ranked(&self) -> Vec<Layer> {
        let of = |layer| part(&self.middle, layer);
        let small = |layer| of(layer) < NEXT_TO_NOTHING * total(&self.middle);
        let mut ranked = match small(Layer::Pool) && small(Layer::Storage) {
            true => Layer::ALL.to_vec(),
            false => vec![Layer::Machine, Layer::Pool, Layer::Storage],
        };
        ranked.sort_by(|one, other| of(*other).total_cmp(&of(*one)));
        ranked
    }

    fn find(&self) -> Finding {
        let ranked = self.ranked();
        let (Some(&first), Some(&second)) = (ranked.first(), ranked.get(1)) else {
            return Finding::NoSamples;
        };
        if self.count < FEWEST {
            return Finding::Needs(FEWEST - self.count);
        }
        let lead = |split: &Split| {
            let others = ranked.iter().skip(1).map(|it| part(split, *it));
            part(split, first) - others.fold(f64::NEG_INFINITY, f64::max)
        };
        let mut leads: Vec<f64> = self.drawn.iter().map(lead).collect();
        leads.sort_by(f64::total_cmp);
        let tail = (ERROR * leads.len() as f64) as usize;
        let at = |place: usize| leads.get(place).copied().unwrap_or(0.0);
        let (low, high) = (at(tail), at((leads.len() - tail).saturating_sub(1)));
        let worth = WORTH_NAMING * total(&self.middle);
        if high < worth || low > 0.0 && lead(&self.middle) < worth {
            return Finding::Alike(first, second);
        }
        if low > 0.0 && part(&self.middle, first) > 0.0 {
            return Finding::Layer(first, self.estimate(&|it| share(it, first)));
        }
        let needed = further(lead(&self.middle).max(worth), deviation(&leads), self.count);
        Finding::Needs(needed)
    }

    /// What they say of a value, as a 95 % interval.
    fn estimate(&self, of: &dyn Fn(&Split) -> f64) -> Estimate {
        let median = of(&self.middle);
        let mut values: Vec<f64> = self.drawn.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let tail = values.len() / 40;
        let at = |place: usize| values.get(place).copied().unwrap_or(median);
        Estimate {
            median,
            low: at(tail),
            high: at((values.len() - tail).saturating_sub(1)),
            samples: self.count,
            is_interval: self.count >= FEWEST_FOR_INTERVAL,
        }
    }
}

/// How many more repetitions would make a lead clear that spreads by `deviation` now: an interval
/// narrows with the root of their number.
fn further(lead: f64, deviation: f64, count: usize) -> usize {
    let missing = CLEAR * deviation / lead;
    let needed = count as f64 * (missing * missing - 1.0);
    // A conversion from a float ends at the largest number.
    (needed.ceil() as usize).clamp(1, MOST_FURTHER_RUNS)
}

fn deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
    (squares / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::attribution::LevelTimes;

    /// The levels of which these are the parts.
    fn levels(parts: &[Split]) -> LevelTimes {
        let level = |of: fn(&Split) -> f64| parts.iter().map(|it| Some(of(it))).collect();
        LevelTimes {
            memory: level(|it| it[0]),
            pool_memory: level(|it| it[0] + it[1]),
            target: level(|it| it[0] + it[2]),
            pool_target: level(|it| it[0] + it[1] + it[2] + it[3]),
        }
    }

    fn of(parts: &[Split]) -> Finding {
        judge(&Table::new(&[&levels(parts)])).finding
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
            let found = of(&[split; 9]);
            assert_eq!(named(&found), Some(layer), "{found:?}");
        }
    }

    #[test]
    fn what_the_pool_multiplies_is_the_storages() {
        // A slow target, and a pool that asks it three times for each request.
        let found = of(&[[0.01, 0.02, 1.0, 2.0]; 9]);
        assert_eq!(named(&found), Some(Layer::Storage));
    }

    #[test]
    fn a_lead_that_changes_names_nobody_and_says_how_many_more() {
        let (one, other) = ([1.0, 5.0, 4.0, 0.0], [1.0, 4.0, 5.0, 0.0]);
        let even = of(&[one, other, one, other, one, other, one, other]);
        assert!(
            matches!(even, Finding::Alike(..) | Finding::Needs(_)),
            "{even:?}"
        );
        let mut rather = vec![one; 5];
        rather.extend([other; 3]);
        let rather = of(&rather);
        assert!(matches!(rather, Finding::Needs(1..99)), "{rather:?}");
    }

    #[test]
    fn a_lead_of_next_to_nothing_names_nobody() {
        let found = of(&[[0.0, 5.0, 4.9, 0.1]; 20]);
        assert_eq!(found, Finding::Alike(Layer::Pool, Layer::Storage));
    }

    #[test]
    fn few_repetitions_name_nobody() {
        assert_eq!(of(&[]), Finding::NoSamples);
        assert_eq!(of(&[[0.0, 0.0, 9.0, 0.0]; 4]), Finding::Needs(3));
        assert_eq!(named(&of(&[[0.0, 0.0, 9.0, 0.0]; 7])), Some(Layer::Storage));
    }

    #[test]
    fn further_runs_follow_the_root_of_their_number() {
        // Half as wide as needed: four times as many in all.
        assert_eq!(further(CLEAR, 2.0, 10), 30);
        assert_eq!(further(CLEAR, 0.5, 10), 1);
        assert_eq!(further(0.01, 1.0, 10), MOST_FURTHER_RUNS);
    }

    /// A run on a disturbed machine: `rows` rows on which `slow` is slow, every sample of which is
    /// with a chance of `hit` up to ten times as long.
    fn disturbed(
        random: &mut fastrand::Rng,
        slow: Option<Layer>,
        rows: usize,
        repetitions: usize,
        hit: f64,
    ) -> Finding {
        let part = |layer| if slow == Some(layer) { 6.0 } else { 2.0 };
        let (pool, storage) = (part(Layer::Pool), part(Layer::Storage));
        let exact = [1.0, 1.0 + pool, 1.0 + storage, 1.0 + pool + storage];
        let mut row = || {
            let mut level = |place: usize| {
                let mut sample = |_| {
                    let base: f64 = exact[place];
                    let own = 1.0 + 0.1 * random.f64();
                    let hog = match random.f64() < hit {
                        true => 1.0 + 9.0 * random.f64(),
                        false => 1.0,
                    };
                    Some(base * own * hog)
                };
                (0..repetitions).map(&mut sample).collect()
            };
            LevelTimes {
                memory: level(0),
                pool_memory: level(1),
                target: level(2),
                pool_target: level(3),
            }
        };
        let rows: Vec<LevelTimes> = (0..rows).map(|_| row()).collect();
        judge(&Table::new(&rows.iter().collect::<Vec<_>>())).finding
    }

    /// The acceptance on paper: a delay in one layer, noise on every level; never another layer, and
    /// within the budget it is the right one.
    #[test]
    fn noise_never_names_a_wrong_layer() {
        let mut random = fastrand::Rng::with_seed(99);
        for (hit, at_least) in [(0.1, 19), (0.2, 18), (0.4, 9)] {
            let mut right = 0;
            for run in 0..20 {
                let slow = [Layer::Pool, Layer::Storage][run % 2];
                let found = disturbed(&mut random, Some(slow), 3, 14, hit);
                if let Some(layer) = named(&found) {
                    assert_eq!(layer, slow, "{found:?}");
                    right += 1;
                }
            }
            assert!(right >= at_least, "{hit}: {right} of 20 named at all");
        }
    }

    /// Storage that is slow in most samples and the pool in none: the least disturbed quarter shows
    /// the pool alone, which must not be named for that.
    #[test]
    fn what_is_slow_now_and_then_is_no_disturbance() {
        let slow = |at: usize| if at < 9 { 9.0 } else { 0.1 };
        let parts: Vec<Split> = (0..14).map(|at| [1.0, 3.0, slow(at), 0.0]).collect();
        let found = of(&parts);
        assert_ne!(named(&found), Some(Layer::Pool), "{found:?}");
    }

    /// Pool and storage cost the same: to name either is a mistake, at most one in a hundred.
    #[test]
    fn equals_are_not_named_by_chance() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut wrong = 0;
        for run in 0..100 {
            let found = disturbed(&mut random, None, 1 + run % 3, 7 + run % 8, 0.3);
            wrong += usize::from(named(&found).is_some());
        }
        assert!(wrong <= 3, "{wrong} of 100");
    }
}
