//! Whether samples lie too far apart, and whether a ratio is a difference.

use crate::format;
use crate::stats::Estimate;

/// An interval that reaches further than this share of its median to either side makes its row
/// unstable.
pub const UNSTABLE: f64 = 0.05;

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

/// A ratio for people: `1.52 [1.47 1.60]`, or that it shows no difference, or that nothing can be said of
/// so few samples. That there is none is never said: the interval tells how large one may be.
pub fn describe_ratio(ratio: &Estimate) -> String {
    let shown = format::between(ratio, format::ratio);
    if !ratio.is_interval {
        return format!("too few samples: {shown}");
    }
    match difference(ratio) {
        Difference::None => format!("no difference shown: {shown}"),
        _ => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::estimate;

    #[test]
    fn four_samples_show_neither_a_difference_nor_that_there_is_none() {
        let half = estimate(&[0.5, 0.51, 0.49, 0.5]).unwrap();
        assert!(describe_ratio(&half).starts_with("too few samples: 0.50 ["));
    }

    #[test]
    fn equal_and_unknown_show_no_difference() {
        let equal = estimate(&[0.9, 1.1, 1.0, 0.95, 1.05, 1.02]).unwrap();
        assert_eq!(difference(&equal), Difference::None);
        assert!(describe_ratio(&equal).starts_with("no difference shown"));
        // "No measurable difference" was said of what may be half or twice as fast.
        let wild = estimate(&[0.5, 2.0, 1.0, 0.6, 1.8, 1.1]).unwrap();
        assert!(describe_ratio(&wild).starts_with("no difference shown"));
        let twice = estimate(&[1.9, 2.1, 2.0, 1.95, 2.05, 2.02]).unwrap();
        assert_eq!(difference(&twice), Difference::More);
        assert!(describe_ratio(&twice).starts_with("2.01 ["));
        assert_eq!(difference(&estimate(&[0.5; 6]).unwrap()), Difference::Less);
        // Four samples, all alike: still no interval.
        assert_eq!(difference(&estimate(&[2.0; 4]).unwrap()), Difference::None);
    }
}
