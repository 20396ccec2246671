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

/// The times of several rows, in the repetitions that have all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// By row: by repetition: memory, pool over memory, target, pool over target.
    rows: Vec<Vec<[f64; 4]>>,
    /// What a row's parts are divided by before they are averaged; rows count alike.
    scales: Vec<f64>,
    /// Median times of the pool over the target.
    totals: Vec<f64>,
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
        let totals: Vec<f64> = kept.iter().map(scale).collect();
        let scales = match kept.as_slice() {
            [_] => vec![1.0],
            _ => totals.clone(),
        };
        Self {
            rows: kept,
            scales,
            totals,
        }
    }

    /// Complete repetitions.
    pub fn repetitions(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// By how much a layer's part exceeds another's, as a share of the whole time, by repetition: the mean
    /// over the rows. Within a row a lead is a difference of two sums of times, P - N, and what is kept is
    /// (P - N) / (P + N), which lies between -1 and 1, in proportion to how much of the whole time P + N
    /// usually is: a wild sample makes it no larger than that.
    pub fn leads(&self, layer: Layer, rival: Layer) -> Vec<f64> {
        let (own, other) = (coefficients(layer), coefficients(rival));
        let sums = |times: &[f64; 4]| {
            let mut sums = [0.0; 2];
            for ((own, other), time) in own.iter().zip(&other).zip(times) {
                let factor = own - other;
                sums[usize::from(factor < 0.0)] += factor.abs() * time;
            }
            sums
        };
        let mut leads = vec![0.0; self.repetitions()];
        for (row, total) in self.rows.iter().zip(&self.totals) {
            let sums: Vec<[f64; 2]> = row.iter().map(sums).collect();
            let both: Vec<f64> = sums.iter().map(|[one, other]| one + other).collect();
            let weight = median(&both).unwrap_or(0.0) / total / self.rows.len() as f64;
            for (lead, [one, other]) in leads.iter_mut().zip(sums) {
                *lead += weight * (one - other) / (one + other);
            }
        }
        leads
    }

    /// The parts, from these repetitions; one may be named more than once. `None` for none.
    pub fn split(&self, repetitions: &[usize]) -> Option<Split> {
        let mut sum = [0.0; 4];
        let mut column = Vec::with_capacity(repetitions.len());
        for (row, scale) in self.rows.iter().zip(&self.scales) {
            let mut middle = [0.0; 4];
            for (level, middle) in middle.iter_mut().enumerate() {
                column.clear();
                column.extend(repetitions.iter().filter_map(|at| row.get(*at)?.get(level)));
                *middle = middle_of(&mut column)?;
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

/// How much of each level is in a layer's part: memory, pool over memory, target, pool over target.
fn coefficients(layer: Layer) -> [f64; 4] {
    match layer {
        Layer::Machine => [1.0, 0.0, 0.0, 0.0],
        Layer::Pool => [-1.0, 1.0, 0.0, 0.0],
        Layer::Storage => [-1.0, 0.0, 1.0, 0.0],
        Layer::Together => [1.0, -1.0, -1.0, 1.0],
    }
}

/// The median of values in any order; they change places. Thousands of resamples are not to be sorted.
fn middle_of(values: &mut [f64]) -> Option<f64> {
    let count = values.len();
    if count == 0 {
        return None;
    }
    let (below, found, _) = values.select_nth_unstable_by(count / 2, f64::total_cmp);
    let found = *found;
    match count.is_multiple_of(2) {
        true => {
            let lower = below.iter().copied().max_by(f64::total_cmp)?;
            Some(f64::midpoint(lower, found))
        }
        false => Some(found),
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
        assert_eq!(table.split(&[0, 1]), Some([1.0, 2.0, 7.0, 0.5]));
        assert_eq!(table.split(&[]), None);
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
        let found = table.split(&[0, 1, 2, 3, 4]);
        assert_eq!(found, Some([1.0, 2.0, 7.0, 0.0]));
    }

    #[test]
    fn the_middle_is_the_median() {
        let of = |count: usize| {
            let mut values: Vec<f64> = (1..=count).rev().map(|it| it as f64).collect();
            middle_of(&mut values)
        };
        let found = [0, 1, 8, 13].map(of);
        assert_eq!(found, [None, Some(1.0), Some(4.5), Some(7.0)]);
    }

    #[test]
    fn leads_are_shares_of_the_whole_and_no_sample_makes_them_wild() {
        let mut row = levels([&[1.0; 3], &[3.0; 3], &[8.0; 3], &[10.0; 3]]);
        row.target[1] = Some(1e9);
        let table = Table::new(&[&row]);
        // Storage 7, pool 2 of 10.
        let found = table.leads(Layer::Storage, Layer::Pool);
        assert!((found[0] - 0.5).abs() < 1e-12, "{found:?}");
        // The most that it can be: target and pool over memory are 11 of 10.
        assert!((found[1] - 1.1).abs() < 1e-6, "{found:?}");
        let back = table.leads(Layer::Pool, Layer::Storage);
        assert_eq!(back[0], -found[0]);
        // Machine 1, together 0: 1 + 3 + 8 against 1 + 10 and the other 1.
        let found = table.leads(Layer::Machine, Layer::Together);
        assert!((found[0] - 0.1).abs() < 0.02, "{found:?}");
        let both = Table::new(&[&row, &row]).leads(Layer::Storage, Layer::Pool);
        assert!((both[0] - 0.5).abs() < 1e-12, "{both:?}");
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
        let found = Table::new(&[&long, &short]).split(&[0, 1, 2]);
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
            let found = table.split(&every).unwrap();
            prop_assert!((total(&found) - median(&all).unwrap()).abs() < 1e-9);
        }
    }
}
