//! What a row costs in CPU time and which path its data took, as text: read from what the kernel counted,
//! not from what was asked for.

use crate::cpu::{Cost, cost};
use crate::credibility::{Origin, is_passed_through, origin, server_share};
use crate::format;
use crate::result::{Report, Series, Subject};

/// More of the bytes through the server than this, and they went there.
const SERVED: f64 = 0.9;
/// Less than this, and they did not.
const SPARED: f64 = 0.1;
const GIB: f64 = (1_u64 << 30) as f64;

/// What CPU time is given for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Of large blocks.
    Gib,
    /// Of small ones, and of what moves no bytes.
    Operation,
}

impl Per {
    /// As an axis or a heading says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gib => "s/GiB",
            Self::Operation => "per operation",
        }
    }
}

/// The CPU time of one unit of a series' work; `None` where it was not counted.
pub fn of(series: &Series) -> Option<(Per, Cost)> {
    let per = match series.is_by_bytes() {
        true => Per::Gib,
        false => Per::Operation,
    };
    let samples = series.samples.iter().flatten();
    let spent: Vec<_> = samples
        .filter_map(|sample| {
            let work = sample.done.unwrap_or(series.work);
            let units = match per {
                Per::Gib => work.bytes as f64 / GIB,
                Per::Operation => work.operations as f64,
            };
            Some((sample.cpu?, units))
        })
        .collect();
    Some((per, cost(&spent)?))
}

/// CPU seconds in the unit of a series.
pub fn show(per: Per, seconds: f64) -> String {
    match per {
        Per::Gib => format!("{seconds:.2} s/GiB"),
        Per::Operation => format::seconds(seconds),
    }
}

/// Which way the data of a series went, for a pool or a bare filesystem; `None` for what moves no data.
pub fn path(report: &Report, series: &Series) -> Option<String> {
    let subject = report
        .subjects
        .iter()
        .find(|it| it.name == series.subject)?;
    let is_write = series.workload.contains("write");
    let from = match is_write {
        true => None,
        false => origin(subject, series).map(Origin::describe),
    };
    let way = way(report, subject, series, is_write);
    let words: Vec<String> = [way, from].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn way(report: &Report, subject: &Subject, series: &Series, is_write: bool) -> Option<String> {
    let share = server_share(series, is_write)?;
    if subject.options.contains("nullrw=true") {
        return Some("server, which throws it away".to_owned());
    }
    Some(match share {
        it if it >= SERVED => "server".to_owned(),
        it if it <= SPARED => spared(report, subject).to_owned(),
        it => format!("{:.0} % server", it * 100.0),
    })
}

/// What spared the server the bytes. Writes reach the server of every pool that does not pass them through:
/// one that saw none of them passes data through.
fn spared(report: &Report, subject: &Subject) -> &'static str {
    let own = report.series.iter().filter(|it| it.subject == subject.name);
    let mut writes = own.filter(|it| it.workload.contains("write") && it.work.bytes > 0);
    let passes = writes.find_map(is_passed_through);
    match passes {
        Some(true) => "passthrough",
        Some(false) => "cached above the server",
        None => "not the server",
    }
}

/// CPU time: levels down, rows across; of the server, and of the whole machine.
pub fn cpu_table(report: &Report, rows: &[&str]) -> String {
    table(report, rows, "CPU: server; machine", |series| {
        let (per, it) = of(series)?;
        let server = it.server.map(|it| show(per, it.median));
        let machine = it.machine.map(|it| show(per, it));
        if server.is_none() && machine.is_none() {
            return None;
        }
        let dash = |it: Option<String>| it.unwrap_or_else(|| "-".to_owned());
        Some(format!("{}; {}", dash(server), dash(machine)))
    })
}

/// Paths: levels down, rows across.
pub fn path_table(report: &Report, rows: &[&str]) -> String {
    table(report, rows, "path of the data", |series| {
        path(report, series)
    })
}

fn table(
    report: &Report,
    rows: &[&str],
    title: &str,
    cell: impl Fn(&Series) -> Option<String>,
) -> String {
    let mut heading = vec![title.to_owned()];
    heading.extend(rows.iter().map(|it| (*it).to_owned()));
    let mut table = vec![heading];
    for subject in &report.subjects {
        let of = |row: &&str| report.find(&subject.name, row).and_then(&cell);
        let cells: Vec<Option<String>> = rows.iter().map(of).collect();
        if cells.iter().any(Option::is_some) {
            let mut line = vec![subject.name.clone()];
            let shown = cells
                .into_iter()
                .map(|it| it.unwrap_or_else(|| "-".to_owned()));
            line.extend(shown);
            table.push(line);
        }
    }
    match table.len() {
        1 => String::new(),
        _ => format::table(&table),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Cpu;
    use crate::regime::Regime;
    use crate::result::{Cache, Kind, Sample, Traffic, Unit, Work};

    fn add(report: &mut Report, subject: &str, row: &str, cache: Cache, served: Option<u64>) {
        if !report.subjects.iter().any(|it| it.name == subject) {
            report.subjects.push(Subject {
                name: subject.to_owned(),
                ..Subject::default()
            });
        }
        let sample = Sample {
            value: 1.0,
            traffic: Some(Traffic {
                server_read_bytes: served,
                server_write_bytes: served,
                ..Traffic::default()
            }),
            cpu: Some(Cpu {
                own: 0.1,
                server: served.map(|_| 0.25),
                machine: 0.5,
            }),
            ..Sample::default()
        };
        report.series.push(Series {
            subject: subject.to_owned(),
            workload: row.to_owned(),
            unit: Unit::Seconds,
            work: Work {
                operations: 512,
                bytes: 512 << 20,
            },
            cache,
            samples: vec![Some(sample); 5],
            unstable: false,
        });
    }

    #[test]
    fn a_path_is_named_for_what_was_counted() {
        let mut report = Report::new(Kind::Layers, Regime::Quiet, 1);
        for (subject, written, read) in [
            ("passes", 0, 0),
            ("caches", 512 << 20, 0),
            ("serves", 512 << 20, 512 << 20),
        ] {
            add(&mut report, subject, "write-1m", Cache::Any, Some(written));
            add(
                &mut report,
                subject,
                "read-1m-cached",
                Cache::Warm,
                Some(read),
            );
        }
        add(&mut report, "bare", "write-1m", Cache::Any, None);
        let of = |subject: &str, row: &str| path(&report, report.find(subject, row).unwrap());
        assert_eq!(of("passes", "write-1m").unwrap(), "passthrough");
        assert!(
            of("passes", "read-1m-cached")
                .unwrap()
                .starts_with("passthrough")
        );
        assert_eq!(of("caches", "write-1m").unwrap(), "server");
        assert!(
            of("caches", "read-1m-cached")
                .unwrap()
                .starts_with("cached above")
        );
        assert!(
            of("serves", "read-1m-cached")
                .unwrap()
                .starts_with("server")
        );
        assert_eq!(of("bare", "write-1m"), None);
    }

    #[test]
    fn cpu_time_is_that_of_a_gib_or_of_an_operation() {
        let mut report = Report::new(Kind::Layers, Regime::Quiet, 1);
        add(&mut report, "pool", "write-1m", Cache::Any, Some(0));
        let (per, cost) = of(&report.series[0]).unwrap();
        assert_eq!((per, cost.server.unwrap().median), (Per::Gib, 0.5));
        let table = cpu_table(&report, &["write-1m"]);
        assert!(table.contains("0.50 s/GiB; 1.00 s/GiB"), "{table}");
        report.series[0].work.bytes = 0;
        let (per, cost) = of(&report.series[0]).unwrap();
        assert_eq!(per, Per::Operation);
        assert!((cost.server.unwrap().median - 0.25 / 512.0).abs() < 1e-12);
        // A rate: each sample did what it did.
        for sample in report.series[0].samples.iter_mut().flatten() {
            sample.done = Some(Work {
                operations: 1000,
                bytes: 0,
            });
        }
        let (_, cost) = of(&report.series[0]).unwrap();
        assert!((cost.server.unwrap().median - 0.25 / 1000.0).abs() < 1e-12);
    }
}
