//! The result as text.

use super::candidate::{Candidate, LOOP, plainest};
use super::run::{JOBS, cpu_row};
use crate::expense;
use crate::format;
use crate::result::{Report, Series};
use crate::spread;
use crate::stats::estimate;

/// A row for each job: operations a second and latencies, a column for each candidate.
pub fn rates(report: &Report) -> String {
    let mut heading = vec!["thousand op/s".to_owned()];
    heading.extend(report.subjects.iter().map(|it| it.name.clone()));
    heading.push("published elsewhere".to_owned());
    let mut rows = vec![heading];
    for (job, _, published) in JOBS {
        let mut row = cells(report, job, job, rate);
        row.push(format!("{:.0}", published / 1e3));
        rows.push(row);
    }
    for (job, _, _) in JOBS {
        for percentile in [50.0, 99.0, 99.9] {
            let name = format!("{job}, latency at {percentile} %");
            rows.push(cells(report, &name, job, |it| latency(it, percentile)));
        }
    }
    for (job, _, _) in JOBS {
        let name = format!("{job}, server's CPU for one");
        rows.push(cells(report, &name, &cpu_row(job), |it| {
            it.estimate()
                .map(|it| format::between(&it, format::seconds))
        }));
    }
    for (job, _, _) in JOBS {
        let name = format!("{job}, all CPU for one");
        rows.push(cells(report, &name, job, |it| {
            let (per, cost) = expense::of(it)?;
            Some(expense::show(per, cost.machine?))
        }));
    }
    format::table(&rows)
}

/// Speeds against the bare loop device.
pub fn ratios(report: &Report) -> String {
    let all = report.subjects.iter().map(|it| it.name.as_str());
    let compared = all.filter(|name| report.base_of(name) == Some(LOOP));
    against(report, LOOP, "loop", &compared.collect::<Vec<_>>())
}

/// Speeds of the other volumes against the plainest server, if that was measured: one request
/// after the other, read from the device and carried out with system calls.
pub fn ratios_of_servers(report: &Report) -> Option<String> {
    let plain = Candidate::Volume(plainest()).name();
    report.find(&plain, JOBS.first()?.0)?;
    let all = report.subjects.iter().map(|it| it.name.as_str());
    let compared = all.filter(|name| name.starts_with("volume, ") && *name != plain);
    let compared: Vec<&str> = compared.collect();
    let (_, short) = plain.split_once(", ")?;
    (!compared.is_empty()).then(|| against(report, &plain, short, &compared))
}

fn against(report: &Report, base: &str, short: &str, compared: &[&str]) -> String {
    let mut heading = vec![format!("speed, {short} = 1")];
    heading.extend(compared.iter().map(|it| (*it).to_owned()));
    let mut rows = vec![heading];
    for (job, _, _) in JOBS {
        let mut row = vec![job.to_owned()];
        row.extend(compared.iter().map(|name| {
            let pair = report.find(base, job).zip(report.find(name, job));
            let ratio = pair.and_then(|(base, own)| own.speed(base));
            ratio.map_or_else(|| "-".to_owned(), |it| spread::describe_ratio(&it))
        }));
        rows.push(row);
    }
    format::table(&rows)
}

fn cells(
    report: &Report,
    name: &str,
    workload: &str,
    show: impl Fn(&Series) -> Option<String>,
) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    row.extend(report.subjects.iter().map(|subject| {
        let series = report.find(&subject.name, workload);
        series.and_then(&show).unwrap_or_else(|| "-".to_owned())
    }));
    row
}

fn rate(series: &Series) -> Option<String> {
    let it = series.estimate()?;
    let mark = if series.unstable { "~" } else { "" };
    let [median, low, high] = [it.median, it.low, it.high].map(|it| it / 1e3);
    Some(format!("{mark}{median:.1} [{low:.1} {high:.1}]"))
}

fn latency(series: &Series, percentile: f64) -> Option<String> {
    let samples = series.samples.iter().flatten();
    let all = samples.filter_map(|it| it.latency.as_ref());
    let at = |it: &crate::result::Latency| {
        let found = it.percentiles.iter().find(|it| it.0 == percentile);
        found.map(|it| it.1)
    };
    let known: Vec<f64> = all.filter_map(at).collect();
    estimate(&known).map(|it| format::between(&it, format::seconds))
}
