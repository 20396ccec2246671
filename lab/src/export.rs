//! The samples of a result as a table of comma-separated values (RFC 4180), a line for each: for spreadsheets and
//! for whoever has a plot to draw. `docs/results.md` says what the columns hold.

use crate::result::{Latency, Report, Sample, Series, Unit};

/// The version of the columns: it changes when one goes or means something else, not when one is added at the
/// end.
pub const SCHEMA: u32 = 1;

/// Percentiles with a column of their own; 100 is the longest.
const PERCENTILES: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// The columns' names before those of the percentiles.
const COLUMNS: [&str; 19] = [
    "schema",
    "kind",
    "subject",
    "workload",
    "cache",
    "repetition",
    "unit",
    "value",
    "operations",
    "bytes",
    "sync_seconds",
    "cpu_own_seconds",
    "cpu_server_seconds",
    "cpu_machine_seconds",
    "storage_read_bytes",
    "server_read_bytes",
    "server_write_bytes",
    "latency_count",
    "latency_mean_seconds",
];

/// All columns' names, in their order.
pub fn columns() -> Vec<String> {
    let named = |what: &str| {
        PERCENTILES.map(|it| match it >= 100.0 {
            true => format!("{what}_max_seconds"),
            false => format!("{what}_p{it}_seconds"),
        })
    };
    let all = COLUMNS.map(str::to_owned).into_iter();
    all.chain(named("latency"))
        .chain(named("service"))
        .collect()
}

/// The whole table, with its heading.
pub fn csv(report: &Report) -> String {
    let mut text = line(&columns());
    for series in &report.series {
        for (repetition, sample) in series.samples.iter().enumerate() {
            if let Some(sample) = sample {
                text.push_str(&line(&cells(report, series, repetition + 1, sample)));
            }
        }
    }
    text
}

fn cells(report: &Report, series: &Series, repetition: usize, sample: &Sample) -> Vec<String> {
    let work = sample.done.unwrap_or(series.work);
    let traffic = sample.traffic.as_ref();
    let cpu = sample.cpu.as_ref();
    let latency = sample.latency.as_ref();
    let mut cells = vec![
        SCHEMA.to_string(),
        report.kind.name().to_owned(),
        series.subject.clone(),
        series.workload.clone(),
        series.cache.name().to_owned(),
        repetition.to_string(),
        match series.unit {
            Unit::Seconds => "seconds".to_owned(),
            Unit::OperationsPerSecond => "operations_per_second".to_owned(),
        },
        sample.value.to_string(),
        work.operations.to_string(),
        work.bytes.to_string(),
        known(sample.sync_seconds),
        known(cpu.map(|it| it.own)),
        known(cpu.and_then(|it| it.server)),
        known(cpu.map(|it| it.machine)),
        known(traffic.map(|it| it.storage_read_bytes)),
        known(traffic.and_then(|it| it.server_read_bytes)),
        known(traffic.and_then(|it| it.server_write_bytes)),
        known(latency.map(|it| it.count)),
        known(latency.map(|it| it.mean)),
    ];
    for latency in [latency, sample.service.as_ref()] {
        cells.extend(PERCENTILES.map(|it| known(latency.and_then(|latency| at(latency, it)))));
    }
    cells
}

fn at(latency: &Latency, percentile: f64) -> Option<f64> {
    let found = latency.percentiles.iter().find(|it| it.0 == percentile);
    found.map(|it| it.1)
}

/// Empty for what was not measured.
fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |it| it.to_string())
}

fn line(cells: &[String]) -> String {
    let quoted: Vec<String> = cells.iter().map(|it| quoted(it)).collect();
    format!("{}\r\n", quoted.join(","))
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::result::{Cache, Kind, Work};

    fn report() -> Report {
        let mut report = Report::new(Kind::Latency, Regime::Quiet, 1);
        let sample = Sample {
            value: 1000.5,
            latency: Some(Latency {
                count: 7,
                mean: 0.5,
                percentiles: vec![(50.0, 0.25), (100.0, 2.0)],
            }),
            ..Sample::default()
        };
        report.series.push(Series {
            subject: "a \"pool\", on x".to_owned(),
            workload: "random-read 4 KiB".to_owned(),
            unit: Unit::OperationsPerSecond,
            work: Work {
                operations: 1,
                bytes: 4096,
            },
            cache: Cache::Any,
            samples: vec![None, Some(sample)],
            unstable: false,
        });
        report
    }

    #[test]
    fn a_line_for_every_sample_and_a_cell_for_every_column() {
        let text = csv(&report());
        let lines: Vec<&str> = text.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[1].starts_with("1,latency,\"a \"\"pool\"\", on x\",random-read 4 KiB,any,2,")
        );
        // The only comma in a cell is that of the name.
        assert_eq!(lines[1].split(',').count(), columns().len() + 1);
        assert!(lines[1].contains(",7,0.5,0.25,,,,,,2,"), "{}", lines[1]);
    }

    /// What is not on the page is not documented.
    #[test]
    fn every_column_and_every_field_is_on_the_page() {
        let page = include_str!("../../docs/results.md");
        assert!(page.contains(&format!("schema {SCHEMA}")));
        let version = crate::result::VERSION;
        assert!(page.contains(&format!("version {version}")));
        for name in COLUMNS {
            assert!(page.contains(&format!("`{name}`")), "column {name}");
        }
        for name in fields() {
            assert!(page.contains(&format!("`{name}`")), "field {name}");
        }
    }

    /// The names of all fields that a result's types have, read from the text that declares them.
    fn fields() -> Vec<String> {
        let text = [
            include_str!("result.rs"),
            include_str!("cpu.rs"),
            include_str!("latency/steady.rs"),
        ];
        let mut names = Vec::new();
        for text in text {
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for block in text.split("pub struct ").skip(1) {
                let (head, body) = block.split_once('{').unwrap_or_default();
                let is_stored = [
                    "Report",
                    "Subject",
                    "Series",
                    "Sample",
                    "Work",
                    "Traffic",
                    "Latency",
                    "Verdict",
                    "Part",
                    "Tried",
                    "Distribution",
                    "Cpu ",
                    "Window",
                ];
                if !is_stored.iter().any(|it| head.trim() == it.trim()) {
                    continue;
                }
                let body = body.split("\n}").next().unwrap_or_default();
                for line in body.lines() {
                    let field = line.trim().strip_prefix("pub ");
                    if let Some((name, _)) = field.and_then(|it| it.split_once(':')) {
                        names.push(name.to_owned());
                    }
                }
            }
        }
        assert!(names.len() > 50, "{names:?}");
        names
    }
}
