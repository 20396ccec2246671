//! Steady state as the SNIA's Solid State Storage Performance Test Specification defines it: over a window of
//! five rounds, no value lies further from another than a fifth of their average, and the line through them
//! rises or falls by no more than a tenth of it.

use serde::{Deserialize, Serialize};

/// Rounds of the window.
pub const ROUNDS: usize = 5;
/// From the smallest to the largest value, as a share of the average.
const EXCURSION: f64 = 0.20;
/// From the line's beginning to its end, likewise.
const SLOPE: f64 = 0.10;

/// The newest rounds, and how steady they are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// The first round, from 1.
    pub from: usize,
    /// The last.
    pub to: usize,
    /// From the smallest to the largest value, as a share of the average.
    pub excursion: f64,
    /// From the beginning to the end of the line through the values, as a share of the average.
    pub slope: f64,
    /// Whether both are small enough.
    pub is_steady: bool,
}

/// The window of the newest of these values; `None` as long as there are too few.
pub fn window(values: &[f64]) -> Option<Window> {
    let from = values.len().checked_sub(ROUNDS)?;
    let newest = values.get(from..)?;
    let count = newest.len() as f64;
    let average = newest.iter().sum::<f64>() / count;
    if average <= 0.0 || !average.is_finite() {
        return None;
    }
    let least = newest.iter().copied().fold(f64::INFINITY, f64::min);
    let most = newest.iter().copied().fold(0.0, f64::max);
    let middle = (count - 1.0) / 2.0;
    let places = newest.iter().enumerate();
    let (along, across) = places.fold((0.0, 0.0), |(along, across), (place, value)| {
        let away = place as f64 - middle;
        (along + away * away, across + away * (value - average))
    });
    let excursion = (most - least) / average;
    let slope = (across / along * (count - 1.0)).abs() / average;
    Some(Window {
        from: from + 1,
        to: values.len(),
        excursion,
        slope,
        is_steady: excursion <= EXCURSION && slope <= SLOPE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_neither_jumps_nor_drifts_is_steady() {
        assert_eq!(window(&[1.0; 4]), None);
        let found = window(&[9.0, 100.0, 104.0, 98.0, 101.0, 97.0]).unwrap();
        assert!(found.is_steady, "{found:?}");
        assert_eq!((found.from, found.to), (2, 6));
        assert!((found.excursion - 0.07).abs() < 1e-12);
        // Within the excursion, and yet on its way: 94 to 106 in a line is a slope of 12 %.
        let drifts = window(&[94.0, 97.0, 100.0, 103.0, 106.0]).unwrap();
        assert!(
            !drifts.is_steady && (drifts.slope - 0.12).abs() < 1e-9,
            "{drifts:?}"
        );
        // No slope, and yet it jumps.
        let jumps = window(&[100.0, 115.0, 94.0, 115.0, 100.0]).unwrap();
        assert!(!jumps.is_steady && jumps.slope < 0.01, "{jumps:?}");
        assert_eq!(window(&[0.0; 5]), None);
    }
}
