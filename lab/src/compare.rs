//! Two results of the same benchmark: what became slower or faster beyond chance.
//!
//! Repetitions of two runs do not belong together, so the interval of the ratio of medians comes
//! from resampling each side by itself. Where a report holds the bare filesystem (or another base
//! that is not what is judged), figures are first set against it, repetition by repetition: a
//! machine that was slower as a whole on the second day is not taken for a slower subject. What
//! shows the machine alone is shown, and is no regression.

use crate::error::BenchError;
use crate::format;
use crate::result::{Kind, Report, Sample, Series, Subject, Unit};
use crate::stats::{Estimate, ratio_of_medians};
use crate::storage::Medium;
use crate::subject::Family;

/// A change that nobody needs to hear of, unless another is asked for.
pub const THRESHOLD: f64 = 0.05;

/// Settings that make another work of it: such results are not set against each other.
const DECISIVE: [&str; 9] = [
    "size", "files", "block", "iodepth", "ioengine", "rate", "callers", "flags", "user",
];
/// Of the times of operations that began at a fixed rate: those that are compared, and their names.
const TIMES: [(Option<f64>, &str); 3] = [
    (None, "mean time"),
    (Some(50.0), "time of half"),
    (Some(99.0), "time of 99 %"),
];

/// What a row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Slower, clear of noise and by more than the threshold: a regression.
    Slower,
    /// Faster, likewise.
    Faster,
    /// No change as large as the threshold.
    Same,
    /// None of these: the samples lie too far apart.
    None,
    /// Too few samples on a side for an interval.
    Unclear,
}

/// One workload on one subject in both results.
#[derive(Clone, Debug)]
pub struct Row {
    /// The subject.
    pub subject: String,
    /// The workload.
    pub workload: String,
    /// The base that both sides were set against, if any.
    pub against: Option<String>,
    /// Speed after, before = 1.
    pub ratio: Estimate,
    /// What that means.
    pub change: Change,
    /// Whether it shows the machine rather than what is judged beside it.
    pub is_machine: bool,
}

/// Everything that was found.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// What both results have.
    pub rows: Vec<Row>,
    /// Sentences a reader needs: what only one has, machines that differ.
    pub notes: Vec<String>,
    /// A change that nobody needs to hear of.
    pub threshold: f64,
}

/// Compares. With `absolute`, nothing is set against a base.
///
/// # Errors
/// [`BenchError::Usage`] for results of different benchmarks, or that have nothing in common.
pub fn compare(
    before: &Report,
    after: &Report,
    threshold: f64,
    absolute: bool,
) -> Result<Comparison, BenchError> {
    if before.kind != after.kind {
        return Err(BenchError::Usage(format!(
            "one is a result of `bench {}`, the other of `bench {}`",
            before.kind.name(),
            after.kind.name()
        )));
    }
    let unlike = unlike_runs(before, after);
    if !unlike.is_empty() {
        return Err(BenchError::Usage(format!(
            "the two results are of different work and are not compared: {}",
            unlike.join("; ")
        )));
    }
    let mut found = Comparison {
        rows: Vec::new(),
        notes: differences(before, after),
        threshold,
    };
    let (before, after) = (&with_times(before), &with_times(after));
    for series in &after.series {
        let Some(old) = before.find(&series.subject, &series.workload) else {
            found.notes.push(only("second", series));
            continue;
        };
        match unlike_rows((before, old), (after, series)) {
            Some(why) => found.notes.push(format!(
                "{} on {} is not compared: {why}",
                series.workload, series.subject
            )),
            None => {
                let row = row((before, old), (after, series), threshold, absolute);
                found.rows.extend(row);
            }
        }
    }
    for series in &before.series {
        if after.find(&series.subject, &series.workload).is_none() {
            found.notes.push(only("first", series));
        }
    }
    if found.rows.is_empty() {
        return Err(BenchError::Usage(format!(
            "the two results have no measurement in common that can be compared: {}",
            found.notes.join("; ")
        )));
    }
    Ok(found)
}

/// The rounds that are in the figures; where the rate is fixed with a row for the times, which alone can differ.
fn with_times(report: &Report) -> Report {
    let mut report = report.in_window();
    let is_fixed = |it: &Series| it.samples.iter().flatten().any(|it| it.service.is_some());
    let fixed: Vec<Series> = report
        .series
        .iter()
        .filter(|it| is_fixed(it))
        .cloned()
        .collect();
    for series in fixed {
        for (percentile, name) in TIMES {
            let seconds = |it: &Sample| {
                let times = it.latency.as_ref()?;
                let Some(wanted) = percentile else {
                    return Some(times.mean);
                };
                let mut known = times.percentiles.iter();
                known.find(|it| it.0 == wanted).map(|it| it.1)
            };
            let sample = |it: &Option<Sample>| {
                let value = seconds(it.as_ref()?).filter(|it| *it > 0.0)?;
                Some(Sample {
                    value,
                    ..Sample::default()
                })
            };
            let samples: Vec<Option<Sample>> = series.samples.iter().map(sample).collect();
            if samples.iter().flatten().next().is_some() {
                report.series.push(Series {
                    workload: format!("{}, {name}", series.workload),
                    unit: Unit::Seconds,
                    samples,
                    ..series.clone()
                });
            }
        }
    }
    report
}

/// Why nothing in two results is of the same work.
fn unlike_runs(before: &Report, after: &Report) -> Vec<String> {
    let mut said = Vec::new();
    if before.regime != after.regime {
        said.push(format!(
            "{} before, {} after",
            before.regime.name(),
            after.regime.name()
        ));
    }
    for name in DECISIVE {
        let (old, new) = (before.settings.get(name), after.settings.get(name));
        if old != new {
            let shown = |it: Option<&String>| it.map_or("none", String::as_str).to_owned();
            said.push(format!(
                "{name} {} before, {} after",
                shown(old),
                shown(new)
            ));
        }
    }
    said
}

/// Why two rows of one name are not of the same work.
fn unlike_rows(before: (&Report, &Series), after: (&Report, &Series)) -> Option<String> {
    let (old, new) = (before.1, after.1);
    if old.unit != new.unit {
        return Some("it is counted in different units".to_owned());
    }
    if old.cache != new.cache {
        return Some("it began with different caches".to_owned());
    }
    // Amounts may differ: they follow the speed. Calls of another size are another work.
    let block = |it: &Series| it.work.bytes.checked_div(it.work.operations);
    if block(old) != block(new) {
        return Some("its blocks have different sizes".to_owned());
    }
    let subject = |(report, series): (&Report, &Series)| {
        let mut all = report.subjects.iter();
        all.find(|it| it.name == series.subject).cloned()
    };
    let (old, new) = subject(before).zip(subject(after))?;
    if old.branches != new.branches {
        return Some(format!(
            "{} branches before, {} after",
            old.branches, new.branches
        ));
    }
    let way = |it: &Subject| {
        let known = it.transport.clone();
        known.unwrap_or_else(|| transport(&it.options).to_owned())
    };
    let (old_way, new_way) = match (&old.transport, &new.transport) {
        // What was asked for is compared with what was asked for.
        (Some(_), Some(_)) => (way(&old), way(&new)),
        _ => (
            transport(&old.options).to_owned(),
            transport(&new.options).to_owned(),
        ),
    };
    if old_way != new_way {
        return Some(format!("transport {old_way} before, {new_way} after"));
    }
    let kind = |it: &Subject| {
        it.storage
            .as_ref()
            .map(|it| (it.filesystem.clone(), it.medium))
    };
    let (old_kind, new_kind) = (kind(&old), kind(&new));
    (old_kind != new_kind).then(|| {
        let name = |it: Option<(String, Medium)>| it.map_or("nothing known".to_owned(), |it| it.0);
        format!(
            "it lay on {} before, on {} after",
            name(old_kind),
            name(new_kind)
        )
    })
}

/// What requests came over, as far as it was asked for.
fn transport(options: &str) -> &str {
    let mut words = options.split(',');
    let asked = words.rfind(|it| it.starts_with("transport="));
    asked.map_or("as it was chosen", |it| it.trim_start_matches("transport="))
}

impl Comparison {
    /// Whether anything but the machine became slower clear of noise.
    pub fn is_regression(&self) -> bool {
        self.count(Change::Slower) > 0
    }

    /// How many rows show this, those of the machine apart.
    pub fn count(&self, change: Change) -> usize {
        let judged = self.rows.iter().filter(|it| !it.is_machine);
        judged.filter(|it| it.change == change).count()
    }

    /// The rows as text, with those that did not change only if `all`.
    pub fn table(&self, all: bool) -> String {
        let mut rows = vec![
            ["measurement", "speed, before = 1", "against", ""]
                .map(str::to_owned)
                .to_vec(),
        ];
        let shown = |row: &&Row| all || !matches!(row.change, Change::Same | Change::None);
        for row in self.rows.iter().filter(shown) {
            let it = row.ratio;
            rows.push(vec![
                format!("{}, {}", row.subject, row.workload),
                format::between(&it, format::ratio),
                row.against.clone().unwrap_or_else(|| "-".to_owned()),
                match (row.is_machine, row.change) {
                    (true, Change::Slower) => "slower: the machine".to_owned(),
                    (true, Change::Faster) => "faster: the machine".to_owned(),
                    (_, change) => change.words(self.threshold),
                },
            ]);
        }
        match rows.len() {
            1 => String::new(),
            _ => format::table(&rows),
        }
    }

    /// One line that says it all.
    pub fn summary(&self) -> String {
        format!(
            "{} slower, {} faster, {} {}, {} not told apart, {} with too few samples",
            self.count(Change::Slower),
            self.count(Change::Faster),
            self.count(Change::Same),
            Change::Same.words(self.threshold),
            self.count(Change::None),
            self.count(Change::Unclear)
        )
    }
}

impl Change {
    fn words(self, threshold: f64) -> String {
        match self {
            Self::Slower => "SLOWER".to_owned(),
            Self::Faster => "faster".to_owned(),
            Self::Same => format!("within {} % of before", threshold * 100.0),
            Self::None => "not told apart: the samples lie too far apart".to_owned(),
            Self::Unclear => "too few samples".to_owned(),
        }
    }
}

fn row(
    before: (&Report, &Series),
    after: (&Report, &Series),
    threshold: f64,
    absolute: bool,
) -> Option<Row> {
    let base = match absolute {
        true => None,
        false => common_base(before.0, after.0, after.1),
    };
    let speeds = |(report, series): (&Report, &Series)| match &base {
        Some(base) => relative_speeds(report.find(base, &series.workload)?, series),
        None => Some(speeds(series)),
    };
    let ratio = ratio_of_medians(&speeds(before)?, &speeds(after)?)?;
    let change = match ratio {
        it if !it.is_interval => Change::Unclear,
        it if it.high < 1.0 - threshold => Change::Slower,
        it if it.low > 1.0 + threshold => Change::Faster,
        it if it.low >= 1.0 - threshold && it.high <= 1.0 + threshold => Change::Same,
        _ => Change::None,
    };
    Some(Row {
        is_machine: !absolute && is_machine(after.0, &after.1.subject),
        subject: after.1.subject.clone(),
        workload: after.1.workload.clone(),
        against: base,
        ratio,
        change,
    })
}

/// The bare filesystem beside which the series was measured in both results.
fn common_base(before: &Report, after: &Report, series: &Series) -> Option<String> {
    let base = after.base_of(&series.subject)?;
    let is_bare = |report: &Report| {
        let subject = report.subjects.iter().find(|it| it.name == base);
        subject.is_some_and(|it| it.family == Family::Native)
            && report.base_of(&series.subject) == Some(base)
            && report.find(base, &series.workload).is_some()
    };
    (is_bare(before) && is_bare(after)).then(|| base.to_owned())
}

/// Whether what was measured there is the machine: the bare filesystem or device below the others,
/// memory, another program beside.
fn is_machine(report: &Report, subject: &str) -> bool {
    let known = report.subjects.iter().find(|it| it.name == subject);
    match known.map_or(Family::Other, |it| it.family) {
        Family::Native => true,
        Family::Strandfs | Family::Mergerfs => false,
        Family::Other => matches!(
            report.kind,
            Kind::Layers | Kind::Blocksize | Kind::Passthrough
        ),
    }
}

/// Work a second, by repetition.
fn speeds(series: &Series) -> Vec<f64> {
    let seconds = series.seconds_per(series.work.bytes > 0);
    seconds.into_iter().flatten().map(|it| 1.0 / it).collect()
}

/// Speeds as shares of the base's in the same repetition.
fn relative_speeds(base: &Series, series: &Series) -> Option<Vec<f64>> {
    if base.unit != series.unit {
        return None;
    }
    let by_bytes = base.work.bytes > 0 && series.work.bytes > 0;
    let (base, own) = (base.seconds_per(by_bytes), series.seconds_per(by_bytes));
    let pairs = base.iter().zip(&own);
    Some(
        pairs
            .filter_map(|(base, own)| Some((*base)? / (*own)?))
            .collect(),
    )
}

fn only(which: &str, series: &Series) -> String {
    format!(
        "only the {which} result has {} on {}",
        series.workload, series.subject
    )
}

/// What may explain a difference other than the program.
fn differences(before: &Report, after: &Report) -> Vec<String> {
    let mut said = Vec::new();
    let (old, new) = (&before.environment, &after.environment);
    let facts = [
        ("kernel", old.kernel.clone(), new.kernel.clone()),
        ("CPU", old.cpu_model.clone(), new.cpu_model.clone()),
        ("number of CPUs", old.cpus.to_string(), new.cpus.to_string()),
    ];
    for (name, old, new) in facts {
        if old != new {
            said.push(format!("the {name} differs: {old} before, {new} after"));
        }
    }
    for old in &before.subjects {
        let new = after.subjects.iter().find(|it| it.name == old.name);
        let (Some(was), Some(is)) = (&old.storage, new.and_then(|it| it.storage.as_ref())) else {
            continue;
        };
        if was.describe() != is.describe() {
            let (name, was, is) = (&old.name, was.describe(), is.describe());
            said.push(format!("{name} lay on {was} before, on {is} after"));
        }
    }
    for (name, old) in &before.settings {
        // Measured rather than set; the device's number is chance.
        let is_plan = name.starts_with("look") || name.starts_with("level of");
        if is_plan || matches!(name.as_str(), "generator" | "device") {
            continue;
        }
        if let Some(new) = after.settings.get(name).filter(|new| *new != old) {
            said.push(format!("{name} differs: {old} before, {new} after"));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::result::{Cache, Kind, Work};

    fn report(rows: &[(&str, Family, &[f64])]) -> Report {
        let mut report = Report::new(Kind::Metadata, Regime::Quiet, 1);
        for (name, family, seconds) in rows {
            report.subjects.push(Subject {
                name: (*name).to_owned(),
                family: *family,
                ..Subject::default()
            });
            let series = Series::of_seconds(name, "create", Work::default(), seconds);
            report.series.push(series);
        }
        report
    }

    const FAST: [f64; 6] = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0];
    const SLOW: [f64; 6] = [1.5, 1.52, 1.48, 1.51, 1.49, 1.5];

    #[test]
    fn a_slower_subject_is_a_regression_and_the_other_way_round_it_is_none() {
        let one = report(&[("a", Family::Strandfs, &FAST)]);
        let two = report(&[("a", Family::Strandfs, &SLOW)]);
        let found = compare(&one, &two, THRESHOLD, false).unwrap();
        assert!(found.is_regression());
        assert!((found.rows[0].ratio.median - 0.667).abs() < 0.01);
        assert!(found.table(false).contains("SLOWER"));
        let back = compare(&two, &one, THRESHOLD, false).unwrap();
        assert_eq!(
            (back.is_regression(), back.count(Change::Faster)),
            (false, 1)
        );
    }

    #[test]
    fn noise_a_small_change_and_few_samples_are_no_regression() {
        let one = report(&[("a", Family::Other, &FAST)]);
        let wild = report(&[("a", Family::Other, &[0.7, 1.6, 0.9, 1.4, 1.1, 1.2])]);
        let found = compare(&one, &wild, THRESHOLD, false).unwrap();
        assert!(!found.is_regression());
        // "No measurable difference" was said of this and of the next alike.
        assert_eq!(found.count(Change::None), 1, "{found:?}");
        assert!(found.table(true).contains("not told apart"));
        let little: Vec<f64> = FAST.iter().map(|it| it * 1.01).collect();
        let two = report(&[("a", Family::Other, &little)]);
        let found = compare(&one, &two, THRESHOLD, false).unwrap();
        assert!(!found.is_regression());
        assert_eq!(found.count(Change::Same), 1, "{found:?}");
        assert!(found.table(true).contains("within 5 % of before"));
        let few = report(&[("a", Family::Other, &[9.0, 9.0])]);
        let found = compare(&one, &few, THRESHOLD, false).unwrap();
        assert_eq!(found.count(Change::Unclear), 1);
        assert!(!found.is_regression());
    }

    #[test]
    fn a_machine_that_is_slower_as_a_whole_is_no_regression() {
        let one = report(&[
            ("native", Family::Native, &FAST),
            ("a", Family::Strandfs, &FAST),
        ]);
        let two = report(&[
            ("native", Family::Native, &SLOW),
            ("a", Family::Strandfs, &SLOW),
        ]);
        let found = compare(&one, &two, THRESHOLD, false).unwrap();
        let ours = found.rows.iter().find(|it| it.subject == "a").unwrap();
        assert_eq!(ours.against.as_deref(), Some("native"));
        assert_eq!(ours.change, Change::Same);
        // The bare filesystem itself has nothing to be set against; it is shown.
        assert!(!found.is_regression());
        assert!(found.table(false).contains("slower: the machine"));
        let found = compare(&one, &two, THRESHOLD, true).unwrap();
        assert_eq!(found.count(Change::Slower), 2);
    }

    #[test]
    fn equal_runs_are_rarely_told_apart() {
        let mut random = fastrand::Rng::with_seed(9);
        let mut draw = || -> Vec<f64> { (0..8).map(|_| 1.0 + 0.2 * random.f64()).collect() };
        let alarms = (0..200).filter(|_| {
            let one = report(&[("a", Family::Other, &draw())]);
            let two = report(&[("a", Family::Other, &draw())]);
            compare(&one, &two, 0.0, false).unwrap().is_regression()
        });
        assert!(alarms.count() <= 6);
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        let one = report(&[("a", Family::Other, &FAST)]);
        let mut other = report(&[("b", Family::Other, &FAST)]);
        assert!(compare(&one, &other, THRESHOLD, false).is_err());
        other.series.extend(one.series.clone());
        let found = compare(&one, &other, THRESHOLD, false).unwrap();
        assert!(found.notes.iter().any(|it| it.contains("only the second")));
        other.kind = Kind::Matrix;
        let error = compare(&one, &other, THRESHOLD, false).unwrap_err();
        assert!(error.to_string().contains("bench matrix"), "{error}");
    }

    fn timed(mean: f64) -> Report {
        let mut report = Report::new(Kind::Latency, Regime::Quiet, 1);
        report
            .settings
            .insert("rate".to_owned(), "200 operations a second".to_owned());
        report.subjects.push(Subject {
            name: "a".to_owned(),
            family: Family::Strandfs,
            ..Subject::default()
        });
        let mut series = Series::of_seconds("a", "read", Work::default(), &FAST.map(|_| 200.0));
        series.unit = Unit::OperationsPerSecond;
        for (sample, share) in series.samples.iter_mut().flatten().zip(FAST) {
            sample.service = Some(crate::result::Latency::default());
            sample.latency = Some(crate::result::Latency {
                count: 200,
                mean: mean * share,
                percentiles: vec![(50.0, mean * share), (99.0, 2.0 * mean * share)],
            });
        }
        report.series.push(series);
        report
    }

    /// The rate was the same, and every operation took a hundred times as long.
    #[test]
    fn at_a_fixed_rate_it_is_the_times_that_are_compared() {
        let found = compare(&timed(1e-4), &timed(1e-2), THRESHOLD, false).unwrap();
        assert!(found.is_regression(), "{found:?}");
        let found = compare(&timed(1e-2), &timed(1e-4), THRESHOLD, false).unwrap();
        assert!(!found.is_regression() && found.count(Change::Faster) > 0);
        let same = compare(&timed(1e-4), &timed(1e-4), THRESHOLD, false).unwrap();
        assert!(!same.is_regression());
    }

    /// Writes that wait for storage were set against writes that do not, eight callers against one.
    #[test]
    fn other_callers_and_other_flags_are_another_work() {
        for (name, before, after) in [("callers", "1", "8"), ("flags", "", "O_DSYNC")] {
            let (mut one, mut two) = (timed(1e-4), timed(1e-4));
            one.settings.insert(name.to_owned(), before.to_owned());
            two.settings.insert(name.to_owned(), after.to_owned());
            let error = compare(&one, &two, THRESHOLD, false).unwrap_err();
            assert!(error.to_string().contains(&format!("{name} ")), "{error}");
        }
    }

    /// Other sizes, transports, targets: seen as "slower", which they were not.
    #[test]
    fn what_is_of_other_work_is_never_a_regression() {
        let one = report(&[("a", Family::Strandfs, &FAST)]);
        let slow = report(&[("a", Family::Strandfs, &SLOW)]);
        let refused = |change: &dyn Fn(&mut Report), said: &str| {
            let mut two = slow.clone();
            change(&mut two);
            let error = compare(&one, &two, THRESHOLD, false).unwrap_err();
            assert!(matches!(error, BenchError::Usage(_)));
            assert!(error.to_string().contains(said), "{error}");
        };
        refused(
            &|it| {
                it.settings.insert("size".to_owned(), "8 MiB".to_owned());
            },
            "size none before, 8 MiB after",
        );
        refused(&|it| it.regime = Regime::Busy, "before, ");
        refused(
            &|it| it.subjects[0].options = "x=1,transport=uring".to_owned(),
            "transport as it was chosen before, uring after",
        );
        refused(
            &|it| it.subjects[0].branches = 8,
            "0 branches before, 8 after",
        );
        refused(
            &|it| {
                it.series[0].work = Work {
                    operations: 4,
                    bytes: 2048,
                };
            },
            "different sizes",
        );
        refused(&|it| it.series[0].unit = Unit::OperationsPerSecond, "units");
        refused(&|it| it.series[0].cache = Cache::Cold, "caches");
        // What differs otherwise is compared, row by row.
        let mut two = report(&[
            ("a", Family::Strandfs, &SLOW),
            ("b", Family::Strandfs, &SLOW),
        ]);
        let mut one = report(&[
            ("a", Family::Strandfs, &FAST),
            ("b", Family::Strandfs, &FAST),
        ]);
        two.subjects[0].branches = 2;
        one.settings.insert("pause".to_owned(), "1 s".to_owned());
        let found = compare(&one, &two, THRESHOLD, false).unwrap();
        assert_eq!((found.rows.len(), found.count(Change::Slower)), (1, 1));
        assert!(
            found
                .notes
                .iter()
                .any(|it| it.contains("create on a is not compared"))
        );
    }
}
