//! Whether samples lie too far apart, and whether one thing is larger than another.

use crate::stats::Estimate;

/// An interval that reaches further than this share of its median to either side makes its row
/// unstable.
pub const UNSTABLE: f64 = 0.05;
/// Chance of naming the wrong one of two equals, at most.
const ERROR: f64 = 0.01;
/// Beyond so many further runs the answer is that there is no difference worth a run.
pub const MOST_FURTHER_RUNS: usize = 1000;

/// Whether an estimate is too wide to be repeated as a figure.
pub fn is_unstable(found: &Estimate) -> bool {
    found.uncertainty() > UNSTABLE
}

/// What a ratio (1 is equal) shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The interval lies above 1.
    More,
    /// The interval lies below 1.
    Less,
    /// It holds 1, or there are too few samples for an interval.
    None,
}

/// Reads a ratio with its interval.
pub fn difference(ratio: &Estimate) -> Difference {
    match ratio {
        it if !it.is_interval => Difference::None,
        it if it.low > 1.0 => Difference::More,
        it if it.high < 1.0 => Difference::Less,
        _ => Difference::None,
    }
}

/// A ratio for people: `1.52 [1.47 1.60]`, or that no difference was measured.
pub fn describe_ratio(ratio: &Estimate) -> String {
    use crate::format::ratio as number;
    let shown = format!(
        "{} [{} {}]",
        number(ratio.median),
        number(ratio.low),
        number(ratio.high)
    );
    match difference(ratio) {
        Difference::None => format!("no measurable difference: {shown}"),
        _ => shown,
    }
}

/// What the sign test says of a leader that was ahead in `wins` of `runs` repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Chance alone would do it less than once in a hundred times.
    Clear,
    /// So many further runs would settle it, if they go on like these.
    Needs(usize),
}

/// The sign test: under equality either is ahead in half of the repetitions.
pub fn lead(wins: usize, runs: usize) -> Lead {
    if runs > 0 && tail(wins, runs) < ERROR {
        return Lead::Clear;
    }
    let share = if runs == 0 {
        1.0
    } else {
        wins as f64 / runs as f64
    };
    let settles = |more: &usize| {
        let all = runs + more;
        tail((share * all as f64).floor() as usize, all) < ERROR
    };
    let more = (1..=MOST_FURTHER_RUNS).find(settles);
    Lead::Needs(more.unwrap_or(MOST_FURTHER_RUNS))
}

/// Chance of at least `wins` heads in `runs` tosses.
fn tail(wins: usize, runs: usize) -> f64 {
    // In logarithms, so that hundreds of runs do not overflow.
    let mut log_choose = 0.0;
    let mut sum = 0.0;
    for heads in 0..=runs {
        if heads > 0 {
            log_choose += ((runs - heads + 1) as f64).ln() - (heads as f64).ln();
        }
        if heads >= wins {
            sum += (log_choose - runs as f64 * std::f64::consts::LN_2).exp();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::estimate;

    #[test]
    fn chance_is_computed_right() {
        assert!((tail(7, 7) - 1.0 / 128.0).abs() < 1e-12);
        assert!((tail(8, 9) - 10.0 / 512.0).abs() < 1e-12);
        assert!((tail(0, 9) - 1.0).abs() < 1e-12);
        assert!(tail(600, 1000) < 1e-8);
    }

    #[test]
    fn a_lead_needs_more_than_luck() {
        assert_eq!(lead(7, 7), Lead::Clear);
        assert_eq!(lead(6, 6), Lead::Needs(1));
        assert!(matches!(lead(7, 9), Lead::Needs(2..30)));
        assert_eq!(lead(10, 20), Lead::Needs(MOST_FURTHER_RUNS));
        assert_eq!(lead(0, 0), Lead::Needs(7));
    }

    /// Of many experiments between equals, about one in a hundred (two sides: two) names one.
    #[test]
    fn equals_are_rarely_told_apart() {
        let mut random = fastrand::Rng::with_seed(11);
        let named = (0..2000).filter(|_| {
            let wins = (0..9).filter(|_| random.bool()).count();
            lead(wins.max(9 - wins), 9) == Lead::Clear
        });
        assert!(named.count() < 2000 * 3 / 100);
    }

    #[test]
    fn equal_is_called_no_measurable_difference() {
        let equal = estimate(&[0.9, 1.1, 1.0, 0.95, 1.05, 1.02]).unwrap();
        assert_eq!(difference(&equal), Difference::None);
        assert!(describe_ratio(&equal).starts_with("no measurable difference"));
        let twice = estimate(&[1.9, 2.1, 2.0, 1.95, 2.05, 2.02]).unwrap();
        assert_eq!(difference(&twice), Difference::More);
        assert!(describe_ratio(&twice).starts_with("2.01 ["));
        assert_eq!(difference(&estimate(&[0.5; 6]).unwrap()), Difference::Less);
        // Four samples, all alike: still no interval.
        assert_eq!(difference(&estimate(&[2.0; 4]).unwrap()), Difference::None);
    }
}
