//! What the samples of a run say about themselves.

use super::table::speed_text;
use crate::credibility::{device_share, load_note, run_notes};
use crate::result::{Cache, Report};

/// Less of the bytes than this came from the device or reached it: the row measured RAM.
const FROM_DEVICE: f64 = 0.95;
/// More of the bytes than this came from the device though they were to be cached.
const NOT_CACHED: f64 = 0.05;

/// Sentences that belong under the figures.
pub fn notes(report: &Report) -> Vec<String> {
    let mut said: Vec<String> = load_note(&report.environment).into_iter().collect();
    for series in &report.series {
        let is_write = series.workload.starts_with("write");
        let Some(share) = device_share(series, is_write) else {
            continue;
        };
        let (subject, row, percent) = (&series.subject, &series.workload, share * 100.0);
        if series.cache != Cache::Warm && share < FROM_DEVICE {
            said.push(format!(
                "{row} on {subject} was RAM: the device moved {percent:.0} % of the bytes"
            ));
        } else if series.cache == Cache::Warm && share > NOT_CACHED {
            said.push(format!(
                "{row} on {subject} was not cached: {percent:.0} % of the bytes came from the \
                 device"
            ));
        }
    }
    said.extend(generator_note(report));
    said.extend(run_notes(report));
    said
}

/// A generator less than ten times as fast as what it feeds takes part in the figure.
fn generator_note(report: &Report) -> Option<String> {
    let words = report.settings.get("generator")?;
    let generator = words.split(' ').next()?.parse::<f64>().ok()? * 1e9;
    let writes = report.series.iter();
    let fastest = writes
        .filter(|it| it.workload.starts_with("write"))
        .filter_map(|it| Some(it.work.bytes as f64 / it.estimate()?.median))
        .max_by(f64::total_cmp)?;
    (generator < 10.0 * fastest).then(|| {
        format!(
            "the generator makes {words}, and {} were written: up to {:.0} % of that time is its \
             own",
            speed_text(fastest),
            fastest / generator * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credibility::is_unstable;
    use crate::regime::Regime;
    use crate::result::{Kind, Sample, Series, Traffic, Unit, Work};

    fn report(cache: Cache, workload: &str, moved: u64, seconds: &[f64]) -> Report {
        let sample = |value: &f64| {
            Some(Sample {
                value: *value,
                traffic: Some(Traffic {
                    device_read_bytes: Some(moved),
                    device_write_bytes: Some(moved),
                    ..Traffic::default()
                }),
                ..Sample::default()
            })
        };
        let mut report = Report::new(Kind::Matrix, Regime::Quiet, 1);
        (
            report.environment.load_before,
            report.environment.free_page_reporting,
        ) = (0.0, false);
        report.repetitions = seconds.len();
        report.series.push(Series {
            subject: "xfs".to_owned(),
            workload: workload.to_owned(),
            unit: Unit::Seconds,
            work: Work {
                operations: 1,
                bytes: 1_000_000,
            },
            cache,
            samples: seconds.iter().map(sample).collect(),
            unstable: false,
        });
        report.series[0].unstable = is_unstable(&report.series[0]);
        report
    }

    #[test]
    fn a_cold_read_that_no_device_saw_was_ram() {
        let said = notes(&report(Cache::Cold, "read", 0, &[1.0; 5])).join("\n");
        assert!(said.contains("read on xfs was RAM"), "{said}");
        assert!(said.contains("0 %"), "{said}");
        assert!(notes(&report(Cache::Cold, "read", 1_000_000, &[1.0; 5])).is_empty());
    }

    #[test]
    fn a_cached_read_that_the_device_saw_was_not_cached() {
        let said = notes(&report(Cache::Warm, "read again", 500_000, &[1.0; 5])).join("\n");
        assert!(said.contains("50 % of the bytes came from"), "{said}");
        assert!(notes(&report(Cache::Warm, "read again", 0, &[1.0; 5])).is_empty());
    }

    #[test]
    fn spread_few_runs_load_and_interrupts_are_said() {
        let mut wild = report(Cache::Any, "x", 1_000_000, &[1.0, 2.0, 1.0]);
        wild.interrupted = true;
        wild.environment.load_before = 3.0;
        let said = notes(&wild).join("\n");
        for word in ["unstable", "--reps 5", "interrupted", "load was 3.0"] {
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn a_slow_generator_is_named() {
        let mut report = report(Cache::Cold, "write", 1_000_000, &[0.001; 5]);
        report
            .settings
            .insert("generator".to_owned(), "2.0 GB/s".to_owned());
        let said = notes(&report).join("\n");
        assert!(said.contains("up to 50 %"), "{said}");
        report
            .settings
            .insert("generator".to_owned(), "20.0 GB/s".to_owned());
        assert!(notes(&report).is_empty());
    }
}
