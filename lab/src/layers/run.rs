//! Carries the plan out and judges the samples.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use strandfs_options::show_size;

use super::judge::{self, Names};
use super::knob;
use super::plan::{LayersPlan, PoolMode, QUICK_ROWS, rows};
use super::setup::{Levels, MEMORY, TMPFS, pool_name};
use super::target::Target;
use crate::error::BenchError;
use crate::progress::Progress;
use crate::result::{Kind, Report};
use crate::sequential::Looks;
use crate::stats::FEWEST_FOR_INTERVAL;
use crate::trial::{self, Row, Trial, Until};
use crate::{credibility, crosscheck};

/// What writing one file may take where nobody waits for the end.
const PREPARE: Duration = Duration::from_secs(10);
/// What is left of the time for the answer and for unmounting.
pub(super) const END: Duration = Duration::from_secs(6);
/// Branches of a pool, at most: each is a directory, for root in memory a filesystem.
const MOST_BRANCHES: usize = 64;
/// Shorter round trips than this are lost among what a request takes anyway; with longer ones a run has no end.
const ROUND_TRIPS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(1);
/// Bytes of the cross-check's file: enough for a figure, whatever the size of the run.
const CROSS_CHECK_BYTES: u64 = 64 << 20;

/// Measures. `judged` is shown the result once it has its answers, before options are tried and everything is
/// unmounted.
///
/// # Errors
/// A plan that makes no sense, a level that cannot be set up, [`BenchError::Interrupted`] before the
/// first repetition was complete.
pub fn run(
    plan: &LayersPlan,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
    judged: &mut dyn FnMut(&Report),
) -> Result<Report, BenchError> {
    check(plan)?;
    let rows = match plan.is_quick && plan.only.is_empty() {
        true => rows(&QUICK_ROWS.map(str::to_owned))?,
        false => rows(&plan.only)?,
    };
    let mut levels = Levels::set_up(plan, stop, progress)?;
    let mut report = measure(plan, Kind::Layers, &mut levels, rows, stop, progress)?;
    let names = names(&levels);
    report.verdicts = judge::verdicts(&report, &names, looks(plan).level());
    judged(&report);
    if let Some(first) = names.first().filter(|_| !report.interrupted) {
        knob::try_out(plan, &mut levels, first, &mut report, stop, progress)?;
    }
    report.warnings.push(
        "nullrw is measured with passthrough.io=off: in passthrough its data would never reach \
         the server"
            .to_owned(),
    );
    Ok(report)
}

/// When the samples are looked at for an answer.
fn looks(plan: &LayersPlan) -> Looks {
    Looks::plan(
        plan.repetitions,
        plan.most_repetitions,
        plan.deadline.is_some(),
    )
}

/// Measures what these levels hold, with everything that makes the figures credible.
///
/// # Errors
/// As [`run`].
pub(crate) fn measure(
    plan: &LayersPlan,
    kind: Kind,
    levels: &mut Levels,
    rows: Vec<Row>,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Report, BenchError> {
    let mut report = Report::new(kind, plan.regime, plan.seed);
    let spinner = plan
        .regime
        .enter()
        .map_err(BenchError::io("starting a busy thread in", &plan.directory))?;
    for (name, value) in [
        ("size", show_size(plan.file_bytes)),
        (
            "time of a sample",
            format!("{} ms", plan.sample_limit.as_millis()),
        ),
        ("options of pools", plan.options.clone()),
    ] {
        report.settings.insert(name.to_owned(), value);
    }
    let probed = levels.probe(progress)?;
    if kind == Kind::Layers {
        let looks = looks(plan);
        for (name, value) in [
            ("looks after repetitions", looks.describe()),
            ("level of a look", format!("{:.5}", looks.level())),
        ] {
            report.settings.insert(name.to_owned(), value);
        }
    }
    let slow = levels.candidates.iter().filter(|it| it.group > 0).count();
    let trial = Trial {
        until: match kind {
            Kind::Layers => {
                Until::Answered(judge::question(names(levels), looks(plan), !plan.is_quick))
            }
            _ => Until::Stable,
        },
        candidates: std::mem::take(&mut levels.candidates),
        rows,
        file_bytes: plan.file_bytes,
        repetitions: plan.repetitions,
        most_repetitions: plan.most_repetitions,
        deadline: plan.deadline.and_then(|it| it.checked_sub(END)),
        prepare_limit: prepare_limit(plan, slow),
        sample_limit: plan.sample_limit,
        seed: plan.seed,
    };
    let outcome = trial::run(&trial, stop, progress)?;
    report.subjects = trial.candidates.iter().map(|it| it.facts.clone()).collect();
    levels.candidates = trial.candidates;
    report.series = outcome.series;
    report.noise = outcome.noise;
    report.repetitions = outcome.repetitions;
    report.interrupted = outcome.interrupted;
    report.has_failed = outcome.has_failed;
    let mut said = levels.said.clone();
    said.extend(outcome.failures);
    if outcome.out_of_time {
        said.push(format!(
            "out of time after {} repetitions (--time-limit)",
            outcome.repetitions
        ));
    }
    if plan.cross_check && !report.interrupted && !outcome.out_of_time {
        said.extend(cross_check(plan, levels, stop, &mut report)?);
    }
    drop(spinner);
    said.extend(notes(plan, &report));
    said.extend(probed);
    report.warnings = said;
    Ok(report)
}

pub(crate) fn check(plan: &LayersPlan) -> Result<(), BenchError> {
    let wrong = |text: &str| Err(BenchError::Usage(text.to_owned()));
    if plan.repetitions == 0 {
        return wrong("--reps must be at least 1");
    }
    if plan.sample_limit.is_zero() {
        return wrong("--sample-time must be at least 1ms");
    }
    if plan.file_bytes < 8 << 20 {
        return wrong("--size must be at least 8M: less is over before it can be timed");
    }
    if plan
        .branches
        .iter()
        .any(|it| !(2..=MOST_BRANCHES).contains(it))
    {
        return wrong(
            "--branches must be from 2 to 64: pools of one branch are measured in any case",
        );
    }
    if BTreeSet::from_iter(&plan.branches).len() < plan.branches.len() {
        return wrong("--branches names a number twice");
    }
    if !plan.round_trips.is_empty() && plan.targets.is_empty() {
        return wrong("--round-trip needs a TARGET: memory is never far away");
    }
    if plan.round_trips.iter().any(|it| !ROUND_TRIPS.contains(it)) {
        return wrong("--round-trip must be from 1ms to 1s");
    }
    if BTreeSet::from_iter(&plan.round_trips).len() < plan.round_trips.len() {
        return wrong("--round-trip names a time twice");
    }
    for target in &plan.targets {
        target.check()?;
        let same = |it: &&Target| it.name() == target.name();
        if plan.targets.iter().filter(same).count() > 1 {
            return wrong(&format!("{} is given twice", target.name()));
        }
    }
    Ok(())
}

/// What writing one file may take: all of those on targets together a tenth of the time there is.
fn prepare_limit(plan: &LayersPlan, slow: usize) -> Duration {
    let left = plan
        .deadline
        .map(|it| it.saturating_duration_since(Instant::now()));
    match left {
        Some(left) => (left / 10 / u32::try_from(slow.max(1)).unwrap_or(u32::MAX)).min(PREPARE),
        None => PREPARE,
    }
}

/// Which subject is which level. Without targets the pool alone is set against memory.
fn names(levels: &Levels) -> Vec<Names> {
    let memory = [TMPFS.to_owned()];
    let targets = match levels.targets.is_empty() {
        true => &memory[..],
        false => &levels.targets[..],
    };
    let of = |target: &String, way: &PoolMode| Names {
        target: target.clone(),
        way: way.name(),
        mode: way.mode,
        transport: way.transport,
        memory: TMPFS.to_owned(),
        pool_memory: pool_name(*way, TMPFS),
        pool_target: pool_name(*way, target),
    };
    let by_target = |target| levels.ways.iter().map(move |way| of(target, way));
    targets.iter().flat_map(by_target).collect()
}

fn cross_check(
    plan: &LayersPlan,
    levels: &Levels,
    stop: &AtomicBool,
    report: &mut Report,
) -> Result<Vec<String>, BenchError> {
    let place = levels.bare_dir(TMPFS).or_else(|| {
        let first = levels.targets.first()?;
        levels.bare_dir(first)
    });
    let Some(dir) = place else {
        return Ok(Vec::new());
    };
    let bytes = plan.file_bytes.min(CROSS_CHECK_BYTES);
    if bytes < crosscheck::FEWEST_BYTES {
        return Ok(vec![format!(
            "no cross-check with dd and fio: copying {} takes hardly longer than they take to begin \
             and to end; give --size {} or more",
            show_size(bytes),
            show_size(crosscheck::FEWEST_BYTES)
        )]);
    }
    let runs = plan.repetitions.max(FEWEST_FOR_INTERVAL);
    let check = match crosscheck::run(&dir, bytes, runs, stop) {
        Err(BenchError::Interrupted) => return Ok(Vec::new()),
        other => other?,
    };
    let mut said = Vec::new();
    for (what, ratio, agreement) in check.ratios() {
        let agreement = agreement.words(&ratio);
        let ratio = crate::spread::describe_ratio(&ratio);
        said.push(format!("{what}: our speed to theirs {ratio}; {agreement}"));
    }
    report.subjects.extend(check.subjects);
    report.series.extend(check.series);
    Ok(said)
}

/// What a reader has to know beside the figures.
fn notes(plan: &LayersPlan, report: &Report) -> Vec<String> {
    let mut said = credibility::run_notes(report);
    said.extend(passthrough_notes(report));
    said.extend(credibility::cache_notes(report));
    said.extend(credibility::written_notes(report));
    said.extend(credibility::generator_notes(report, MEMORY));
    said.extend(credibility::working_set_note(report, plan.file_bytes));
    said
}

/// Pools that were to pass data through and did not.
fn passthrough_notes(report: &Report) -> Vec<String> {
    let asked = report.subjects.iter().filter(|it| {
        it.options
            .contains(super::plan::Mode::Passthrough.options())
    });
    let failed = asked.filter(|it| {
        let series = report.find(&it.name, "write-1m");
        series.and_then(credibility::is_passed_through) == Some(false)
    });
    failed
        .map(|it| {
            format!(
                "{}: passthrough is not in force there, its server saw the data (strandfs status \
                 says why)",
                it.name
            )
        })
        .collect()
}
