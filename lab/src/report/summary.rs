//! What a result says, in a few sentences.

use crate::format;
use crate::layers::setup::MEMORY;
use crate::layers::text::headlines;
use crate::result::{Kind, Report, Series};
use crate::spread::{self, Difference, difference};

/// More subjects than this, and only the ends are named.
const MOST_ROWS: usize = 8;

/// The answer, or what differs, or that nothing does.
pub fn sentences(report: &Report) -> Vec<String> {
    let mut said = match report.kind {
        Kind::Layers => headlines(report),
        Kind::Latency => latencies(report),
        Kind::Matrix => crate::matrix::table::conclusions(report),
        _ => fastest(report),
    };
    if said.is_empty() {
        said.push("Nothing was measured that could be compared.".to_owned());
    }
    let unstable = report.series.iter().filter(|it| it.unstable).count();
    if unstable > 0 {
        said.push(format!(
            "{unstable} of {} figures were not stable.",
            report.series.len()
        ));
    }
    said
}

/// The slowest hundredth of each.
fn latencies(report: &Report) -> Vec<String> {
    let one = |it: &crate::result::Distribution| {
        let at = |percentile: f64| {
            let found = it.response.percentiles.iter().find(|it| it.0 == percentile);
            found.map(|it| format::seconds(it.1))
        };
        let half = at(50.0)?;
        let tail = at(99.0).map_or_else(String::new, |it| format!(", 99 % within {it}"));
        let steady = match it.window {
            Some(window) if window.is_steady => "; steady",
            Some(_) => "; not steady",
            None => "",
        };
        Some(format!(
            "{}, {}: half within {half}{tail}{steady}.",
            it.subject, it.workload
        ))
    };
    report.distributions.iter().filter_map(one).collect()
}

/// For each row: whether any subject differs from its base, and which most.
fn fastest(report: &Report) -> Vec<String> {
    let rows = report.workloads();
    let said = rows.iter().filter_map(|row| {
        let own = report.series.iter().filter(|it| it.workload == *row);
        let compared: Vec<(&Series, &str, crate::stats::Estimate)> = own
            .filter_map(|series| {
                let base = report.base_of(&series.subject).filter(|it| *it != MEMORY)?;
                let ratio = series.speed(report.find(base, row)?)?;
                Some((series, base, ratio))
            })
            .collect();
        let by = |it: &&(&Series, &str, crate::stats::Estimate)| it.2.median;
        let best = compared.iter().max_by(|a, b| by(a).total_cmp(&by(b)))?;
        let worst = compared.iter().min_by(|a, b| by(a).total_cmp(&by(b)))?;
        let name = |it: &(&Series, &str, crate::stats::Estimate)| match difference(&it.2) {
            Difference::None => format!("{}: {}", it.0.subject, spread::describe_ratio(&it.2)),
            _ => format!(
                "{}: {} of the speed of {}",
                it.0.subject,
                spread::describe_ratio(&it.2),
                it.1
            ),
        };
        Some(match std::ptr::eq(best, worst) {
            true => format!("{row}: {}.", name(best)),
            false => format!("{row}: fastest {}; slowest {}.", name(best), name(worst)),
        })
    });
    said.take(MOST_ROWS).collect()
}
