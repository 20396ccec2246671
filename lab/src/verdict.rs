//! Which layer it is, or that the samples cannot tell.
//!
//! A layer is named when its part exceeds that of every other one, by a t test of the leads of the
//! repetitions at the level of the look ([`crate::sequential`]), and by something worth the name. What
//! leads is decided by the medians; the test says whether chance could have done it. Before
//! [`SETTLED`] repetitions it is named only if it leads by far: what goes on for a while (a cache that is
//! written back, a filesystem that is new) could be in all of the first samples.
//! Else the answer is that it cannot be told, and how many more repetitions might.

use crate::layers::attribution::{Layer, Split, Table, part, share, total};
use crate::sequential::{FIRST, Mean};
use crate::stats::{Estimate, FEWEST_FOR_INTERVAL};

/// With fewer repetitions a layer has to lead by far.
pub const SETTLED: usize = 7;
/// By far: so many times the part of any other.
const FAR: f64 = 3.0;
/// The first has to lead the second by this share of the whole time.
const WORTH_NAMING: f64 = 0.05;
/// Pool and storage both below this share of the whole, beside what they cost together: then that is
/// the answer.
const NEXT_TO_NOTHING: f64 = 0.2;
/// Parts that add up to more than the whole by this share of it contradict each other.
const CONTRADICTION: f64 = 0.5;
/// Beyond so many further runs the answer is that the samples lie too far apart.
pub const MOST_FURTHER_RUNS: usize = 1000;
/// Drawings of the intervals: enough for two stable digits.
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
    /// The pool over the target takes much less time than its parts: a cache hides what lies below, or the machine
    /// was disturbed on some level. Differences say nothing then.
    Contradictory,
    /// There is nothing to judge by.
    NoSamples,
}

/// The answer and the parts it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The answer.
    pub finding: Finding,
    /// In the order of [`Layer::ALL`]; none without samples.
    pub parts: Vec<Estimate>,
}

/// Judges the times of one row, or of several together, at the level of a look.
pub fn judge(table: &Table, level: f64) -> Judgement {
    let Some(drawings) = Drawings::new(table) else {
        return Judgement {
            finding: Finding::NoSamples,
            parts: Vec::new(),
        };
    };
    let finding = match leader(table, &drawings.middle, level) {
        Leader::Layer(layer) => Finding::Layer(layer, drawings.estimate(&|it| share(it, layer))),
        Leader::Alike(one, other) => Finding::Alike(one, other),
        Leader::Open(more) => Finding::Needs(more),
        Leader::Contradictory => Finding::Contradictory,
    };
    Judgement {
        finding,
        parts: Layer::ALL
            .map(|layer| drawings.estimate(&|it| part(it, layer)))
            .to_vec(),
    }
}

/// About how many more repetitions may answer; `None` when there is an answer. Without the intervals: it is
/// asked at every look.
pub fn further(table: &Table, level: f64) -> Option<usize> {
    let every: Vec<usize> = (0..table.repetitions()).collect();
    match table.split(&every) {
        Some(middle) => match leader(table, &middle, level) {
            Leader::Open(more) => Some(more),
            // It may have been disturbed, and that may end.
            Leader::Contradictory => Some(FIRST),
            _ => None,
        },
        None => Some(FIRST),
    }
}

/// An answer without figures.
enum Leader {
    Layer(Layer),
    Alike(Layer, Layer),
    /// So many more repetitions may tell.
    Open(usize),
    Contradictory,
}

/// The largest first. What pool and storage cost together is nobody's own: it is among them only
/// when both are next to nothing alone, else the larger of them is what to look at first.
fn ranked(middle: &Split) -> Vec<Layer> {
    let small = |layer| part(middle, layer) < NEXT_TO_NOTHING * total(middle);
    let mut ranked = match small(Layer::Pool) && small(Layer::Storage) {
        true => Layer::ALL.to_vec(),
        false => vec![Layer::Machine, Layer::Pool, Layer::Storage],
    };
    ranked.sort_by(|one, other| part(middle, *other).total_cmp(&part(middle, *one)));
    ranked
}

fn leader(table: &Table, middle: &Split, level: f64) -> Leader {
    let count = table.repetitions();
    let ranked = ranked(middle);
    let Some((&first, rivals)) = ranked.split_first() else {
        return Leader::Open(FIRST);
    };
    if count < FIRST {
        return Leader::Open(FIRST - count);
    }
    if part(middle, Layer::Together) < -CONTRADICTION * total(middle) {
        return Leader::Contradictory;
    }
    let leads = rivals.iter().filter_map(|rival| {
        let lead = Mean::of(&table.leads(first, *rival))?;
        Some((*rival, lead, lead.chance_if_not_above_zero()))
    });
    // The rival that is hardest to leave behind.
    let Some((rival, lead, chance)) = leads.max_by(|one, other| one.2.total_cmp(&other.2)) else {
        return Leader::Open(FIRST);
    };
    let second = rivals.first().copied().unwrap_or(rival);
    let by = |other| part(middle, first) - part(middle, other);
    let is_worth = by(second) >= WORTH_NAMING * total(middle) && part(middle, first) > 0.0;
    let is_far = part(middle, first) >= FAR * part(middle, second);
    let is_settled = count >= SETTLED;
    match chance <= level {
        true if is_worth && (is_settled || is_far) => Leader::Layer(first),
        _ if !is_settled => Leader::Open(SETTLED - count),
        true => Leader::Alike(first, second),
        false if lead.upper_bound(level) < WORTH_NAMING => Leader::Alike(first, rival),
        false => Leader::Open(lead.further(WORTH_NAMING, level, MOST_FURTHER_RUNS)),
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
    fn new(table: &Table) -> Option<Self> {
        let count = table.repetitions();
        let every: Vec<usize> = (0..count).collect();
        let middle = table.split(&every)?;
        let mut random = fastrand::Rng::with_seed(SEED);
        let draw = |_| {
            let picks: Vec<usize> = (0..count).map(|_| random.usize(..count)).collect();
            table.split(&picks)
        };
        let drawn = (0..RESAMPLES).filter_map(draw).collect();
        Some(Self {
            middle,
            drawn,
            count,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::attribution::LevelTimes;
    use crate::sequential::Looks;

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

    /// The level of a run as it is where nothing else is asked for.
    fn level() -> f64 {
        Looks::plan(FIRST, 20, true).level()
    }

    fn of(parts: &[Split]) -> Finding {
        judge(&Table::new(&[&levels(parts)]), level()).finding
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
        assert_eq!(of(&[[1.0, 0.0, 9.0, 0.0]; 2]), Finding::Needs(1));
        // Two to one: not by far, however alike the samples are.
        assert_eq!(of(&[[1.0, 4.0, 8.0, 0.0]; 4]), Finding::Needs(3));
        assert_eq!(named(&of(&[[1.0, 4.0, 8.0, 0.0]; 7])), Some(Layer::Storage));
    }

    /// Seen where the hypervisor took half of the CPUs while the pool over memory had its turn: it took four times
    /// as long there as over the target, and was named.
    #[test]
    fn parts_that_exceed_the_whole_name_nobody() {
        let parts = [800.0, 830.0, 860.0, 820.0, 810.0, 840.0, 830.0];
        let parts = parts.map(|it| [5.0, it, 3.0, 200.0 - 8.0 - it]);
        assert_eq!(of(&parts), Finding::Contradictory);
        // A cache in the pool that hides a slow disk.
        assert_eq!(of(&[[1.0, 1.0, 99.0, -98.0]; 7]), Finding::Contradictory);
        // What was disturbed is measured again, as long as there is time.
        let table = Table::new(&[&levels(&[[1.0, 1.0, 99.0, -98.0]; 9])]);
        assert_eq!(further(&table, level()), Some(FIRST));
        // One that helps a little is no contradiction.
        assert_eq!(
            named(&of(&[[1.0, 1.0, 99.0, -20.0]; 7])),
            Some(Layer::Storage)
        );
    }

    /// What was seen on a device that moves 3 MiB a second: 336 ms a MiB, against 0.36 ms for the machine.
    #[test]
    fn levels_that_do_not_overlap_are_decided_at_once() {
        let parts = [300.0, 336.0, 350.0].map(|it| [0.36, 0.2, it, 1.0]);
        assert_eq!(named(&of(&parts)), Some(Layer::Storage));
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
        let table = Table::new(&rows.iter().collect::<Vec<_>>());
        judge(&table, level()).finding
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
                let found = disturbed(&mut random, Some(slow), 3, 20, hit);
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
