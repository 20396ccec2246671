//! The table of mergerfs' documentation on passthrough: six ways to write 1 MiB blocks to one
//! branch, as ratios to the bare filesystem, beside the figures published there.

use std::sync::atomic::AtomicBool;

use crate::data::{Action, Workload};
use crate::error::BenchError;
use crate::format;
use crate::layers::LayersPlan;
use crate::layers::run::{check, measure};
use crate::layers::setup::{Levels, MEMORY};
use crate::progress::Progress;
use crate::result::{Cache, Kind, Report};
use crate::spread::{Difference, describe_ratio, difference};
use crate::trial::Row;

/// The row that was published.
const WRITE: &str = "write-1m";
/// Published for the bare filesystem (tmpfs, Intel i7-8809G), in GB/s, as are the others.
const PUBLISHED_BARE: f64 = 1.7;

/// One line of the published table.
struct Published {
    name: &'static str,
    options: &'static str,
    speed: f64,
}

const PUBLISHED: [Published; 5] = [
    Published {
        name: "nullrw=true",
        // Said there by the text, not the table: passthrough would keep the data from the server.
        options: "nullrw=true,passthrough.io=off,cache.files=off",
        speed: 2.1,
    },
    Published {
        name: "cache.files=off, passthrough off",
        options: "cache.files=off,passthrough.io=off",
        speed: 0.8,
    },
    Published {
        name: "cache.files=auto-full, passthrough=rw",
        options: "cache.files=auto-full,passthrough.io=rw",
        speed: 1.6,
    },
    Published {
        name: "cache.files=auto-full, writeback=false",
        options: "cache.files=auto-full,cache.writeback=false,passthrough.io=off",
        speed: 0.518,
    },
    Published {
        name: "cache.files=auto-full, writeback=true",
        options: "cache.files=auto-full,cache.writeback=true,passthrough.io=off",
        speed: 0.518,
    },
];

/// Measures the table.
///
/// # Errors
/// As [`crate::layers::run()`].
pub fn run(
    plan: &LayersPlan,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Report, BenchError> {
    check(plan)?;
    let pools: Vec<(&str, &str)> = PUBLISHED.iter().map(|it| (it.name, it.options)).collect();
    let mut levels = Levels::one_place(plan, &pools, stop, progress)?;
    let row = |name, action, cache| Row::Data(Workload::new(name, action, 1 << 20, cache));
    let rows = vec![
        row(WRITE, Action::Write, Cache::Any),
        row("read-1m-cold", Action::Read, Cache::Cold),
        row("read-1m-cached", Action::Read, Cache::Warm),
    ];
    let mut report = measure(plan, Kind::Passthrough, &mut levels, rows, stop, progress)?;
    let order = order(&report);
    report.warnings.splice(0..0, order);
    Ok(report)
}

/// The bare filesystem: the first subject with a place.
fn bare(report: &Report) -> Option<&str> {
    let mut all = report.subjects.iter().map(|it| it.name.as_str());
    all.find(|it| *it != MEMORY)
}

/// The table: ratios to the bare filesystem, and the published ones.
pub fn table(report: &Report) -> String {
    match bare(report) {
        Some(_) => format::table(&rows(report)),
        None => String::new(),
    }
}

/// Its rows, with a heading.
pub(crate) fn rows(report: &Report) -> Vec<Vec<String>> {
    let Some(bare) = bare(report) else {
        return Vec::new();
    };
    let rows = report.workloads();
    let rows: Vec<&str> = rows.into_iter().filter(|it| !it.contains(',')).collect();
    let mut heading = vec!["speed, bare = 1".to_owned()];
    heading.extend(rows.iter().map(|it| (*it).to_owned()));
    heading.push("published (write)".to_owned());
    let mut table = vec![heading];
    let mut first = vec![bare.to_owned()];
    for row in &rows {
        let speed = report
            .find(bare, row)
            .and_then(crate::result::Series::byte_speed);
        first.push(speed.map_or("-".to_owned(), |it| {
            format!("{} MiB/s", format::between(&it, format::mib))
        }));
    }
    first.push(format!("{PUBLISHED_BARE} GB/s"));
    table.push(first);
    for published in &PUBLISHED {
        let mut line = vec![published.name.to_owned()];
        for row in &rows {
            let pair = (report.find(published.name, row), report.find(bare, row));
            let ratio = match pair {
                (Some(own), Some(base)) => own.speed(base),
                _ => None,
            };
            line.push(ratio.map_or("-".to_owned(), |it| format::between(&it, format::ratio)));
        }
        line.push(format::ratio(published.speed / PUBLISHED_BARE));
        table.push(line);
    }
    table
}

/// Whether the ways come in the published order, pair by pair, as far as the intervals tell.
pub(crate) fn order(report: &Report) -> Vec<String> {
    let mut against = Vec::new();
    let (mut shown, mut all) = (0, 0);
    for (place, one) in PUBLISHED.iter().enumerate() {
        for other in PUBLISHED.iter().skip(place + 1) {
            // Which is published to be faster; equals have no order.
            let (fast, slow) = match one.speed.total_cmp(&other.speed) {
                std::cmp::Ordering::Greater => (one, other),
                std::cmp::Ordering::Less => (other, one),
                std::cmp::Ordering::Equal => continue,
            };
            let pair = (report.find(fast.name, WRITE), report.find(slow.name, WRITE));
            let (Some(fast_series), Some(slow_series)) = pair else {
                continue;
            };
            let Some(ratio) = fast_series.speed(slow_series) else {
                continue;
            };
            all += 1;
            match difference(&ratio) {
                Difference::More => shown += 1,
                Difference::Less => against.push(format!(
                    "published: {} is faster than {} in writing; here its speed is {} of the \
                     other's",
                    fast.name,
                    slow.name,
                    describe_ratio(&ratio)
                )),
                Difference::None => {}
            }
        }
    }
    if against.is_empty() && shown > 0 {
        against.push(format!(
            "{shown} of {all} pairs are shown to be in the published order, none against it"
        ));
    }
    against
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::result::{Series, Subject, Work};

    fn report(speeds: [f64; 6]) -> Report {
        let mut report = Report::new(Kind::Passthrough, Regime::Quiet, 1);
        let names = ["tmpfs"]
            .into_iter()
            .chain(PUBLISHED.iter().map(|it| it.name));
        for (name, speed) in names.zip(speeds) {
            report.subjects.push(Subject {
                name: name.to_owned(),
                ..Subject::default()
            });
            let work = Work {
                operations: 64,
                bytes: 64 << 20,
            };
            let series = Series::of_seconds(name, WRITE, work, &[1.0 / speed; 5]);
            report.series.push(series);
        }
        report
    }

    #[test]
    fn the_published_figures_are_in_their_own_order() {
        let report = report([1.7, 2.1, 0.8, 1.6, 0.518, 0.518]);
        let said = order(&report);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("9 of 9 pairs"), "{said:?}");
        let table = table(&report);
        let line = table
            .lines()
            .find(|it| it.contains("passthrough=rw"))
            .unwrap();
        assert!(
            line.contains("0.94 [0.94 0.94]") && line.ends_with("0.94"),
            "{table}"
        );
    }

    /// "The order is the published one" was said where a single pair had shown it.
    #[test]
    fn how_many_pairs_show_the_order_is_said() {
        let said = order(&report([1.7, 2.0, 1.0, 1.0, 1.0, 1.0]));
        assert!(said[0].starts_with("4 of 9 pairs are shown"), "{said:?}");
    }

    #[test]
    fn another_order_is_said_pair_by_pair() {
        let said = order(&report([1.7, 2.1, 0.4, 1.6, 0.5, 0.5]));
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].contains("0.80 [0.80 0.80] of the other's"),
            "{said:?}"
        );
    }
}
