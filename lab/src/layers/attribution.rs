//! Whose time it is: the difference of two levels is the cost of what the upper one adds.
//!
//! With memory-backed storage the time is the machine's (system calls, page cache); a pool over it
//! adds the pool's; the target bare adds the storage's; the pool over the target should cost the sum,
//! and what it costs beyond is the two together (requests that the pool multiplies, passthrough that
//! the target does not allow).
//!
//! Differences are taken between the medians of the levels over the repetitions, not within each
//! repetition: four single samples, of which one was disturbed, would make a part of that repetition
//! absurd, and on a busy machine most repetitions have such a one.

use crate::stats::median;

/// A part of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Memory, system calls, the page cache.
    Machine,
    /// The pool: FUSE and its server.
    Pool,
    /// What holds the bytes: filesystem, device, network.
    Storage,
    /// What pool and storage cost together beyond what each costs alone.
    Together,
}

impl Layer {
    /// All, from below.
    pub const ALL: [Layer; 4] = [Self::Machine, Self::Pool, Self::Storage, Self::Together];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Pool => "pool",
            Self::Storage => "storage",
            Self::Together => "together",
        }
    }
}

/// The times of one unit of work on the four levels of a row, by repetition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LevelTimes {
    /// Memory-backed storage, bare.
    pub memory: Vec<Option<f64>>,
    /// The pool over it.
    pub pool_memory: Vec<Option<f64>>,
    /// The target, bare.
    pub target: Vec<Option<f64>>,
    /// The pool over it.
    pub pool_target: Vec<Option<f64>>,
}

/// Parts of the time in the order of [`Layer::ALL`]. They add up to the time of the pool over the
/// target. A part may be below 0: a cache in the pool can be faster than none.
pub type Split = [f64; 4];

/// Which quantile of its times stands for a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantile {
    /// What the work usually takes.
    Median,
    /// The lower quartile: what the work takes when little disturbs it. Others only ever add time.
    Lower,
}

/// The times of several rows, in the repetitions that have all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// By row: by repetition: memory, pool over memory, target, pool over target.
    rows: Vec<Vec<[f64; 4]>>,
    /// What a row's parts are divided by before they are averaged; rows count alike.
    scales: Vec<f64>,
}

impl Table {
    /// Keeps what is complete. The parts of a single row are in its own unit; those of several are
    /// shares of the median time of the pool over the target, averaged over the rows.
    pub fn new(rows: &[&LevelTimes]) -> Self {
        let longest = rows.iter().map(|it| it.pool_target.len()).max();
        let whole = |at: usize| -> Option<Vec<[f64; 4]>> {
            let row = |levels: &&LevelTimes| {
                let time = |level: &[Option<f64>]| level.get(at).copied().flatten();
                Some([
                    time(&levels.memory)?,
                    time(&levels.pool_memory)?,
                    time(&levels.target)?,
                    time(&levels.pool_target)?,
                ])
            };
            rows.iter().map(row).collect()
        };
        let mut kept = vec![Vec::new(); rows.len()];
        for repetition in (0..longest.unwrap_or(0)).filter_map(whole) {
            for (row, times) in kept.iter_mut().zip(repetition) {
                row.push(times);
            }
        }
        let scale = |row: &Vec<[f64; 4]>| {
            let totals: Vec<f64> = row.iter().map(|it| it[3]).collect();
            median(&totals).filter(|it| *it > 0.0).unwrap_or(1.0)
        };
        let scales = match kept.as_slice() {
            [_] => vec![1.0],
            several => several.iter().map(scale).collect(),
        };
        Self { rows: kept, scales }
    }

    /// Complete repetitions.
    pub fn repetitions(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// The parts, from these repetitions; one may be named more than once. `None` for none.
    pub fn split(&self, repetitions: &[usize], quantile: Quantile) -> Option<Split> {
        let mut sum = [0.0; 4];
        let mut column = Vec::with_capacity(repetitions.len());
        for (row, scale) in self.rows.iter().zip(&self.scales) {
            let mut middle = [0.0; 4];
            for (level, middle) in middle.iter_mut().enumerate() {
                column.clear();
                column.extend(repetitions.iter().filter_map(|at| row.get(*at)?.get(level)));
                *middle = quantile.of(&mut column)?;
            }
            let [memory, pool_memory, target, all] = middle;
            let (pool, storage) = (pool_memory - memory, target - memory);
            let parts = [memory, pool, storage, all - memory - pool - storage];
            for (sum, part) in sum.iter_mut().zip(parts) {
                *sum += part / scale / self.rows.len() as f64;
            }
        }
        Some(sum)
    }
}

impl Quantile {
    /// Of values in any order; they change places. Thousands of resamples are not to be sorted.
    fn of(self, values: &mut [f64]) -> Option<f64> {
        let count = values.len();
        let place = match self {
            Self::Median => count / 2,
            Self::Lower => count.checked_sub(1)? / 4,
        };
        if place >= count {
            return None;
        }
        let (below, found, _) = values.select_nth_unstable_by(place, f64::total_cmp);
        let found = *found;
        match self {
            Self::Median if count.is_multiple_of(2) => {
                let lower = below.iter().copied().max_by(f64::total_cmp)?;
                Some(f64::midpoint(lower, found))
            }
            _ => Some(found),
        }
    }
}

/// All parts: the time of the pool over the target.
pub fn total(split: &Split) -> f64 {
    split.iter().sum()
}

/// A layer's part.
pub fn part(split: &Split, layer: Layer) -> f64 {
    split.get(layer as usize).copied().unwrap_or(0.0)
}

/// A layer's share of all that costs time, 0 to 1. Parts below 0 are no cost.
pub fn share(split: &Split, layer: Layer) -> f64 {
    let costs: f64 = split.iter().map(|part| part.max(0.0)).sum();
    part(split, layer).max(0.0) / costs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn levels(times: [&[f64]; 4]) -> LevelTimes {
        let [memory, pool_memory, target, pool_target] =
            times.map(|it| it.iter().copied().map(Some).collect());
        LevelTimes {
            memory,
            pool_memory,
            target,
            pool_target,
        }
    }

    #[test]
    fn each_level_gives_its_difference_to_a_layer() {
        let mut row = levels([&[1.0; 3], &[3.0; 3], &[8.0; 3], &[10.5, 10.5, 1.0]]);
        row.memory[2] = None;
        let table = Table::new(&[&row]);
        assert_eq!(table.repetitions(), 2);
        assert_eq!(
            table.split(&[0, 1], Quantile::Median),
            Some([1.0, 2.0, 7.0, 0.5])
        );
        assert_eq!(table.split(&[], Quantile::Median), None);
        assert_eq!(Table::new(&[]).repetitions(), 0);
    }

    #[test]
    fn one_disturbed_sample_in_every_repetition_moves_nothing() {
        let row = levels([
            &[90.0, 1.0, 1.0, 1.0, 1.0],
            &[3.0, 90.0, 3.0, 3.0, 90.0],
            &[8.0, 8.0, 90.0, 8.0, 8.0],
            &[10.0, 10.0, 10.0, 90.0, 10.0],
        ]);
        let table = Table::new(&[&row]);
        for level in [Quantile::Median, Quantile::Lower] {
            let found = table.split(&[0, 1, 2, 3, 4], level);
            assert_eq!(found, Some([1.0, 2.0, 7.0, 0.0]));
        }
    }

    #[test]
    fn the_quantiles_are_the_median_and_the_lower_quartile() {
        let of = |quantile: Quantile, count: usize| {
            let mut values: Vec<f64> = (1..=count).rev().map(|it| it as f64).collect();
            quantile.of(&mut values)
        };
        let both = |count| (of(Quantile::Median, count), of(Quantile::Lower, count));
        assert_eq!(both(0), (None, None));
        assert_eq!(both(1), (Some(1.0), Some(1.0)));
        assert_eq!(both(8), (Some(4.5), Some(2.0)));
        assert_eq!(both(13), (Some(7.0), Some(4.0)));
    }

    #[test]
    fn a_share_lies_between_nothing_and_all() {
        let split = [1.0, 2.0, -1.0, 1.0];
        assert_eq!(share(&split, Layer::Pool), 0.5);
        assert_eq!(share(&split, Layer::Storage), 0.0);
    }

    #[test]
    fn rows_of_unlike_length_count_alike() {
        let long = levels([&[0.0; 3], &[100.0; 3], &[0.0; 3], &[100.0; 3]]);
        let short = levels([&[0.0; 3], &[0.0; 3], &[1.0; 3], &[1.0; 3]]);
        let found = Table::new(&[&long, &short]).split(&[0, 1, 2], Quantile::Median);
        assert_eq!(found, Some([0.0, 0.5, 0.5, 0.0]));
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_whole(
            times in proptest::collection::vec((0.1f64..9.0, 0.1f64..9.0, 0.1f64..9.0, 0.1f64..9.0), 1..9)
        ) {
            let level = |pick: fn(&(f64, f64, f64, f64)) -> f64| -> Vec<f64> {
                times.iter().map(pick).collect()
            };
            let all = level(|it| it.3);
            let table = Table::new(&[&levels([
                &level(|it| it.0),
                &level(|it| it.1),
                &level(|it| it.2),
                &all,
            ])]);
            let every: Vec<usize> = (0..times.len()).collect();
            let found = table.split(&every, Quantile::Median).unwrap();
            prop_assert!((total(&found) - median(&all).unwrap()).abs() < 1e-9);
        }
    }
}
