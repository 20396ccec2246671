//! The result as text: the rows of the seed's table, and how the filesystems differ.

use super::workload::{REPEATS, Row};
use crate::credibility::device_share;
use crate::expense;
use crate::format;
use crate::result::{Report, Series};
use crate::sequential::{ERROR, Mean};
use crate::spread;
use crate::stats::{Estimate, estimate, median, speed_ratio};

/// Shares of a row's bytes below which it is called RAM.
const RAM: f64 = 0.05;

/// A speed in the unit that suits it, decimal as disks are sold.
pub fn speed_text(bytes_per_second: f64) -> String {
    let (unit, digits, name) = speed_unit(bytes_per_second);
    format!("{:.digits$} {name}", bytes_per_second / unit)
}

/// The unit that suits it, with so many decimals that something is left of a slow disk.
fn speed_unit(bytes_per_second: f64) -> (f64, usize, &'static str) {
    match bytes_per_second {
        it if it >= 1e9 => (1e9, 2, "GB/s"),
        it if it >= 1e7 => (1e6, 0, "MB/s"),
        _ => (1e6, 2, "MB/s"),
    }
}

/// A row of the table: its name, and for each subject its seconds by repetition.
struct Line {
    name: &'static str,
    bytes: f64,
    seconds: Vec<Vec<Option<f64>>>,
    unstable: Vec<bool>,
    device_share: Option<f64>,
}

/// Speeds, a column for each filesystem; what moved no device is called RAM.
pub fn speeds(report: &Report) -> String {
    let mut heading = vec!["speed".to_owned()];
    heading.extend(report.subjects.iter().map(|it| it.name.clone()));
    heading.push("from or to the device".to_owned());
    let mut rows = vec![heading];
    for line in lines(report) {
        let mut row = vec![line.name.to_owned()];
        for (seconds, unstable) in line.seconds.iter().zip(&line.unstable) {
            row.push(speed_cell(seconds, line.bytes, *unstable));
        }
        row.push(match line.device_share {
            Some(share) if share < RAM => "0 %: RAM".to_owned(),
            Some(share) => format!("{:.0} %", share * 100.0),
            None => "-".to_owned(),
        });
        rows.push(row);
    }
    format::table(&rows)
}

/// How each filesystem compares with the first, by the ratio of times of the same repetition.
pub fn differences(report: &Report) -> String {
    let Some((first, others)) = report.subjects.split_first() else {
        return String::new();
    };
    if others.is_empty() {
        return String::new();
    }
    let mut heading = vec![format!("speed, {} = 1", first.name)];
    heading.extend(others.iter().map(|it| it.name.clone()));
    let mut rows = vec![heading];
    for line in lines(report) {
        let Some((base, compared)) = line.seconds.split_first() else {
            continue;
        };
        let mut row = vec![line.name.to_owned()];
        row.extend(compared.iter().map(|it| difference(speed_ratio(base, it))));
        rows.push(row);
    }
    format::table(&rows)
}

/// Kinds of work, and the row that stands for each.
const WORK: [(&str, Row); 5] = [
    ("writing large files", Row::Write),
    ("writing past the cache", Row::WriteDirect),
    ("reading what is not cached", Row::Read),
    ("reading past the cache", Row::ReadDirect),
    ("reading what is cached", Row::ReadAgain),
];

/// A sentence for each kind of work: which filesystem is fastest and by how much, or that no difference was
/// shown, and on what. Each pair of filesystems is compared by a t test of the relative differences of the
/// repetitions, and the error of an answer is shared out among all pairs.
pub fn conclusions(report: &Report) -> Vec<String> {
    let count = report.subjects.len();
    let pairs = (count * count.saturating_sub(1) / 2).max(1);
    let level = ERROR / pairs as f64 / 2.0;
    let device = report.subjects.iter().find_map(|it| {
        let storage = it.storage.as_ref()?;
        Some(match (&storage.device, storage.kind()) {
            (Some(device), Some(kind)) => format!("{device} ({kind})"),
            (Some(device), None) => device.clone(),
            _ => "memory".to_owned(),
        })
    });
    let device = device.unwrap_or_else(|| "an unknown device".to_owned());
    let one = |(work, row): &(&str, Row)| conclusion(report, work, *row, level, &device);
    WORK.iter().filter_map(one).collect()
}

fn conclusion(report: &Report, work: &str, row: Row, level: f64, device: &str) -> Option<String> {
    let all = report.subjects.iter();
    let mut found: Vec<(&Series, f64)> = all
        .filter_map(|it| {
            let series = report.find(&it.name, &row.name())?;
            Some((series, series.estimate()?.median))
        })
        .collect();
    found.sort_by(|one, other| one.1.total_cmp(&other.1));
    let (&(best, _), others) = found.split_first()?;
    // On what the bytes were, if they were on anything.
    let is_ram = device_share(best, row.is_write()).is_some_and(|it| it < RAM);
    let place = if is_ram { "in memory" } else { device };
    if others.is_empty() {
        return None;
    }
    let slower: Vec<&Series> = others
        .iter()
        .map(|it| it.0)
        .filter(|it| is_slower(best, it, level))
        .collect();
    let alike: Vec<&str> = others
        .iter()
        .filter(|it| !slower.iter().any(|slow| slow.subject == it.0.subject))
        .map(|it| it.0.subject.as_str())
        .collect();
    let on = if is_ram {
        String::new()
    } else {
        "on ".to_owned()
    };
    let Some(next) = slower.first() else {
        let mut names = vec![best.subject.as_str()];
        names.extend(alike);
        return Some(format!(
            "{work}, {on}{place}: no difference shown between {}",
            names.join(", ")
        ));
    };
    // That it is a difference is shown already, by another test.
    let by = best
        .speed(next)
        .map_or_else(String::new, |it| format::between(&it, format::ratio));
    let options = report.subjects.iter().find(|it| it.name == best.subject);
    let options = options.map_or_else(String::new, |it| {
        let mkfs = it.commands.iter().find(|it| it.starts_with("mkfs"));
        let mkfs = mkfs.map_or_else(String::new, |it| format!("{it}; "));
        format!(" ({mkfs}mount -o {})", it.options)
    });
    let others = match alike.is_empty() {
        true => String::new(),
        false => format!("; not shown to be slower: {}", alike.join(", ")),
    };
    Some(format!(
        "{work}, {on}{place}: {}{options}, {by} times as fast as {}{others}",
        best.subject, next.subject
    ))
}

/// Beyond chance, by the repetitions that both have.
fn is_slower(fast: &Series, slow: &Series, level: f64) -> bool {
    let pairs = fast.values().into_iter().zip(slow.values());
    let leads: Vec<f64> = pairs
        .filter_map(|(fast, slow)| Some((slow? - fast?) / (slow? + fast?)))
        .collect();
    Mean::of(&leads).is_some_and(|it| it.chance_if_not_above_zero() <= level)
}

/// CPU time of the whole machine for a GiB, a column for each filesystem.
pub fn cpu(report: &Report) -> String {
    let mut heading = vec!["CPU of the machine".to_owned()];
    heading.extend(report.subjects.iter().map(|it| it.name.clone()));
    let mut rows = vec![heading];
    for (name, row) in [
        ("write, through the cache", Row::Write),
        ("write, past the cache", Row::WriteDirect),
        ("read, past the cache", Row::ReadDirect),
        ("read, through the cache", Row::Read),
        ("read again", Row::ReadAgain),
    ] {
        let mut line = vec![name.to_owned()];
        line.extend(report.subjects.iter().map(|subject| {
            let found = report
                .find(&subject.name, &row.name())
                .and_then(expense::of);
            let shown = found.and_then(|(per, it)| Some(expense::show(per, it.machine?)));
            shown.unwrap_or_else(|| "-".to_owned())
        }));
        rows.push(line);
    }
    format::table(&rows)
}

/// The repeated read, one by one: medians over the runs.
pub fn repeats(report: &Report) -> String {
    let mut heading = vec!["repeated read".to_owned()];
    heading.extend(report.subjects.iter().map(|it| it.name.clone()));
    let mut rows = vec![heading];
    for number in 0..REPEATS {
        let mut row = vec![(number + 1).to_string()];
        for subject in &report.subjects {
            let series = report.find(&subject.name, &Row::Repeat(number).name());
            row.push(series.map_or_else(
                || "-".to_owned(),
                |it| speed_cell(&it.values(), it.work.bytes as f64, it.unstable),
            ));
        }
        rows.push(row);
    }
    format::table(&rows)
}

fn lines(report: &Report) -> Vec<Line> {
    let whole = |series: &Series| series.values();
    let written = |series: &Series| {
        let samples = series.samples.iter();
        samples
            .map(|it| {
                it.as_ref()
                    .map(|it| it.value - it.sync_seconds.unwrap_or(0.0))
            })
            .collect()
    };
    let mut lines = vec![
        line(
            report,
            "write, through the cache, fdatasync included",
            Row::Write,
            whole,
        ),
        line(
            report,
            "the same, without the fdatasync",
            Row::Write,
            written,
        ),
        line(report, "write, past the cache", Row::WriteDirect, whole),
        line(report, "read, past the cache", Row::ReadDirect, whole),
        line(report, "read, through the cache", Row::Read, whole),
        line(report, "read again", Row::ReadAgain, whole),
        line(report, "repeated read, first", Row::Repeat(0), whole),
    ];
    // What was not synced never had to reach the device.
    if let Some(unsynced) = lines.get_mut(1) {
        unsynced.device_share = None;
    }
    lines.push(average_of_repeats(report));
    lines.retain(|it| it.seconds.iter().any(|it| it.iter().any(Option::is_some)));
    lines
}

fn line(
    report: &Report,
    name: &'static str,
    row: Row,
    seconds: impl Fn(&Series) -> Vec<Option<f64>>,
) -> Line {
    let found: Vec<Option<&Series>> = report
        .subjects
        .iter()
        .map(|subject| report.find(&subject.name, &row.name()))
        .collect();
    let shares: Vec<f64> = found
        .iter()
        .flatten()
        .filter_map(|it| device_share(it, row.is_write()))
        .collect();
    Line {
        name,
        bytes: found
            .iter()
            .flatten()
            .map(|it| it.work.bytes)
            .next()
            .unwrap_or(0) as f64,
        unstable: found
            .iter()
            .map(|it| it.is_some_and(|it| it.unstable))
            .collect(),
        seconds: found
            .iter()
            .map(|it| it.map_or_else(Vec::new, &seconds))
            .collect(),
        device_share: median(&shares),
    }
}

/// The second to the last repeated read of each run as one figure: their mean time.
fn average_of_repeats(report: &Report) -> Line {
    let name = "repeated read, 2 to 10, average";
    let mut average = line(report, name, Row::Repeat(1), Series::values);
    for (place, subject) in report.subjects.iter().enumerate() {
        let rest: Vec<Vec<Option<f64>>> = (1..REPEATS)
            .filter_map(|number| report.find(&subject.name, &Row::Repeat(number).name()))
            .map(Series::values)
            .collect();
        let runs = rest.iter().map(Vec::len).max().unwrap_or(0);
        let mean = |run: usize| {
            let times: Option<Vec<f64>> = rest.iter().map(|it| *it.get(run)?).collect();
            let times = times?;
            Some(times.iter().sum::<f64>() / times.len() as f64)
        };
        if let Some(seconds) = average.seconds.get_mut(place) {
            *seconds = (0..runs).map(mean).collect();
        }
    }
    average
}

fn difference(ratio: Option<Estimate>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |it| spread::describe_ratio(&it))
}

fn speed_cell(seconds: &[Option<f64>], bytes: f64, unstable: bool) -> String {
    let speeds: Vec<f64> = seconds.iter().flatten().map(|it| bytes / it).collect();
    let Some(found) = estimate(&speeds) else {
        return "-".to_owned();
    };
    let mark = if unstable { "~" } else { "" };
    format!("{mark}{}", speed_between(&found))
}

/// A speed and its interval, in one unit.
pub(crate) fn speed_between(found: &Estimate) -> String {
    let (unit, digits, name) = speed_unit(found.median);
    let show = |it: f64| format!("{:.digits$}", it / unit);
    format!("{} {name}", format::between(found, show))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::result::{Kind, Subject, Work};

    fn report(rows: &[(&str, [f64; 5])]) -> Report {
        let mut report = Report::new(Kind::Matrix, Regime::Quiet, 1);
        for (name, seconds) in rows {
            report.subjects.push(Subject {
                name: (*name).to_owned(),
                options: "noatime".to_owned(),
                commands: vec![format!("mkfs.{name} /dev/x")],
                ..Subject::default()
            });
            let work = Work {
                operations: 1024,
                bytes: 1 << 30,
            };
            let series = Series::of_seconds(name, &Row::Write.name(), work, seconds);
            report.series.push(series);
        }
        report
    }

    /// A disk of 0.4 MB/s had "0 MB/s".
    #[test]
    fn a_slow_disk_has_a_speed() {
        assert_eq!(speed_text(4e5), "0.40 MB/s");
        assert_eq!(speed_text(1.15e8), "115 MB/s");
        let found = estimate(&[4e5, 4.2e5, 3.9e5]).unwrap();
        assert_eq!(speed_between(&found), "0.40 [0.39 0.42] MB/s");
    }

    #[test]
    fn a_kind_of_work_ends_with_one_sentence() {
        let fast = [1.0, 1.01, 0.99, 1.0, 1.02];
        let alike = [1.01, 1.0, 1.0, 1.01, 1.0];
        let slow = [1.5, 1.52, 1.49, 1.5, 1.51];
        let said = conclusions(&report(&[("xfs", slow), ("ext4", fast), ("btrfs", alike)]));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with(
                "writing large files, on an unknown device: btrfs (mkfs.btrfs /dev/x; mount -o noatime), 1.50 ["
            ) || said[0].contains(": ext4 (mkfs.ext4"),
            "{said:?}"
        );
        assert!(
            said[0].contains("times as fast as xfs; not shown to be slower: "),
            "{said:?}"
        );
        let said = conclusions(&report(&[("xfs", alike), ("ext4", fast)]));
        assert!(said[0].contains("no difference shown between"), "{said:?}");
        // "too few samples: 1.50 [1.49 1.52] times as fast" contradicted itself.
        let mut few = report(&[("xfs", slow), ("ext4", fast)]);
        for series in &mut few.series {
            series.samples.truncate(4);
        }
        let said = conclusions(&few);
        assert!(
            said[0].contains("), 1.50 [1.50 1.51] times as fast as xfs"),
            "{said:?}"
        );
        assert_eq!(conclusions(&report(&[("xfs", fast)])), [""; 0]);
    }
}
