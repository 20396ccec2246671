//! From samples to answers: the parts of every row, the layer they name, and what to try.

use super::attribution::{Layer, LevelTimes, Table};
use super::plan::{LINE, Mode, Transport, main_rows};
use crate::format;
use crate::result::{Part, Report, Series, Subject, Verdict};
use crate::sequential::Looks;
use crate::stats::Estimate;
use crate::storage::Medium;
use crate::trial::{Open, Question, Row};
use crate::verdict::{Finding, Judgement, MOST_FURTHER_RUNS, further, judge};

/// What an answer about all rows together is about.
pub const ALL_ROWS: &str = "all rows";
pub(super) const MIB: f64 = 1048576.0;

/// Which subject stands for which level, for one target and one way.
#[derive(Clone, Debug)]
pub struct Names {
    /// The target, bare.
    pub target: String,
    /// The way's name.
    pub way: String,
    /// Its mode.
    pub mode: Mode,
    /// What its requests come over.
    pub transport: Transport,
    /// Memory-backed storage, bare.
    pub memory: String,
    /// The pool over it.
    pub pool_memory: String,
    /// The pool over the target.
    pub pool_target: String,
}

/// An answer for every target, way and row, and one for all rows of each, at the level of a look.
pub fn verdicts(report: &Report, all: &[Names], level: f64) -> Vec<Verdict> {
    let mut found = Vec::new();
    for names in all {
        let rows = rows(&report.series, names);
        let left_out = left_out(&report.series, names);
        if !left_out.is_empty() {
            found.push(unanswered(names, &left_out));
        } else if rows.len() > 1 {
            let table = together(&rows);
            found.push(answer(report, names, ALL_ROWS, "", (&table, level)));
        }
        for (row, levels) in &rows {
            let per = if row.is_by_mib() { "MiB" } else { "operation" };
            let table = Table::new(&[levels]);
            found.push(answer(report, names, row.name(), per, (&table, level)));
        }
    }
    found
}

/// What a run is to answer: which layer it is in all rows, and, with `each_row`, in every single one.
pub fn question(all: Vec<Names>, looks: Looks, each_row: bool) -> Question {
    Box::new(move |series, done| {
        if !looks.is_due(done) {
            return None;
        }
        let mut open = Open::default();
        for names in &all {
            let rows = rows(series, names);
            let needs = |row: &Row| {
                [
                    &names.memory,
                    &names.pool_memory,
                    &names.target,
                    &names.pool_target,
                ]
                .map(|subject| (row.name().to_owned(), subject.clone()))
            };
            // Without all rows there is no answer about all of them, however long one measures.
            let is_single = rows.len() == 1 || !left_out(series, names).is_empty();
            if !is_single && let Some(more) = further(&together(&rows), looks.level()) {
                open.more = open.more.max(more);
                open.cells.extend(rows.iter().flat_map(|it| needs(&it.0)));
            }
            for (row, levels) in rows.iter().filter(|_| each_row || is_single) {
                if let Some(more) = further(&Table::new(&[levels]), looks.level()) {
                    open.more = open.more.max(more);
                    open.cells.extend(needs(row));
                }
            }
        }
        Some(open)
    })
}

/// The rows that were asked for and that a level has not: those that would take too long there, or fail.
fn left_out(series: &[Series], names: &Names) -> Vec<String> {
    let has = |subject: &str, row: &Row| {
        let mut all = series.iter();
        all.any(|it| it.subject == subject && it.workload == row.name())
    };
    let levels = [
        &names.memory,
        &names.pool_memory,
        &names.target,
        &names.pool_target,
    ];
    main_rows()
        .into_iter()
        // The generator, at least, can do every row.
        .filter(|row| series.iter().any(|it| it.workload == row.name()))
        .filter(|row| !levels.into_iter().all(|level| has(level, row)))
        .map(|row| row.name().to_owned())
        .collect()
}

/// To judge by the rows that are fast enough would leave out what is slow.
fn unanswered(names: &Names, left_out: &[String]) -> Verdict {
    Verdict {
        about: ALL_ROWS.to_owned(),
        subject: names.pool_target.clone(),
        layer: None,
        share: None,
        text: format!(
            "cannot tell: without {}, which {} too long or failed here (see the notes), the others say \
             nothing of all rows",
            left_out.join(", "),
            if left_out.len() == 1 { "takes" } else { "take" }
        ),
        parts: Vec::new(),
        per: String::new(),
        tried: Vec::new(),
    }
}

/// The rows that all four levels have.
fn rows(series: &[Series], names: &Names) -> Vec<(Row, LevelTimes)> {
    let times = |subject: &str, row: &Row| {
        let mut own = series.iter();
        own.find(|it| it.subject == subject && it.workload == row.name())
            .map(unit_seconds)
    };
    let of = |row: Row| {
        let levels = LevelTimes {
            memory: times(&names.memory, &row)?,
            pool_memory: times(&names.pool_memory, &row)?,
            target: times(&names.target, &row)?,
            pool_target: times(&names.pool_target, &row)?,
        };
        Some((row, levels))
    };
    main_rows().into_iter().filter_map(of).collect()
}

fn together(rows: &[(Row, LevelTimes)]) -> Table {
    let levels: Vec<&LevelTimes> = rows.iter().map(|it| &it.1).collect();
    Table::new(&levels)
}

/// Seconds of a MiB for large blocks, of an operation for small ones.
pub fn unit_seconds(series: &Series) -> Vec<Option<f64>> {
    let by_mib = series.is_by_bytes();
    let factor = if by_mib { MIB } else { 1.0 };
    let times = series.seconds_per(by_mib);
    times
        .into_iter()
        .map(|it| it.map(|it| it * factor))
        .collect()
}

fn answer(
    report: &Report,
    names: &Names,
    about: &str,
    per: &str,
    (table, level): (&Table, f64),
) -> Verdict {
    let Judgement { finding, parts } = judge(table, level);
    let part = |(layer, seconds): (Layer, Estimate)| Part {
        layer: layer.name().to_owned(),
        seconds,
    };
    let storage = report.subjects.iter().find(|it| it.name == names.target);
    let (layer, share) = match &finding {
        Finding::Layer(layer, share) => (Some(layer.name().to_owned()), Some(*share)),
        _ => (None, None),
    };
    let text = sentence(report, names, about, &finding, storage);
    Verdict {
        about: about.to_owned(),
        subject: names.pool_target.clone(),
        layer,
        share,
        text,
        parts: Layer::ALL.into_iter().zip(parts).map(part).collect(),
        per: per.to_owned(),
        tried: Vec::new(),
    }
}

fn sentence(
    report: &Report,
    names: &Names,
    about: &str,
    finding: &Finding,
    storage: Option<&Subject>,
) -> String {
    match finding {
        Finding::Layer(layer, share) => {
            let what = title(*layer, names, storage);
            let knob = match layer {
                Layer::Machine => Some("No part above it costs as much.".to_owned()),
                Layer::Storage => {
                    Some("Look at the device, its filesystem and their mount options.".to_owned())
                }
                Layer::Pool | Layer::Together => better_mode(report, names, about),
            };
            let Estimate {
                median, low, high, ..
            } = share;
            let [median, low, high] = [median, low, high].map(|it| percent(*it));
            let knob = knob.map_or_else(String::new, |it| format!(" {it}"));
            format!("{what}: {median} % of the time [{low} {high}].{knob}")
        }
        Finding::Alike(one, other) => format!(
            "cannot tell: {} and {} cost about the same, and more runs would not change that",
            title(*one, names, storage),
            title(*other, names, storage)
        ),
        Finding::Needs(more) if *more >= MOST_FURTHER_RUNS => {
            "cannot tell: the samples lie too far apart; end what else the machine does".to_owned()
        }
        Finding::Needs(more) => format!(
            "cannot tell: about {more} more {} needed (--max-reps {}, --time-limit)",
            if *more == 1 {
                "repetition"
            } else {
                "repetitions"
            },
            report.repetitions + more
        ),
        Finding::Contradictory => {
            "cannot tell: the pool over the target takes less time than its parts; \
            a cache hides what lies below, or a level was disturbed"
                .to_owned()
        }
        Finding::NoSamples => "cannot tell: a level has no samples, see the notes".to_owned(),
    }
}

fn title(layer: Layer, names: &Names, storage: Option<&Subject>) -> String {
    match layer {
        Layer::Machine => "the machine (memory, system calls)".to_owned(),
        Layer::Pool => format!("the pool (FUSE and its server, {})", names.way),
        Layer::Storage => {
            let facts = storage.and_then(|it| it.storage.as_ref());
            let medium = match facts.map(|it| it.medium) {
                Some(Medium::Network) => "the network storage",
                _ => "the storage",
            };
            let kind = facts.map_or_else(String::new, |it| format!(" ({})", it.describe()));
            format!("{medium} {}{kind}", names.target)
        }
        Layer::Together => format!(
            "what the pool and {} cost together beyond what each costs alone",
            names.target
        ),
    }
}

/// Another mode that was measured to be faster here.
fn better_mode(report: &Report, names: &Names, about: &str) -> Option<String> {
    let own = report.find(&names.pool_target, about)?;
    let others = Mode::ALL.into_iter().filter(|it| *it != names.mode);
    let faster = others.filter_map(|mode| {
        let options = mode.options();
        let subject = report.subjects.iter().find(|it| {
            it.base.as_deref() == Some(&names.target)
                && it.options.starts_with(options)
                && it.name != names.pool_target
        })?;
        let ratio = report.find(&subject.name, about)?.speed(own)?;
        (ratio.is_interval && ratio.low > 1.0).then_some((mode, ratio))
    });
    let (mode, ratio) = faster.max_by(|one, other| one.1.median.total_cmp(&other.1.median))?;
    Some(format!(
        "Try {}: measured here {} times as fast.",
        mode.options(),
        format::between(&ratio, format::ratio)
    ))
}

fn percent(share: f64) -> String {
    format!("{:.0}", share * 100.0)
}

/// Whether a row is one that is judged, rather than one of the line through block sizes.
pub fn is_judged(row: &str) -> bool {
    row != LINE && main_rows().iter().any(|it| it.name() == row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::result::{Kind, Work};

    fn add(report: &mut Report, subject: &str, options: &str, base: Option<&str>, seconds: f64) {
        report.subjects.push(Subject {
            name: subject.to_owned(),
            options: options.to_owned(),
            base: base.map(str::to_owned),
            ..Subject::default()
        });
        for row in ["write-1m", "write-512"] {
            let block_bytes = if row == "write-1m" { 1 << 20 } else { 512 };
            let work = Work {
                operations: 64,
                bytes: 64 * block_bytes,
            };
            let values: Vec<f64> = (0..9)
                .map(|it| seconds * (1.0 + f64::from(it) / 100.0))
                .collect();
            report
                .series
                .push(Series::of_seconds(subject, row, work, &values));
        }
    }

    fn names(mode: Mode) -> Names {
        Names {
            target: "/disk".to_owned(),
            way: mode.name().to_owned(),
            mode,
            transport: Transport::Device,
            memory: "tmpfs".to_owned(),
            pool_memory: "pool".to_owned(),
            pool_target: "pool on disk".to_owned(),
        }
    }

    fn report(tmpfs: f64, pool: f64, disk: f64, both: f64) -> Report {
        let mut report = Report::new(Kind::Layers, Regime::Quiet, 1);
        report.repetitions = 9;
        add(&mut report, "tmpfs", "", None, tmpfs);
        add(&mut report, "pool", "", Some("tmpfs"), pool);
        add(&mut report, "/disk", "", None, disk);
        add(
            &mut report,
            "pool on disk",
            Mode::Direct.options(),
            Some("/disk"),
            both,
        );
        report
    }

    #[test]
    fn a_slow_disk_is_named_with_its_share_and_units() {
        let found = verdicts(
            &report(0.64, 1.28, 6.4, 7.04),
            &[names(Mode::Direct)],
            0.001,
        );
        let about: Vec<&str> = found.iter().map(|it| it.about.as_str()).collect();
        assert_eq!(about, [ALL_ROWS, "write-1m", "write-512"]);
        for verdict in &found {
            assert_eq!(verdict.layer.as_deref(), Some("storage"), "{verdict:?}");
            assert!(
                verdict.text.contains("the storage /disk: 82 %"),
                "{}",
                verdict.text
            );
        }
        // 5.76 s more than memory for 64 MiB, and for 64 operations.
        assert_eq!(found[1].per, "MiB");
        assert!(
            (found[1].parts[2].seconds.median / 0.09 - 1.0).abs() < 0.1,
            "{found:?}"
        );
        assert_eq!(found[2].per, "operation");
        assert!((found[2].parts[2].seconds.median / 0.09 - 1.0).abs() < 0.1);
    }

    /// The rows that were fast enough were the pool's, and the pool was named on a device of 1 MiB/s.
    #[test]
    fn what_was_too_slow_to_measure_is_not_left_out_of_the_answer() {
        let mut report = report(0.64, 6.4, 0.65, 6.5);
        report
            .series
            .retain(|it| it.workload != "write-1m" || !it.subject.contains("disk"));
        let found = verdicts(&report, &[names(Mode::Direct)], 0.001);
        assert_eq!(
            (found[0].about.as_str(), &found[0].layer),
            (ALL_ROWS, &None)
        );
        assert!(
            found[0].text.contains("cannot tell: without write-1m"),
            "{found:?}"
        );
        assert_eq!(found[1].layer.as_deref(), Some("pool"));
        let open = question(vec![names(Mode::Direct)], Looks::plan(9, 9, false), false);
        let open = open(&report.series, 9).unwrap();
        assert!(open.cells.is_empty(), "{open:?}");
    }

    #[test]
    fn a_row_that_failed_on_every_pool_is_not_left_out_of_the_answer() {
        let mut report = report(0.64, 6.4, 0.65, 6.5);
        report
            .series
            .retain(|it| it.workload != "write-1m" || !it.subject.contains("pool"));
        let found = verdicts(&report, &[names(Mode::Direct)], 0.001);
        assert!(
            found[0].text.contains("cannot tell: without write-1m"),
            "{found:?}"
        );
    }

    #[test]
    fn a_slow_pool_is_named_and_the_mode_that_is_faster() {
        let mut report = report(0.64, 6.4, 0.65, 6.5);
        add(
            &mut report,
            "faster",
            Mode::Passthrough.options(),
            Some("/disk"),
            1.3,
        );
        let found = verdicts(&report, &[names(Mode::Direct)], 0.001);
        assert_eq!(found[1].layer.as_deref(), Some("pool"), "{found:?}");
        let said = &found[1].text;
        assert!(
            said.contains("passthrough.io=rw") && said.contains("5.00 [5.00 5.00] times as fast"),
            "{said}"
        );
    }
}
