//! Whose time it is: the difference of two rungs is the cost of what the upper one adds.
//!
//! With memory-backed storage the time is the machine's (system calls, page cache); a pool over it
//! adds the pool's; the target bare adds the storage's; the pool over the target should cost the sum,
//! and what it costs beyond is the two together (requests that the pool multiplies, passthrough that
//! the target does not allow).

use crate::stats::{Estimate, estimate};

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

/// The times of one unit of work on the four rungs, by repetition; what lacks one is left out.
#[derive(Clone, Copy, Debug)]
pub struct Rungs<'a> {
    /// Memory-backed storage, bare.
    pub memory: &'a [Option<f64>],
    /// The pool over it.
    pub pool_memory: &'a [Option<f64>],
    /// The target, bare.
    pub target: &'a [Option<f64>],
    /// The pool over it.
    pub pool_target: &'a [Option<f64>],
}

/// One repetition's parts, in the order of [`Layer::ALL`]. They add up to the time of the pool over
/// the target. A part may be below 0: a cache in the pool can be faster than none.
pub type Split = [f64; 4];

/// Splits every repetition that has all four.
pub fn split(rungs: &Rungs<'_>) -> Vec<Option<Split>> {
    let count = rungs.pool_target.len();
    let one = |at: usize| {
        let time = |rung: &[Option<f64>]| rung.get(at).copied().flatten();
        let (memory, target) = (time(rungs.memory)?, time(rungs.target)?);
        let pool = time(rungs.pool_memory)? - memory;
        let storage = target - memory;
        let all = time(rungs.pool_target)?;
        Some([memory, pool, storage, all - memory - pool - storage])
    };
    (0..count).map(one).collect()
}

/// The parts of several rows as shares of each row's time, averaged by repetition, each row counting
/// alike; repetitions that lack a row are left out.
pub fn average(rows: &[Vec<Option<Split>>]) -> Vec<Option<Split>> {
    let count = rows.iter().map(Vec::len).min().unwrap_or(0);
    let one = |at: usize| {
        let mut sum = [0.0; 4];
        for row in rows {
            let split = row.get(at).copied().flatten()?;
            let all = total(&split);
            if all <= 0.0 {
                return None;
            }
            for (sum, part) in sum.iter_mut().zip(split) {
                *sum += part / all / rows.len() as f64;
            }
        }
        Some(sum)
    };
    (0..count).map(one).collect()
}

/// All parts of one repetition: the time of the pool over the target.
pub fn total(split: &Split) -> f64 {
    split.iter().sum()
}

/// A layer's part by repetition.
pub fn part(splits: &[Option<Split>], layer: Layer) -> Vec<f64> {
    let place = layer as usize;
    let known = splits.iter().flatten();
    known.filter_map(|it| it.get(place).copied()).collect()
}

/// A layer's part with its interval.
pub fn part_estimate(splits: &[Option<Split>], layer: Layer) -> Option<Estimate> {
    estimate(&part(splits, layer))
}

/// A layer's share of all that costs time, with its interval. Parts below 0 are no cost.
pub fn share(splits: &[Option<Split>], layer: Layer) -> Option<Estimate> {
    let place = layer as usize;
    let shares: Vec<f64> = splits
        .iter()
        .flatten()
        .filter_map(|it| {
            let costs: f64 = it.iter().map(|part| part.max(0.0)).sum();
            Some(it.get(place)?.max(0.0) / costs)
        })
        .collect();
    estimate(&shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_rung_gives_its_difference_to_a_layer() {
        let rungs = Rungs {
            memory: &[Some(1.0), Some(1.0), None],
            pool_memory: &[Some(3.0), Some(3.0), Some(3.0)],
            target: &[Some(8.0), Some(8.0), Some(8.0)],
            pool_target: &[Some(10.5), None, Some(1.0)],
        };
        let found = split(&rungs);
        assert_eq!(found, [Some([1.0, 2.0, 7.0, 0.5]), None, None]);
        assert_eq!(part(&found, Layer::Storage), [7.0]);
    }

    #[test]
    fn a_share_lies_between_nothing_and_all() {
        let found = share(&[Some([1.0, 2.0, -1.0, 1.0])], Layer::Pool).unwrap();
        assert_eq!(found.median, 0.5);
        assert_eq!(
            share(&[Some([1.0, 2.0, -1.0, 1.0])], Layer::Storage)
                .unwrap()
                .median,
            0.0
        );
    }

    #[test]
    fn rows_of_unlike_length_count_alike() {
        let long = vec![Some([0.0, 100.0, 0.0, 0.0]); 3];
        let short = vec![Some([0.0, 0.0, 1.0, 0.0]), None, Some([0.0, 0.0, 1.0, 0.0])];
        let found = average(&[long, short]);
        assert_eq!(
            found,
            [Some([0.0, 0.5, 0.5, 0.0]), None, Some([0.0, 0.5, 0.5, 0.0])]
        );
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_whole(
            times in proptest::collection::vec((0.1f64..9.0, 0.1f64..9.0, 0.1f64..9.0, 0.1f64..9.0), 1..9)
        ) {
            let rung = |pick: fn(&(f64, f64, f64, f64)) -> f64| -> Vec<Option<f64>> {
                times.iter().map(|it| Some(pick(it))).collect()
            };
            let (memory, pool_memory) = (rung(|it| it.0), rung(|it| it.1));
            let (target, pool_target) = (rung(|it| it.2), rung(|it| it.3));
            let found = split(&Rungs {
                memory: &memory,
                pool_memory: &pool_memory,
                target: &target,
                pool_target: &pool_target,
            });
            for (split, whole) in found.iter().zip(&pool_target) {
                prop_assert!((total(&split.unwrap()) - whole.unwrap()).abs() < 1e-9);
            }
        }
    }
}
