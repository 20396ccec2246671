//! The answer, the layers and the levels as text.

use super::judge::{ALL_ROWS, MIB, is_judged, unit_seconds};
use super::setup::MEMORY;
use crate::expense;
use crate::fit::{Line, line};
use crate::format;
use crate::result::{Report, Series, Verdict};
use crate::spread;
use crate::stats::{Estimate, estimate};
use crate::subject::Family;

/// The answers about all rows, one line for each pool.
pub fn headlines(report: &Report) -> Vec<String> {
    let whole = report.verdicts.iter().filter(|it| it.about == ALL_ROWS);
    let lines: Vec<String> = whole
        .map(|it| format!("{}: {}", it.subject, it.text))
        .collect();
    match lines.is_empty() {
        // A single row was measured: its answer is the answer.
        true => {
            let single = report.verdicts.iter();
            single
                .map(|it| format!("{}, {}: {}", it.subject, it.about, it.text))
                .collect()
        }
        false => lines,
    }
}

/// Speeds: levels down, rows across. `~` marks what stayed unstable.
pub fn levels(report: &Report) -> String {
    let rows: Vec<&str> = judged(report);
    let mut heading = vec!["level".to_owned()];
    heading.extend(rows.iter().map(|it| (*it).to_owned()));
    let mut table = vec![heading];
    for subject in &report.subjects {
        let cells: Vec<String> = rows
            .iter()
            .map(|row| report.find(&subject.name, row).map_or_else(dash, speed))
            .collect();
        if cells.iter().any(|it| it != "-") {
            let mut line = vec![subject.name.clone()];
            line.extend(cells);
            table.push(line);
        }
    }
    format::table(&table)
}

/// What the rows cost in CPU time, and which path their data took.
pub fn expense(report: &Report) -> String {
    let rows: Vec<&str> = judged(report);
    let tables = [
        expense::cpu_table(report, &rows),
        expense::path_table(report, &rows),
    ];
    tables.join("\n")
}

/// The time of each layer, with intervals, for every pool on every target.
pub fn layers(report: &Report) -> String {
    let mut text = String::new();
    let mut subjects: Vec<&str> = Vec::new();
    for verdict in &report.verdicts {
        if !subjects.contains(&verdict.subject.as_str()) {
            subjects.push(&verdict.subject);
        }
    }
    for subject in subjects {
        let mut table = vec![
            [
                subject, "per", "machine", "pool", "storage", "together", "largest",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        let own = report.verdicts.iter();
        for verdict in own.filter(|it| it.subject == subject && it.about != ALL_ROWS) {
            table.push(layer_row(verdict));
        }
        text.push_str(&format::table(&table));
        text.push('\n');
    }
    text
}

/// The speed of pools of several branches, that of the pool of one over the same place = 1; empty without any.
pub fn branches(report: &Report) -> String {
    let rows = judged(report);
    let mut table = vec![vec!["speed, pool of one branch = 1".to_owned()]];
    for subject in report.subjects.iter().filter(|it| it.branches > 1) {
        let base = subject.base.as_deref().unwrap_or_default();
        let mut line = vec![subject.name.clone()];
        for row in &rows {
            let pair = (report.find(&subject.name, row), report.find(base, row));
            let speed = match pair {
                (Some(own), Some(base)) => own.speed(base),
                _ => None,
            };
            line.push(speed.map_or_else(dash, |it| spread::describe_ratio(&it)));
        }
        table.push(line);
    }
    if table.len() < 2 {
        return String::new();
    }
    if let Some(heading) = table.first_mut() {
        heading.extend(rows.iter().map(|it| (*it).to_owned()));
    }
    format::table(&table)
}

/// The round trips that were waited for, from what one more round trip costs; empty where none was put in.
pub fn round_trips(report: &Report) -> String {
    let rows = judged(report);
    let mut table = vec![vec!["round trips waited for".to_owned()]];
    let mut said = String::new();
    for subject in &report.subjects {
        let Some(trip) = &subject.round_trip else {
            continue;
        };
        let mut line = vec![subject.name.clone()];
        for row in &rows {
            let pair = (
                report.find(&subject.name, row),
                report.find(&trip.without, row),
            );
            let waited = match pair {
                (Some(far), Some(near)) => waited_for(far, near, trip.seconds),
                _ => None,
            };
            line.push(waited.map_or_else(dash, |it| {
                format::between(&it, |trips| format!("{trips:.1}"))
            }));
        }
        table.push(line);
        if subject.family == Family::Native {
            said += &format!(
                "a round trip of {} took {}\n",
                subject.name,
                format::seconds(trip.seconds)
            );
        }
    }
    if table.len() < 2 {
        return String::new();
    }
    if let Some(heading) = table.first_mut() {
        heading.extend(rows.iter().map(|row| {
            let is_by_bytes = report
                .series
                .iter()
                .any(|it| it.workload == *row && it.is_by_bytes());
            match is_by_bytes {
                true => format!("{row}, a MiB"),
                false => format!("{row}, an operation"),
            }
        }));
    }
    format!("{}{said}", format::table(&table))
}

/// What a round trip more adds to a unit of work, in round trips: by repetition, in which both were measured.
fn waited_for(far: &Series, near: &Series, seconds: f64) -> Option<Estimate> {
    let more: Vec<f64> = unit_seconds(far)
        .into_iter()
        .zip(unit_seconds(near))
        .filter_map(|(far, near)| Some((far? - near?) / seconds))
        .collect();
    estimate(&more).filter(|_| seconds > 0.0)
}

fn layer_row(verdict: &Verdict) -> Vec<String> {
    let mut row = vec![verdict.about.clone(), verdict.per.clone()];
    for part in &verdict.parts {
        row.push(time(&part.seconds));
    }
    let largest = verdict.layer.clone();
    row.push(largest.unwrap_or_else(|| "cannot tell".to_owned()));
    row
}

/// The cost of a request and of a byte on every level, without the final sync.
pub fn lines(report: &Report) -> String {
    let mut table = vec![
        [
            "cost",
            "write: request",
            "MiB",
            "misfit",
            "read, cached: request",
            "MiB",
            "misfit",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for subject in report.subjects.iter().filter(|it| it.name != MEMORY) {
        let found: Vec<Option<Line>> = ["write", "read"]
            .into_iter()
            .map(|what| fit(report, &subject.name, what))
            .collect();
        if found.iter().all(Option::is_none) {
            continue;
        }
        let mut row = vec![subject.name.clone()];
        for line in found {
            match line {
                Some(line) => row.extend([
                    time(&line.request_seconds),
                    format::between(&line.byte_seconds, |it| signed(it * f64::from(1 << 20))),
                    format!("{:.0} %", line.worst_miss * 100.0),
                ]),
                None => row.extend([dash(), dash(), dash()]),
            }
        }
        table.push(row);
    }
    match table.len() {
        1 => String::new(),
        _ => format::table(&table),
    }
}

/// The line through a subject's block sizes.
fn fit(report: &Report, subject: &str, what: &str) -> Option<Line> {
    let own = report.series.iter().filter(|it| {
        it.subject == subject
            && it.workload.starts_with(what)
            && !it.workload.ends_with("-cold")
            && it.work.operations > 0
    });
    let times: Vec<(u64, Vec<Option<f64>>)> = own
        .map(|series| {
            let each = |sample: &crate::result::Sample| {
                let seconds = sample.value - sample.sync_seconds.unwrap_or(0.0);
                seconds / series.work.operations as f64
            };
            let samples = series.samples.iter();
            let times = samples.map(|it| it.as_ref().map(each)).collect();
            (series.work.bytes / series.work.operations, times)
        })
        .collect();
    // The judged rows alone are two sizes: no line.
    line(&times)
}

fn judged(report: &Report) -> Vec<&str> {
    let all = report.workloads();
    all.into_iter().filter(|it| is_judged(it)).collect()
}

fn speed(series: &Series) -> String {
    let known: Vec<f64> = unit_seconds(series).into_iter().flatten().collect();
    let Some(found) = estimate(&known).filter(|it| it.median > 0.0) else {
        return dash();
    };
    let mark = if series.unstable { "~" } else { "" };
    match series.is_by_bytes() {
        true => format!("{mark}{} MiB/s", format::mib(MIB / found.median)),
        false => format!("{mark}{}", format::seconds(found.median)),
    }
}

fn time(found: &Estimate) -> String {
    format::between(found, signed)
}

/// Parts may be below zero.
fn signed(seconds: f64) -> String {
    match seconds < 0.0 {
        true => format!("-{}", format::seconds(-seconds)),
        false => format::seconds(seconds),
    }
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Work;

    /// A target of 0.4 MiB/s had "0 MiB/s".
    #[test]
    fn a_slow_target_has_a_speed() {
        let work = Work {
            operations: 2,
            bytes: 2 << 20,
        };
        let series = Series::of_seconds("/slow", "write-1m", work, &[5.0; 5]);
        assert_eq!(speed(&series), "0.40 MiB/s");
    }
}
