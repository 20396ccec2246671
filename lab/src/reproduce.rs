//! The page on which published tables stand beside the same tables measured here: is the order of the figures the
//! same, and if not, why not?

use std::fmt::Write;

use crate::blocksize;
use crate::credibility::device_share;
use crate::format;
use crate::layers::setup::NULLRW;
use crate::matrix::table::{speed_between, speed_text};
use crate::passthrough;
use crate::result::{Report, Series};
use crate::spread::{Difference, describe_ratio, difference};
use crate::stats::{Estimate, ratio_of_medians};
use crate::volume::JOBS;

/// Less of the bytes on a device than this, and a row is about memory.
const RAM: f64 = 0.05;

/// Published for a rotating disk, a file of 1 GB, in bytes a second: the row, what it is called in a result of
/// `bench matrix`, and the figures of `xfs-rmapbt0`, `xfs-rmapbt1`, `ext4-large`, `ext4-large-small` where given.
const MATRIX: [(&str, &str, [Option<f64>; 4]); 6] = [
    (
        "write, through the cache",
        "write",
        [Some(114e6), Some(115e6), Some(112e6), Some(115e6)],
    ),
    (
        "write, past the cache",
        "write direct",
        [Some(105e6), None, Some(104e6), None],
    ),
    (
        "read, past the cache",
        "read direct",
        [Some(104e6), None, Some(105e6), None],
    ),
    (
        "read, through the cache",
        "read",
        [Some(104e6), None, Some(105e6), None],
    ),
    (
        "read again",
        "read again",
        [Some(13.8e9), None, Some(11.2e9), None],
    ),
    (
        "repeated read, the second",
        "repeated read 2",
        [Some(17.4e9), Some(13.9e9), Some(11.4e9), Some(11.8e9)],
    ),
];
const FILESYSTEMS: [&str; 4] = [
    "xfs-rmapbt0",
    "xfs-rmapbt1",
    "ext4-large",
    "ext4-large-small",
];

/// The results that the page is made of.
pub struct Results<'a> {
    /// Of `bench blocksize`.
    pub blocksize: &'a Report,
    /// Of `bench passthrough`.
    pub passthrough: &'a Report,
    /// Of `bench matrix`.
    pub matrix: &'a Report,
    /// Of `bench volume`; `None` where it could not be measured.
    pub volume: Option<&'a Report>,
}

/// The page, in Markdown.
pub fn page(results: &Results<'_>) -> String {
    let mut out = String::from(
        "# Published figures, and the same measured here\n\n\
         Written by `strandfs bench reproduce`; do not edit. Absolute figures are those of two machines; what can be \
         the same is their order. Two figures are in an order where the interval of their ratio (95 %, of the same \
         repetitions) lies on one side of 1.\n\n",
    );
    let machine = &results.passthrough.environment;
    line(
        &mut out,
        &format!(
            "Linux {}, {} CPUs ({}); version {}.",
            machine.kernel, machine.cpus, machine.cpu_model, machine.program_version
        ),
    );
    blocksize_section(&mut out, results.blocksize);
    passthrough_section(&mut out, results.passthrough);
    matrix_section(&mut out, results.matrix);
    match results.volume {
        Some(report) => volume_section(&mut out, report),
        None => line(
            &mut out,
            "## Four jobs of fio on a volume\n\nNot measured here: it needs root and fio.",
        ),
    }
    out
}

/// Writing to a string cannot fail.
fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{text}\n");
}

fn conditions(out: &mut String, report: &Report) {
    let said = report.regime.describe(&report.environment, &report.noise);
    let settings = report
        .settings
        .iter()
        .filter(|(_, value)| !value.is_empty());
    let settings: Vec<String> = settings
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let text = format!(
        "`{}`: {} repetitions; {said}; {}.",
        report.kind.name(),
        report.repetitions,
        settings.join(", ")
    );
    line(out, &text);
}

fn table(out: &mut String, rows: &[Vec<String>]) {
    for (number, row) in rows.iter().enumerate() {
        let _ = writeln!(out, "| {} |", row.join(" | "));
        if number == 0 {
            let _ = writeln!(out, "|{}", "---|".repeat(row.len()));
        }
    }
    out.push('\n');
}

fn blocksize_section(out: &mut String, report: &Report) {
    line(out, "## 512 bytes against 1 MiB, with `nullrw`");
    conditions(out, report);
    let ratio = blocksize::write_ratio(report, NULLRW);
    let (large, small) = blocksize::PUBLISHED;
    let speed = |row: &str| {
        let series = report.find(NULLRW, row);
        let speed = series.and_then(Series::byte_speed);
        speed.map_or_else(|| "-".to_owned(), |it| speed_between(&it))
    };
    table(
        out,
        &[
            ["", "published", "here (with the final sync)"]
                .map(str::to_owned)
                .to_vec(),
            vec![
                "write, 1 MiB".to_owned(),
                speed_text(large),
                speed("write-1m"),
            ],
            vec![
                "write, 512 bytes".to_owned(),
                speed_text(small),
                speed("write-512"),
            ],
            vec![
                "times as fast".to_owned(),
                format::ratio(large / small),
                ratio
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), describe_ratio),
            ],
        ],
    );
    line(
        out,
        match ratio.map(|it| difference(&it)) {
            Some(Difference::More) => "The same order: large blocks are faster.",
            Some(Difference::Less) => "Another order: small blocks are faster here.",
            _ => "No order was shown here.",
        },
    );
}

fn passthrough_section(out: &mut String, report: &Report) {
    line(out, "## Six ways to write through one branch");
    conditions(out, report);
    table(out, &passthrough::rows(report));
    for sentence in passthrough::order(report) {
        let _ = writeln!(out, "- {sentence}");
    }
    out.push('\n');
}

fn matrix_section(out: &mut String, report: &Report) {
    line(out, "## XFS with and without rmapbt, ext4 for large files");
    conditions(out, report);
    let mut heading = vec!["published (rotating disk) / here".to_owned()];
    heading.extend(FILESYSTEMS.map(str::to_owned));
    let mut rows = vec![heading];
    for (title, row, published) in MATRIX {
        let mut cells = vec![title.to_owned()];
        cells.extend(FILESYSTEMS.iter().zip(published).map(|(name, published)| {
            let published = published.map_or_else(|| "-".to_owned(), speed_text);
            let here = report.find(name, row).and_then(Series::byte_speed);
            let here = here.map_or_else(|| "-".to_owned(), |it| speed_between(&it));
            format!("{published} / {here}")
        }));
        rows.push(cells);
    }
    table(out, &rows);
    for (title, row, published) in MATRIX {
        let pairs = FILESYSTEMS.iter().copied().zip(published);
        let known: Vec<(&str, f64)> = pairs.filter_map(|(name, it)| Some((name, it?))).collect();
        let orders = orders(&known, |fast, slow| {
            report.find(fast, row)?.speed(report.find(slow, row)?)
        });
        let reason = reason(report, row);
        let _ = writeln!(out, "- {title}: {}", describe_orders(&orders, &reason));
    }
    out.push('\n');
    for sentence in crate::matrix::table::conclusions(report) {
        let _ = writeln!(out, "- {sentence}");
    }
    out.push('\n');
}

/// What the row was about here, from what the device moved.
fn reason(report: &Report, row: &str) -> String {
    let series = report.series.iter().find(|it| it.workload == row);
    let share = series.and_then(|it| device_share(it, row.starts_with("write")));
    let storage = report.subjects.iter().find_map(|it| it.storage.as_ref());
    let kind = storage.and_then(crate::storage::Storage::kind);
    match share {
        Some(it) if it < RAM => {
            "no byte touched the device: this is the speed of memory, here and there".to_owned()
        }
        _ => format!(
            "published on a rotating disk, measured here on {}",
            kind.unwrap_or_else(|| "a device of unknown kind".to_owned())
        ),
    }
}

fn volume_section(out: &mut String, report: &Report) {
    line(
        out,
        "## Four jobs of fio on a volume, 4 KiB, 1024 in flight",
    );
    conditions(out, report);
    let volumes = report.subjects.iter().map(|it| it.name.as_str());
    let volumes: Vec<&str> = volumes.filter(|it| it.starts_with("volume, ")).collect();
    let mut heading = vec![
        "thousand operations a second".to_owned(),
        "published".to_owned(),
    ];
    heading.extend(volumes.iter().map(|it| (*it).to_owned()));
    let mut rows = vec![heading];
    for (job, _, published) in JOBS {
        let mut row = vec![job.to_owned(), format!("{:.0}", published / 1e3)];
        row.extend(volumes.iter().map(|volume| {
            let found = report.find(volume, job).and_then(Series::estimate);
            let thousands = |it: f64| format!("{:.0}", it / 1e3);
            found.map_or_else(|| "-".to_owned(), |it| format::between(&it, thousands))
        }));
        rows.push(row);
    }
    table(out, &rows);
    let published = JOBS.map(|(job, _, published)| (job, published));
    for volume in volumes {
        let orders = orders(&published, |fast, slow| {
            let values = |job: &str| -> Option<Vec<f64>> {
                Some(
                    report
                        .find(volume, job)?
                        .values()
                        .into_iter()
                        .flatten()
                        .collect(),
                )
            };
            // Jobs follow one another: their repetitions are not pairs.
            ratio_of_medians(&values(slow)?, &values(fast)?)
        });
        let reason = "published for another server on another machine, whose reads at random places missed its \
            caches; here the backing file is in memory";
        let _ = writeln!(out, "- {volume}: {}", describe_orders(&orders, reason));
    }
    out.push('\n');
}

/// How pairs that are published in an order come out here.
#[derive(Debug, Default, PartialEq)]
struct Orders {
    same: usize,
    open: usize,
    other: Vec<String>,
}

/// Every pair of unlike published figures (more is faster); `speed` gives the faster one's speed here, the other's
/// = 1.
fn orders(published: &[(&str, f64)], speed: impl Fn(&str, &str) -> Option<Estimate>) -> Orders {
    let mut found = Orders::default();
    for (place, one) in published.iter().enumerate() {
        for other in published.iter().skip(place + 1) {
            let (fast, slow) = if one.1 >= other.1 {
                (one, other)
            } else {
                (other, one)
            };
            if one.1 == other.1 {
                continue;
            }
            let ratio = speed(fast.0, slow.0);
            match ratio.as_ref().map(difference) {
                Some(Difference::More) => found.same += 1,
                Some(Difference::Less) => {
                    let shown = ratio.as_ref().map_or_else(String::new, describe_ratio);
                    found
                        .other
                        .push(format!("{} is {shown} of {}", fast.0, slow.0));
                }
                _ => found.open += 1,
            }
        }
    }
    found
}

fn describe_orders(orders: &Orders, reason: &str) -> String {
    let mut text = format!(
        "{} pairs in the published order, {} in another, {} not told apart here",
        orders.same,
        orders.other.len(),
        orders.open
    );
    if !orders.other.is_empty() {
        let _ = write!(text, " ({}; {reason})", orders.other.join("; "));
    } else if orders.same == 0 {
        let _ = write!(text, " ({reason})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::estimate;

    #[test]
    fn pairs_are_counted_as_they_come_out() {
        let published = [("a", 3.0), ("b", 2.0), ("c", 1.0), ("d", 1.0)];
        let ratio = |fast: &str, slow: &str| match (fast, slow) {
            ("a", "b") => estimate(&[2.0; 5]),
            ("a", "c") => estimate(&[0.5; 5]),
            ("a", "d") => estimate(&[0.9, 1.1, 1.0, 0.95, 1.05]),
            _ => None,
        };
        let found = orders(&published, ratio);
        assert_eq!((found.same, found.open, found.other.len()), (1, 3, 1));
        let said = describe_orders(&found, "another machine");
        assert!(
            said.starts_with("1 pairs in the published order, 1 in another, 3 not told apart"),
            "{said}"
        );
        assert!(
            said.contains("a is 0.50 [0.50 0.50] of c; another machine"),
            "{said}"
        );
    }
}
