//! Figures between two looks at what a pool has counted.

use strandfs_pool::metrics::{Branch, Latency, Metrics};

/// What was counted between two looks.
pub fn since(before: &Latency, now: &Latency) -> Latency {
    let was = |at: usize| before.buckets.get(at).copied().unwrap_or(0);
    let buckets = now.buckets.iter().enumerate();
    Latency {
        count: now.count.saturating_sub(before.count),
        total_ns: now.total_ns.saturating_sub(before.total_ns),
        buckets: buckets
            .map(|(at, count)| count.saturating_sub(was(at)))
            .collect(),
    }
}

/// All of them together.
pub fn sum<'a>(all: impl IntoIterator<Item = &'a Latency>) -> Latency {
    let mut sum = Latency::default();
    for one in all {
        sum.count += one.count;
        sum.total_ns = sum.total_ns.saturating_add(one.total_ns);
        sum.buckets
            .resize(sum.buckets.len().max(one.buckets.len()), 0);
        for (sum, one) in sum.buckets.iter_mut().zip(&one.buckets) {
            *sum += one;
        }
    }
    sum
}

/// The requests of all operations.
pub fn whole(metrics: &Metrics) -> Latency {
    sum(metrics
        .operations
        .values()
        .map(|operation| &operation.whole))
}

/// The calls of all kinds to a branch.
pub fn calls(branch: &Branch) -> Latency {
    sum(branch.calls.values().map(|calls| &calls.took))
}

/// How long one took on average; none if there was none.
pub fn mean_ns(latency: &Latency) -> Option<f64> {
    (latency.count > 0).then(|| latency.total_ns as f64 / latency.count as f64)
}

/// The bound of the bucket in which this part of all is reached: at most twice the true value. None
/// if there was none; infinite beyond the last bound.
pub fn percentile_ns(latency: &Latency, bounds: &[u64], part: f64) -> Option<f64> {
    let all: u64 = latency.buckets.iter().sum();
    let wanted = (all as f64 * part).ceil();
    let mut reached = 0;
    for (at, count) in latency.buckets.iter().enumerate() {
        reached += count;
        if all > 0 && reached as f64 >= wanted {
            return Some(bounds.get(at).map_or(f64::INFINITY, |bound| *bound as f64));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(buckets: &[u64], total_ns: u64) -> Latency {
        Latency {
            count: buckets.iter().sum(),
            total_ns,
            buckets: buckets.to_vec(),
        }
    }

    #[test]
    fn figures_are_those_between_the_looks() {
        let before = latency(&[5, 0, 0], 100);
        let now = latency(&[95, 9, 1], 2100);
        let between = since(&before, &now);
        assert_eq!(between, latency(&[90, 9, 1], 2000));
        assert_eq!(mean_ns(&between), Some(20.0));
        let bounds = [10, 20];
        let percentile = |part| percentile_ns(&between, &bounds, part);
        assert_eq!(percentile(0.5), Some(10.0));
        assert_eq!(percentile(0.99), Some(20.0));
        assert_eq!(percentile(1.0), Some(f64::INFINITY));
        let none = latency(&[], 0);
        assert_eq!(
            (mean_ns(&none), percentile_ns(&none, &bounds, 0.5)),
            (None, None)
        );
        // Those that nothing was counted of have no buckets.
        assert_eq!(since(&none, &before), before);
        assert_eq!(sum([&none, &before, &now]), latency(&[100, 9, 1], 2200));
    }
}
