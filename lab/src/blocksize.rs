//! What the size of an application's reads and writes costs: 512 bytes against 1 MiB, and the cost
//! of a request and of a byte from sizes in between. mergerfs' documentation gives an example:
//! with nullrw, writing fell from 4.9 GB/s to 69.7 MB/s.

use std::sync::atomic::AtomicBool;

use crate::error::BenchError;
use crate::format;
use crate::layers::LayersPlan;
use crate::layers::plan::{LINE, Mode, rows};
use crate::layers::run::{check, measure};
use crate::layers::setup::{Levels, MEMORY, NULLRW};
use crate::progress::Progress;
use crate::result::{Kind, Report, Series};
use crate::stats::estimate;

/// The published speeds with nullrw, in bytes a second: blocks of 1 MiB, blocks of 512 bytes.
pub(crate) const PUBLISHED: (f64, f64) = (4.9e9, 69.7e6);

/// Measures.
///
/// # Errors
/// As [`crate::layers::run()`].
pub fn run(
    plan: &LayersPlan,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Report, BenchError> {
    check(plan)?;
    let mut pools = vec![(NULLRW, "nullrw=true,passthrough.io=off,cache.files=off")];
    pools.extend(Mode::ALL.map(|mode| (mode.name(), mode.options())));
    let mut levels = Levels::one_place(plan, &pools, stop, progress)?;
    let rows = rows(&[LINE.to_owned()])?;
    measure(plan, Kind::Blocksize, &mut levels, rows, stop, progress)
}

/// Speeds in both sizes and how many times as fast the large one is. The time of the final sync is
/// left out: it belongs to no block size.
pub fn table(report: &Report) -> String {
    let heading = [
        "MiB/s",
        "write 1 MiB",
        "512 bytes",
        "times",
        "read 1 MiB",
        "512 bytes",
        "times",
    ];
    let mut table = vec![heading.map(str::to_owned).to_vec()];
    for subject in &report.subjects {
        let mut line = vec![subject.name.clone()];
        for (large, small) in [
            ("write-1m", "write-512"),
            ("read-1m-cached", "read-512-cached"),
        ] {
            let large = report.find(&subject.name, large).map(byte_seconds);
            let small = report.find(&subject.name, small).map(byte_seconds);
            line.push(speed(large.as_deref()));
            line.push(speed(small.as_deref()));
            let times = large
                .zip(small)
                .and_then(|(large, small)| crate::stats::speed_ratio(&small, &large));
            line.push(times.map_or("-".to_owned(), |it| format::between(&it, format::ratio)));
        }
        if line.iter().skip(1).any(|it| it != "-") && subject.name != MEMORY {
            table.push(line);
        }
    }
    let (large, small) = PUBLISHED;
    let mib = f64::from(1 << 20);
    table.push(vec![
        "published, nullrw".to_owned(),
        format!("{:.0}", large / mib),
        format!("{:.0}", small / mib),
        format::ratio(large / small),
        "-".to_owned(),
        "-".to_owned(),
        "-".to_owned(),
    ]);
    format::table(&table)
}

/// How many times as fast a subject writes in blocks of 1 MiB as in blocks of 512 bytes, without the final sync.
pub(crate) fn write_ratio(report: &Report, subject: &str) -> Option<crate::stats::Estimate> {
    let large = byte_seconds(report.find(subject, "write-1m")?);
    let small = byte_seconds(report.find(subject, "write-512")?);
    crate::stats::speed_ratio(&small, &large)
}

fn byte_seconds(series: &Series) -> Vec<Option<f64>> {
    let bytes = series.work.bytes as f64;
    let samples = series.samples.iter();
    samples
        .map(|it| {
            let it = it.as_ref()?;
            Some((it.value - it.sync_seconds.unwrap_or(0.0)) / bytes)
        })
        .collect()
}

fn speed(seconds: Option<&[Option<f64>]>) -> String {
    let known = seconds.unwrap_or(&[]).iter().flatten();
    let speeds: Vec<f64> = known.map(|it| 1.0 / it).collect();
    estimate(&speeds).map_or("-".to_owned(), |it| format::between(&it, format::mib))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::result::{Cache, Sample, Subject, Unit, Work};

    #[test]
    fn the_published_example_is_seventy_times() {
        let mut report = Report::new(Kind::Blocksize, Regime::Quiet, 1);
        report.subjects.push(Subject {
            name: NULLRW.to_owned(),
            ..Subject::default()
        });
        for (row, speed, block) in [
            ("write-1m", PUBLISHED.0, 1 << 20),
            ("write-512", PUBLISHED.1, 512),
        ] {
            let work = Work {
                operations: 100,
                bytes: 100 * block,
            };
            let sample = Sample {
                // The sync takes as long as the writing, and does not count.
                value: 2.0 * work.bytes as f64 / speed,
                sync_seconds: Some(work.bytes as f64 / speed),
                ..Sample::default()
            };
            report.series.push(Series {
                subject: NULLRW.to_owned(),
                workload: row.to_owned(),
                unit: Unit::Seconds,
                work,
                cache: Cache::Any,
                samples: vec![Some(sample); 5],
                unstable: false,
            });
        }
        let table = table(&report);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1].contains("70.3 [70.3 70.3]"), "{table}");
        assert!(
            lines[1].contains("4673 [4673 4673]") && lines[2].contains("4673"),
            "{table}"
        );
    }
}
