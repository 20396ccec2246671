//! Random choices spread as they should.

use strandfs_options::{Category, Policy};

use crate::base::policy::BranchFacts;
use crate::base::policy::random::{below, random, wyrand};
use crate::base::policy::tests::{ask, branch};

const DRAWS: u64 = 200_000;

fn seeded(mut state: u64) -> impl FnMut() -> u64 {
    move || wyrand(&mut state)
}

/// How often each branch is chosen.
fn counts(policy: Policy, branches: &[BranchFacts], random: &mut dyn FnMut() -> u64) -> Vec<u64> {
    let mut counts = vec![0; branches.len()];
    for _ in 0..DRAWS {
        let choice = ask(Category::Create, policy, branches, random).unwrap();
        assert_eq!(choice.len(), 1);
        counts[choice[0]] += 1;
    }
    counts
}

/// Pearson's measure of how far `counts` is from being in proportion to `weights`.
fn chi_square(counts: &[u64], weights: &[u64]) -> f64 {
    let total: f64 = weights.iter().map(|weight| *weight as f64).sum();
    counts
        .iter()
        .zip(weights)
        .filter(|(_, weight)| **weight > 0)
        .map(|(count, weight)| {
            let expected = DRAWS as f64 * (*weight as f64) / total;
            (*count as f64 - expected).powi(2) / expected
        })
        .sum()
}

/// Exceeded once in a million by chance with up to four degrees of freedom.
const BOUND: f64 = 33.4;

#[test]
fn weighted_choices_are_in_proportion_to_the_bytes_available() {
    let pools: [&[u64]; 5] = [
        &[1, 2, 3, 4],
        &[10 << 40, 2 << 40, 500 << 30, 0, 3 << 30],
        &[1, 1],
        // The sum passes 64 bits.
        &[u64::MAX, u64::MAX, u64::MAX / 2],
        &[0, 7, 0],
    ];
    for (seed, weights) in (1..).zip(pools) {
        let branches: Vec<_> = weights.iter().map(|free| branch(*free, 5)).collect();
        for policy in [Policy::Pfrd, Policy::EpPfrd, Policy::MspPfrd] {
            let counts = counts(policy, &branches, &mut seeded(seed));
            let off = chi_square(&counts, weights);
            assert!(
                off < BOUND,
                "{policy} over {weights:?}: {counts:?}, chi-square {off}"
            );
            let none = counts
                .iter()
                .zip(weights)
                .filter(|(_, weight)| **weight == 0);
            assert!(
                none.map(|(count, _)| count).all(|count| *count == 0),
                "{counts:?}"
            );
        }
    }
}

#[test]
fn the_measure_notices_a_wrong_proportion() {
    let branches = [branch(50, 0), branch(50, 0)];
    let counts = counts(Policy::Pfrd, &branches, &mut seeded(1));
    assert!(chi_square(&counts, &[49, 51]) > BOUND);
}

#[test]
fn plain_random_ignores_space() {
    let branches = [
        branch(1, 0),
        branch(u64::MAX, 0),
        branch(0, 0),
        branch(7, 7),
    ];
    for policy in [Policy::Rand, Policy::EpRand] {
        let counts = counts(policy, &branches, &mut seeded(3));
        let off = chi_square(&counts, &[1, 1, 1, 1]);
        assert!(off < BOUND, "{policy}: {counts:?}, chi-square {off}");
    }
}

#[test]
fn the_thread_source_is_even_and_its_own_per_thread() {
    let branches = [branch(30, 0), branch(60, 0), branch(10, 0)];
    let counts = counts(Policy::Pfrd, &branches, &mut random());
    assert!(chi_square(&counts, &[30, 60, 10]) < BOUND, "{counts:?}");

    let sequence = || {
        let mut random = random();
        std::array::from_fn::<u64, 4, _>(|_| random())
    };
    let other = std::thread::spawn(sequence).join().unwrap();
    assert_ne!(sequence(), other);
    assert_ne!(sequence(), sequence());
}

#[test]
fn below_divides_its_range_evenly() {
    let at = |limit, number| below(limit, &mut || number);
    assert_eq!(at(0, 5), None);
    assert_eq!(at(1, u64::MAX), Some(0));
    assert_eq!(at(3, u64::MAX / 3), Some(0));
    assert_eq!(at(3, u64::MAX / 3 + 1), Some(1));
    assert_eq!(at(3, u64::MAX), Some(2));
    assert_eq!(at(1 << 64, u64::MAX), Some(u128::from(u64::MAX)));
    let limit = 1 << 70;
    assert_eq!(at(limit, 0), Some(0));
    assert_eq!(at(limit, 1 << 63), Some(limit / 2));
    assert_eq!(at(limit, u64::MAX), Some(limit - 64));
    let largest = 1 << 127;
    assert!(at(largest, u64::MAX).is_some_and(|number| number < largest));
}
