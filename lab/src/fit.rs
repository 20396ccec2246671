//! The cost of a request and the cost of a byte: t = a + b·bytes over block sizes.

use serde::{Deserialize, Serialize};

use crate::stats::{Estimate, estimate};

/// Fewer sizes than this fit any line.
const FEWEST_SIZES: usize = 3;

/// A line through the times of requests of several sizes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Seconds for a request, whatever its size.
    pub request_seconds: Estimate,
    /// Seconds for each byte.
    pub byte_seconds: Estimate,
    /// How far the worst size lies off the line, as a share of its time: near 0 the two numbers say
    /// all, near 1 they say little.
    pub worst_miss: f64,
}

/// Fits a line to each repetition and gives the medians over the repetitions. `times` holds, for
/// each size in bytes, the seconds of one request by repetition. Times count by their relative
/// error, so that small requests have their say beside large ones. `None` for too few sizes or
/// repetitions without a sample.
pub fn line(times: &[(u64, Vec<Option<f64>>)]) -> Option<Line> {
    let repetitions = times.iter().map(|it| it.1.len()).max()?;
    let mut requests = Vec::new();
    let mut bytes = Vec::new();
    let mut misses = vec![Vec::new(); times.len()];
    for repetition in 0..repetitions {
        let points: Option<Vec<(f64, f64)>> = times
            .iter()
            .map(|(size, seconds)| Some((*size as f64, (*seconds.get(repetition)?)?)))
            .collect();
        let Some(points) = points else { continue };
        let Some((request, byte)) = weighted(&points) else {
            continue;
        };
        requests.push(request);
        bytes.push(byte);
        for (misses, (size, seconds)) in misses.iter_mut().zip(&points) {
            misses.push((request + byte * size - seconds) / seconds);
        }
    }
    let worst = misses.iter().filter_map(|it| crate::stats::median(it));
    Some(Line {
        request_seconds: estimate(&requests)?,
        byte_seconds: estimate(&bytes)?,
        worst_miss: worst.map(f64::abs).fold(0.0, f64::max),
    })
}

/// Least squares with the weights 1/t².
fn weighted(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    if points.len() < FEWEST_SIZES || points.iter().any(|it| it.1 <= 0.0) {
        return None;
    }
    let (mut w, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (size, seconds) in points {
        let weight = seconds.powi(-2);
        w += weight;
        x += weight * size;
        y += weight * seconds;
        xx += weight * size * size;
        xy += weight * size * seconds;
    }
    let base = w * xx - x * x;
    if base <= 0.0 {
        return None;
    }
    let byte = (w * xy - x * y) / base;
    Some(((y - byte * x) / w, byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZES: [u64; 6] = [512, 4096, 32768, 262_144, 1 << 20, 4 << 20];

    fn times(request: f64, byte: f64, noise: &[f64]) -> Vec<(u64, Vec<Option<f64>>)> {
        let each = |size: &u64| {
            let exact = request + byte * *size as f64;
            (*size, noise.iter().map(|it| Some(exact * it)).collect())
        };
        SIZES.iter().map(each).collect()
    }

    #[test]
    fn the_seeds_example_is_seven_microseconds_a_request() {
        // 4.9 GB/s in blocks of 1 MiB and 69.7 MB/s in blocks of 512 bytes.
        let (large, small) = ((1u64 << 20) as f64 / 4.9e9, 512.0 / 69.7e6);
        let byte = (large - small) / ((1 << 20) - 512) as f64;
        let found = line(&times(small - byte * 512.0, byte, &[1.0; 5])).unwrap();
        let request = found.request_seconds.median;
        assert!((7.1e-6..7.4e-6).contains(&request), "{request}");
        assert!(found.worst_miss < 1e-6);
    }

    #[test]
    fn what_is_no_line_is_said_to_be_none() {
        let mut bent = times(1e-6, 1e-10, &[1.0; 5]);
        for seconds in bent[2].1.iter_mut().flatten() {
            *seconds *= 3.0;
        }
        assert!(line(&bent).unwrap().worst_miss > 0.3);
        assert_eq!(line(&times(1.0, 1.0, &[1.0; 5])[..2]), None);
        bent[0].1 = vec![None; 5];
        assert_eq!(line(&bent), None);
    }

    proptest! {
        #[test]
        fn request_and_byte_are_found_again(
            request in 1e-7f64..1e-3, byte in 1e-11f64..1e-8,
            noise in proptest::collection::vec(0.98f64..1.02, 5..9)
        ) {
            let found = line(&times(request, byte, &noise)).unwrap();
            let near = |found: f64, real: f64| (found / real - 1.0).abs() < 0.05;
            prop_assert!(near(found.request_seconds.median, request), "{:?}", found);
            prop_assert!(near(found.byte_seconds.median, byte), "{:?}", found);
        }
    }
}
