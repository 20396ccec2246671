//! The result as text.

use crate::expense;
use crate::format;
use crate::result::{Distribution, Latency, Report};

/// Percentiles that are shown.
const SHOWN: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// Rates, and whether they are steady.
pub fn rates(report: &Report) -> String {
    let heading = [
        "subject",
        "operations a second",
        "rounds",
        "range",
        "slope",
        "steady",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let report = &report.in_window();
    for one in &report.distributions {
        let series = report.find(&one.subject, &one.workload);
        let rate = series.and_then(crate::result::Series::estimate);
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let dash = || "-".to_owned();
        rows.push(vec![
            one.subject.clone(),
            rate.map_or_else(dash, |it| {
                let mark = if series.is_some_and(|it| it.unstable) {
                    "~"
                } else {
                    ""
                };
                format!("{mark}{}", format::between(&it, |it| format!("{it:.0}")))
            }),
            format!("{} to {}", one.first_round, one.last_round),
            one.window.map_or_else(dash, |it| percent(it.excursion)),
            one.window.map_or_else(dash, |it| percent(it.slope)),
            match one.window {
                Some(it) if it.is_steady => "yes".to_owned(),
                Some(_) => "no".to_owned(),
                None => "too few rounds".to_owned(),
            },
        ]);
    }
    format::table(&rows)
}

/// Times by percentile: what whoever asks waits for, and what the subject takes.
pub fn percentiles(report: &Report) -> String {
    let mut heading = vec!["time of an operation".to_owned(), "mean".to_owned()];
    heading.extend(SHOWN.map(name));
    let mut rows = vec![heading];
    for one in &report.distributions {
        let is_corrected = one.service.is_some();
        let what = if is_corrected {
            ", from when it was due"
        } else {
            ""
        };
        rows.push(row(format!("{}{what}", one.subject), &one.response));
        if let Some(service) = &one.service {
            rows.push(row(format!("{}, from when it began", one.subject), service));
        }
    }
    format::table(&rows)
}

fn name(percentile: f64) -> String {
    match percentile >= 100.0 {
        true => "longest".to_owned(),
        false => format!("{percentile} %"),
    }
}

fn row(title: String, latency: &Latency) -> Vec<String> {
    let mut row = vec![title, format::seconds(latency.mean)];
    row.extend(SHOWN.map(|percentile| at(latency, percentile)));
    row
}

/// A dash where too few operations were slower.
fn at(latency: &Latency, percentile: f64) -> String {
    let found = latency.percentiles.iter().find(|it| it.0 == percentile);
    found.map_or_else(|| "-".to_owned(), |it| format::seconds(it.1))
}

/// Half of the operations and the slowest hundredth, round by round.
pub fn over_time(report: &Report) -> String {
    let mut heading = vec!["round: 50 %; 99 %".to_owned()];
    heading.extend(report.distributions.iter().map(|it| it.subject.clone()));
    let mut rows = vec![heading];
    let cell = |one: &Distribution, round: usize| {
        let series = report.find(&one.subject, &one.workload)?;
        let latency = series.samples.get(round)?.as_ref()?.latency.as_ref()?;
        Some(format!("{}; {}", at(latency, 50.0), at(latency, 99.0)))
    };
    for round in 0..report.repetitions {
        let mut row = vec![(round + 1).to_string()];
        let cells = report.distributions.iter().map(|it| cell(it, round));
        row.extend(cells.map(|it| it.unwrap_or_else(|| "-".to_owned())));
        rows.push(row);
    }
    format::table(&rows)
}

/// CPU time and path.
pub fn expense(report: &Report) -> String {
    let report = &report.in_window();
    let rows = report.workloads();
    let tables = [
        expense::cpu_table(report, &rows),
        expense::path_table(report, &rows),
    ];
    tables.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::result::{Kind, Sample, Series, Unit, Work};

    /// Figures of all rounds stood beside "rounds 3 to 7".
    #[test]
    fn figures_are_those_of_the_steady_rounds() {
        let mut report = Report::new(Kind::Latency, Regime::Quiet, 1);
        report.repetitions = 7;
        let rounds = [900.0, 800.0, 100.0, 101.0, 100.0, 99.0, 100.0];
        let sample = |value: &f64| {
            Some(Sample {
                value: *value,
                ..Sample::default()
            })
        };
        let work = Work {
            operations: 1,
            bytes: 4096,
        };
        report.series.push(Series {
            unit: Unit::OperationsPerSecond,
            samples: rounds.iter().map(sample).collect(),
            ..Series::of_seconds("/disk", "read 4k", work, &[])
        });
        report.distributions.push(Distribution {
            subject: "/disk".to_owned(),
            workload: "read 4k".to_owned(),
            first_round: 3,
            last_round: 7,
            response: Latency::default(),
            service: None,
            window: None,
        });
        let said = rates(&report);
        assert!(said.contains(" 100 [99 101]"), "{said}");
        // A note told of marks that were nowhere.
        report.series[0].unstable = true;
        let said = rates(&report);
        assert!(said.contains(" ~100 [99 101]"), "{said}");
    }
}
