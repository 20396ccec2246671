//! Medians and their intervals.
//!
//! Times on a shared machine have long tails, so nothing here assumes a distribution: the median
//! is the estimate, and its interval comes from the bootstrap (Efron 1979: the percentiles of the
//! medians of resamples drawn with replacement).

use serde::{Deserialize, Serialize};

/// Fewer samples than this have a range, but no interval worth the name.
pub const FEWEST_FOR_INTERVAL: usize = 5;
/// Resamples of the bootstrap: enough for two stable digits of a 95 % interval.
const RESAMPLES: usize = 2_000;
/// The same samples always give the same interval.
const SEED: u64 = 0x5eed_0f57_4a9d_f00d;

/// A median and how far it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// How many samples it rests on.
    pub samples: usize,
    /// Whether `low` and `high` are a 95 % bootstrap interval, or merely the smallest and largest
    /// sample.
    pub is_interval: bool,
}

impl Estimate {
    /// Half the width of the interval as a share of the median.
    pub fn uncertainty(&self) -> f64 {
        if self.median > 0.0 {
            (self.high - self.low) / 2.0 / self.median
        } else {
            f64::INFINITY
        }
    }
}

/// The median of `samples`; `None` for none. What is not a number is left out.
pub fn median(samples: &[f64]) -> Option<f64> {
    middle(&sorted(samples))
}

/// In order, without what is not a number.
fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = samples
        .iter()
        .copied()
        .filter(|it| it.is_finite())
        .collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = sorted.get((sorted.len() / 2).checked_sub(1)?)?;
    Some(f64::midpoint(*lower, upper))
}

/// The median of `samples` with its interval; `None` for none.
pub fn estimate(samples: &[f64]) -> Option<Estimate> {
    let sorted = sorted(samples);
    let median = middle(&sorted)?;
    let is_interval = sorted.len() >= FEWEST_FOR_INTERVAL;
    let (low, high) = if is_interval {
        bootstrap(&sorted)?
    } else {
        (*sorted.first()?, *sorted.last()?)
    };
    Some(Estimate {
        median,
        low,
        high,
        samples: sorted.len(),
        is_interval,
    })
}

/// The 2.5th and 97.5th percentile of the medians of resamples.
fn bootstrap(sorted: &[f64]) -> Option<(f64, f64)> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut medians = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        medians.push(median_of_resample(sorted, &mut random)?);
    }
    medians.sort_by(f64::total_cmp);
    let tail = RESAMPLES / 40;
    Some((*medians.get(tail)?, *medians.get(RESAMPLES - 1 - tail)?))
}

/// The coefficient of variation: the standard deviation as a share of the mean; `None` for fewer
/// than two samples.
pub fn variation(samples: &[f64]) -> Option<f64> {
    let known = sorted(samples);
    let count = known.len() as f64;
    let mean = known.iter().sum::<f64>() / count;
    if known.len() < 2 || mean <= 0.0 {
        return None;
    }
    let squares = known.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
    Some((squares / (count - 1.0)).sqrt() / mean)
}

/// The median absolute deviation, in the samples' unit; `None` for none. Unlike the standard
/// deviation it does not follow a wild sample.
pub fn median_absolute_deviation(samples: &[f64]) -> Option<f64> {
    let middle = median(samples)?;
    let away: Vec<f64> = samples.iter().map(|it| (it - middle).abs()).collect();
    median(&away)
}

/// How many times as fast as `base` a subject is, from times of the same repetitions: the median
/// of the ratios `base / subject`. Repetitions that lack either are left out.
pub fn speed_ratio(base: &[Option<f64>], subject: &[Option<f64>]) -> Option<Estimate> {
    let ratios: Vec<f64> = base
        .iter()
        .zip(subject)
        .filter_map(|(base, subject)| Some(base.as_ref()? / subject.as_ref()?))
        .collect();
    estimate(&ratios)
}

/// The ratio of the medians of samples that do not belong together, `after` over `before`, with the
/// 99 % bootstrap interval from resampling each side by itself: wider than elsewhere, since whoever
/// compares looks at many rows at once. `None` without samples on a side; with too few for an
/// interval, from the smallest to the largest ratio there is.
pub fn ratio_of_medians(before: &[f64], after: &[f64]) -> Option<Estimate> {
    let (before, after) = (sorted(before), sorted(after));
    let median = middle(&after)? / middle(&before)?;
    let samples = before.len().min(after.len());
    let is_interval = samples >= FEWEST_FOR_INTERVAL;
    let (low, high) = match is_interval {
        true => {
            let mut random = fastrand::Rng::with_seed(SEED);
            let ratio = |_| {
                let below = median_of_resample(&before, &mut random)?;
                Some(median_of_resample(&after, &mut random)? / below)
            };
            let mut ratios: Vec<f64> = (0..RESAMPLES).map(ratio).collect::<Option<_>>()?;
            ratios.sort_by(f64::total_cmp);
            let tail = RESAMPLES / 200;
            (*ratios.get(tail)?, *ratios.get(RESAMPLES - 1 - tail)?)
        }
        false => (
            after.first()? / before.last()?,
            after.last()? / before.first()?,
        ),
    };
    Some(Estimate {
        median,
        low,
        high,
        samples,
        is_interval,
    })
}

fn median_of_resample(sorted: &[f64], random: &mut fastrand::Rng) -> Option<f64> {
    let draw = |_| sorted.get(random.usize(..sorted.len())).copied();
    let mut resample: Vec<f64> = (0..sorted.len()).map(draw).collect::<Option<_>>()?;
    resample.sort_by(f64::total_cmp);
    middle(&resample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[f64::NAN, 1.0]), Some(1.0));
    }

    #[test]
    fn few_samples_have_a_range_only() {
        let few = estimate(&[1.0, 9.0, 2.0]).unwrap();
        assert!(!few.is_interval);
        assert_eq!((few.low, few.median, few.high), (1.0, 2.0, 9.0));
        assert!(estimate(&[1.0; FEWEST_FOR_INTERVAL]).unwrap().is_interval);
    }

    #[test]
    fn one_wild_sample_moves_neither_median_nor_interval_far() {
        let mut samples = vec![1.0; 20];
        samples.push(1000.0);
        let found = estimate(&samples).unwrap();
        assert_eq!((found.low, found.median, found.high), (1.0, 1.0, 1.0));
    }

    #[test]
    fn spreads_are_those_of_the_textbook() {
        assert_eq!(variation(&[3.0]), None);
        assert_eq!(variation(&[2.0, 2.0, 2.0]), Some(0.0));
        // Mean 5, sample variance 20 / 3.
        let found = variation(&[2.0, 4.0, 6.0, 8.0]).unwrap();
        assert!((found - (20.0_f64 / 3.0).sqrt() / 5.0).abs() < 1e-12);
        let wild = [1.0, 2.0, 3.0, 4.0, 1000.0];
        assert_eq!(median_absolute_deviation(&wild), Some(1.0));
        assert_eq!(median_absolute_deviation(&[]), None);
    }

    #[test]
    fn ratios_pair_the_same_repetition() {
        // Each repetition twice as slow as the one before, for both sides alike.
        let base = [Some(1.0), Some(2.0), Some(4.0), None, Some(8.0)];
        let subject = [Some(2.0), Some(4.0), Some(8.0), Some(1.0), Some(16.0)];
        let found = speed_ratio(&base, &subject).unwrap();
        assert_eq!((found.low, found.median, found.high), (0.5, 0.5, 0.5));
        assert_eq!(found.samples, 4);
    }

    /// The interval is honest: of many experiments with a known median, about 95 % cover it.
    #[test]
    fn intervals_cover_the_true_median() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut covered = 0;
        for _ in 0..200 {
            // Skewed like times are: the true median of 1 + x² for x in 0..1 is 1.25.
            let samples: Vec<f64> = (0..25).map(|_| 1.0 + random.f64().powi(2)).collect();
            let found = estimate(&samples).unwrap();
            covered += usize::from(found.low <= 1.25 && 1.25 <= found.high);
        }
        assert!((180..=200).contains(&covered), "{covered} of 200");
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_median_and_lies_within_the_samples(
            samples in proptest::collection::vec(0.001f64..1e6, 1..40)
        ) {
            let found = estimate(&samples).unwrap();
            let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = samples.iter().copied().fold(0.0, f64::max);
            prop_assert!(least <= found.low && found.low <= found.median);
            prop_assert!(found.median <= found.high && found.high <= most);
            prop_assert_eq!(estimate(&samples), Some(found));
        }

        #[test]
        fn scaling_the_samples_scales_the_estimate(
            samples in proptest::collection::vec(1f64..100.0, 5..20)
        ) {
            let doubled: Vec<f64> = samples.iter().map(|it| it * 2.0).collect();
            let (one, two) = (estimate(&samples).unwrap(), estimate(&doubled).unwrap());
            prop_assert_eq!(one.median * 2.0, two.median);
            prop_assert_eq!(one.low * 2.0, two.low);
        }
    }
}
