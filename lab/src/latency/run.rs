//! Carries the plan out: in every round each subject works for a while, in an order drawn anew.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;
use strandfs_options::show_size;

use super::caller::{Slice, histogram, latency, slice};
use super::check::compare;
use super::plan::LatencyPlan;
use super::steady::{Window, window};
use crate::counters::Meter;
use crate::cpu::CpuMeter;
use crate::credibility;
use crate::error::BenchError;
use crate::layers::placed::{Placed, set_up};
use crate::progress::{Progress, Step};
use crate::result::{Cache, Distribution, Kind, Report, Sample, Series, Unit, Work};
use crate::sentinel::Watch;
use crate::stats::FEWEST_FOR_INTERVAL;

/// Less of the rate than this, and it was not reached.
const REACHED: f64 = 0.98;
/// Reading back what a round wrote takes no more of its time than one in so many parts.
const COMPARED: u32 = 4;

/// One subject's rounds.
struct Subject {
    place: Placed,
    rounds: Vec<Slice>,
    /// What is watched for being steady.
    values: Vec<f64>,
    /// Why it takes no part any more.
    lost: Option<Lost>,
}

/// What became of a subject that takes no part any more.
enum Lost {
    /// It failed: its rounds before that count.
    Failed(BenchError),
    /// It gave back other bytes than were written: it has no figures.
    Wrong(String),
}

/// Measures.
///
/// # Errors
/// A plan that makes no sense, a subject that cannot be set up, all fail in the first round,
/// [`BenchError::Interrupted`] before that was complete. A subject that fails later keeps its rounds.
pub fn run(
    plan: &LatencyPlan,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Report, BenchError> {
    plan.check()?;
    let (levels, placed, facts) = set_up(&plan.place, &plan.modes, stop, progress)?;
    let mut report = Report::new(Kind::Latency, plan.place.regime, plan.place.seed);
    report.settings = settings(plan);
    let spinner = plan.place.regime.enter().map_err(BenchError::io(
        "starting a busy thread in",
        &plan.place.directory,
    ))?;
    let mut subjects: Vec<Subject> = placed.into_iter().map(Subject::new).collect();
    report.subjects = facts;
    prepare(plan, &subjects, stop, progress)?;
    let mut random = fastrand::Rng::with_seed(plan.place.seed);
    while report.repetitions < plan.rounds {
        let mut active = subjects.iter().filter(|it| it.lost.is_none()).peekable();
        if active.peek().is_none() || plan.until_steady && active.all(|it| is_steady(&it.values)) {
            break;
        }
        match round(
            plan,
            &mut subjects,
            &mut report,
            &mut random,
            stop,
            progress,
        ) {
            Err(BenchError::Interrupted) if report.repetitions > 0 => {
                report.interrupted = true;
                break;
            }
            other => other?,
        }
    }
    drop(spinner);
    let mut said = levels.said.clone();
    said.extend(part_with(plan, &mut subjects, &mut report)?);
    finish(plan, &subjects, &mut report)?;
    said.extend(notes(plan, &report));
    report.warnings = said;
    Ok(report)
}

/// What there is to say of subjects that took no part to the end; those without a round that counts go.
fn part_with(
    plan: &LatencyPlan,
    subjects: &mut Vec<Subject>,
    report: &mut Report,
) -> Result<Vec<String>, BenchError> {
    let mut said = Vec::new();
    let mut first = None;
    for one in subjects.iter_mut() {
        let Some(lost) = one.lost.take() else {
            continue;
        };
        report.has_failed = true;
        let (name, rounds) = (&one.place.name, one.rounds.len());
        let error = match lost {
            Lost::Wrong(why) => {
                said.push(format!(
                    "{name} gave back other bytes than were written, so it has no figures: {why}"
                ));
                one.rounds.clear();
                report.series.retain(|it| it.subject != *name);
                BenchError::Wrong {
                    subject: name.clone(),
                    workload: plan.row(),
                    why,
                }
            }
            Lost::Failed(error) => {
                said.push(match rounds {
                    0 => format!("{name} is left out: {error}"),
                    _ => format!(
                        "{name} failed in round {}; its figures are those of the rounds before{}: {error}",
                        rounds + 1,
                        match rounds < FEWEST_FOR_INTERVAL {
                            true => ", too few for an interval",
                            false => "",
                        }
                    ),
                });
                error
            }
        };
        first.get_or_insert(error);
    }
    subjects.retain(|it| !it.rounds.is_empty());
    match first {
        Some(error) if subjects.is_empty() => Err(error),
        _ => Ok(said),
    }
}

fn settings(plan: &LatencyPlan) -> BTreeMap<String, String> {
    let rate = plan.rate.map(|it| format!("{it} operations a second"));
    let mut settings = BTreeMap::from([
        ("size", show_size(plan.place.file_bytes)),
        ("block", show_size(plan.block_bytes as u64)),
        (
            "rate",
            rate.unwrap_or_else(|| "as fast as it goes".to_owned()),
        ),
        ("callers", plan.threads.to_string()),
        ("round", format!("{} ms", plan.round.as_millis())),
        ("options of pools", plan.place.options.clone()),
    ]);
    let flags = [(plan.is_direct, "O_DIRECT"), (plan.is_synced, "O_DSYNC")];
    let flags: Vec<&str> = flags.iter().filter(|it| it.0).map(|it| it.1).collect();
    settings.insert("flags", flags.join(" "));
    settings
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

impl Subject {
    fn new(place: Placed) -> Self {
        Self {
            place,
            rounds: Vec::new(),
            values: Vec::new(),
            lost: None,
        }
    }
}

/// Every subject's file, and a moment of work that is not counted.
fn prepare(
    plan: &LatencyPlan,
    subjects: &[Subject],
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<(), BenchError> {
    let short = LatencyPlan {
        round: plan.round / 10,
        ..plan.clone()
    };
    for one in subjects {
        one.place.write_file(&plan.place, stop, progress)?;
        slice(&short, &one.place.file(), plan.place.seed, stop)?;
    }
    Ok(())
}

fn round(
    plan: &LatencyPlan,
    subjects: &mut [Subject],
    report: &mut Report,
    random: &mut fastrand::Rng,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<(), BenchError> {
    let servers: Vec<u32> = subjects
        .iter()
        .filter_map(|it| it.place.dir.server)
        .collect();
    let watch = Watch::start(&servers);
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    random.shuffle(&mut order);
    let mut taken = Vec::new();
    for (place, &index) in order.iter().enumerate() {
        let Some(one) = subjects.get_mut(index).filter(|it| it.lost.is_none()) else {
            continue;
        };
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        let slice_millis = plan.round.as_millis() as usize;
        progress(&Step {
            done: (report.repetitions * order.len() + place) * slice_millis,
            total: plan.rounds * order.len() * slice_millis,
            what: &format!("round {}: {}", report.repetitions + 1, one.place.name),
            ..Step::default()
        });
        let meter = Meter::start(one.place.dir.server, one.place.device.as_deref());
        let cpu = CpuMeter::start(one.place.dir.server.as_slice());
        let (file, seed) = (one.place.file(), random.u64(..));
        let found = match slice(plan, &file, seed, stop) {
            Ok(found) => found,
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(error) => {
                one.lost = Some(Lost::Failed(error));
                continue;
            }
        };
        let cpu = cpu.stop();
        let seconds = found.elapsed.as_secs_f64().max(1e-9);
        let sample = Sample {
            value: found.work.operations as f64 / seconds,
            done: Some(found.work),
            traffic: Some(meter.stop()),
            cpu: Some(cpu),
            latency: Some(latency(&found.response)),
            service: plan.rate.map(|_| latency(&found.service)),
            ..Sample::default()
        };
        let same = match one.place.dir.keeps_data {
            true => compare(plan, &file, seed, &found, plan.round / COMPARED),
            false => Ok(()),
        };
        match same {
            Ok(()) => taken.push((index, found, sample)),
            Err(why) => one.lost = Some(Lost::Wrong(why)),
        }
    }
    for (index, found, sample) in taken {
        let Some(one) = subjects.get_mut(index) else {
            continue;
        };
        // At a fixed rate the rate is steady; what is not is the time.
        one.values.push(match plan.rate {
            Some(_) => found.response.mean(),
            None => sample.value,
        });
        one.rounds.push(found);
        report.keep(series(plan, &one.place), sample);
    }
    report.noise.extend(watch.stop());
    report.repetitions += 1;
    Ok(())
}

/// That of a subject, without samples.
fn series(plan: &LatencyPlan, place: &Placed) -> Series {
    Series {
        subject: place.name.clone(),
        workload: plan.row(),
        unit: Unit::OperationsPerSecond,
        work: Work {
            operations: 1,
            bytes: plan.block_bytes as u64,
        },
        cache: match plan.is_direct {
            true => Cache::Direct,
            false => Cache::Any,
        },
        samples: Vec::new(),
        unstable: false,
    }
}

fn is_steady(values: &[f64]) -> bool {
    window(values).is_some_and(|it| it.is_steady)
}

/// The distributions of all rounds, or of the steady window.
fn finish(plan: &LatencyPlan, subjects: &[Subject], report: &mut Report) -> Result<(), BenchError> {
    let place = |name: &str| subjects.iter().position(|it| it.place.name == name);
    report.series.sort_by_key(|it| place(&it.subject));
    for one in subjects {
        let found: Option<Window> = window(&one.values);
        let from = match found.filter(|_| plan.until_steady) {
            Some(window) => window.from - 1,
            None => 0,
        };
        let rounds = one.rounds.get(from..).unwrap_or_default();
        report.distributions.push(Distribution {
            subject: one.place.name.clone(),
            workload: plan.row(),
            first_round: from + 1,
            last_round: one.rounds.len(),
            response: latency(&merged(rounds, |it| &it.response)?),
            service: match plan.rate {
                Some(_) => Some(latency(&merged(rounds, |it| &it.service)?)),
                None => None,
            },
            window: found,
        });
    }
    for series in &mut report.series {
        series.samples.resize(report.repetitions, None);
    }
    let counted = report.in_window();
    for (series, counted) in report.series.iter_mut().zip(&counted.series) {
        series.unstable = credibility::is_unstable(counted);
    }
    Ok(())
}

fn merged(
    rounds: &[Slice],
    pick: fn(&Slice) -> &Histogram<u64>,
) -> Result<Histogram<u64>, BenchError> {
    let mut all = histogram()?;
    for one in rounds {
        all.add(pick(one))
            .map_err(|error| BenchError::Usage(error.to_string()))?;
    }
    Ok(all)
}

fn notes(plan: &LatencyPlan, report: &Report) -> Vec<String> {
    let mut said = credibility::run_notes(report);
    let counted = report.in_window();
    for one in &report.distributions {
        let series = report.find(&one.subject, &one.workload);
        let rate = counted.find(&one.subject, &one.workload);
        let rate = rate.and_then(Series::estimate).map(|it| it.median);
        if let (Some(asked), Some(rate)) = (plan.rate, rate)
            && rate < asked * REACHED
        {
            said.push(format!(
                "{}: {rate:.0} of {asked:.0} operations a second were reached: the queue grows as long as it is \
                 measured, and the response times with it",
                one.subject
            ));
        }
        if let (Some(asked), Some(series)) = (plan.rate, series) {
            said.extend(missed(asked, series));
        }
        let is_steady = one.window.is_some_and(|it| it.is_steady);
        if plan.until_steady && !is_steady {
            said.push(format!(
                "{}: not steady within {} rounds",
                one.subject, one.last_round
            ));
        }
    }
    said
}

/// Rounds in which not all that was due was done in time, by number.
fn missed(asked: f64, series: &Series) -> Option<String> {
    let rounds = series.samples.iter().enumerate();
    let planned_and_done = |sample: &Sample| {
        let (planned, done) = (sample.latency.as_ref()?.count, sample.done?.operations);
        (done < planned || sample.value < asked * REACHED).then_some((planned, done))
    };
    let found = rounds.filter_map(|(round, it)| Some((round + 1, planned_and_done(it.as_ref()?)?)));
    let found: Vec<(usize, (u64, u64))> = found.collect();
    if found.is_empty() {
        return None;
    }
    let numbers: Vec<String> = found.iter().map(|it| it.0.to_string()).collect();
    let planned: u64 = found.iter().map(|it| it.1.0).sum();
    let done: u64 = found.iter().map(|it| it.1.1).sum();
    Some(format!(
        "{}: in {} {} the rate was not kept: {done} of {planned} operations that were due were done; those that \
         were never begun count with the time they had waited when the round was given up",
        series.subject,
        if numbers.len() == 1 {
            "round"
        } else {
            "rounds"
        },
        numbers.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Operation;
    use crate::layers::LayersPlan;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    fn plan(dir: &Path) -> LatencyPlan {
        LatencyPlan {
            place: LayersPlan {
                targets: vec![crate::layers::Target::Directory(dir.to_path_buf())],
                file_bytes: 8 << 20,
                ..LayersPlan::new(PathBuf::new(), dir.to_path_buf())
            },
            modes: Vec::new(),
            operation: Operation::RandomRead,
            block_bytes: 4096,
            rate: None,
            threads: 2,
            is_direct: false,
            is_synced: false,
            round: Duration::from_millis(100),
            rounds: 3,
            until_steady: false,
        }
    }

    /// The file of the bare filesystem in this directory.
    fn file_below(dir: &Path) -> PathBuf {
        let made = std::fs::read_dir(dir).unwrap().flatten();
        let mut files = made.map(|it| it.path().join("bare").join(crate::data::READ_FILE));
        files.find(|it| it.exists()).unwrap()
    }

    #[test]
    fn every_operation_is_timed_and_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        for operation in Operation::ALL {
            let plan = LatencyPlan {
                operation,
                ..plan(dir.path())
            };
            let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
            assert_eq!((report.repetitions, report.series.len()), (3, 1));
            let samples = report.series[0].samples.iter().flatten();
            let done: u64 = samples.map(|it| it.done.unwrap().operations).sum();
            assert_eq!(report.distributions[0].response.count, done);
            assert!(done > 0);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// A pool that died took the rounds before with it.
    #[test]
    fn rounds_before_a_failure_are_kept_and_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let plan = plan(dir.path());
        let report = run(&plan, &AtomicBool::new(false), &mut |step| {
            if step.what.starts_with("round 3") {
                std::fs::remove_file(file_below(dir.path())).unwrap();
            }
        })
        .unwrap();
        assert!(report.has_failed && !report.interrupted);
        let samples = report.series[0].samples.iter().flatten().count();
        assert_eq!((samples, report.distributions[0].last_round), (2, 2));
        let said = report.warnings.join("\n");
        assert!(
            said.contains(
                "failed in round 3; its figures are those of the rounds before, too few for an \
                 interval: opening"
            ),
            "{said}"
        );
        let none = run(&plan, &AtomicBool::new(false), &mut |step| {
            if step.what.starts_with("round 1") {
                std::fs::remove_file(file_below(dir.path())).unwrap();
            }
        });
        assert!(matches!(none, Err(BenchError::Io { .. })));
    }

    #[test]
    fn who_loses_what_a_round_wrote_has_no_figures() {
        let dir = tempfile::tempdir().unwrap();
        let plan = LatencyPlan {
            operation: Operation::RandomWrite,
            ..plan(dir.path())
        };
        let lost = run(&plan, &AtomicBool::new(false), &mut |step| {
            if step.what.starts_with("round 2") {
                let file = file_below(dir.path());
                std::fs::remove_file(&file).unwrap();
                // It takes everything and gives back nothing of it.
                std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
            }
        });
        let said = lost.unwrap_err().to_string();
        assert!(said.contains("is not what was written"), "{said}");
    }

    #[test]
    fn a_rate_of_next_to_nothing_ends() {
        let dir = tempfile::tempdir().unwrap();
        let plan = LatencyPlan {
            rate: Some(1e-300),
            rounds: 1,
            ..plan(dir.path())
        };
        let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
        assert_eq!(report.distributions[0].response.count, 1);
    }

    #[test]
    fn a_way_that_is_asked_for_twice_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let plan = LatencyPlan {
            modes: vec![crate::layers::plan::Mode::Direct; 2],
            ..plan(dir.path())
        };
        let error = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        assert!(matches!(error, BenchError::Usage(_)), "{error}");
        assert!(
            error.to_string().contains("two subjects are called direct"),
            "{error}"
        );
    }

    /// A rate that is kept, and response times that are no shorter than service times.
    #[test]
    fn a_fixed_rate_is_kept_and_those_who_queue_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let plan = LatencyPlan {
            rate: Some(500.0),
            round: Duration::from_millis(400),
            ..plan(dir.path())
        };
        let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
        for sample in report.series[0].samples.iter().flatten() {
            assert_eq!(sample.done.unwrap().operations, 200, "{sample:?}");
        }
        let found = &report.distributions[0];
        let service = found.service.as_ref().unwrap();
        assert!(found.response.mean >= service.mean, "{found:?}");
        // More than any machine can do: it ends all the same, and is said.
        let plan = LatencyPlan {
            rate: Some(1e9),
            rounds: 1,
            ..plan
        };
        let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let found = &report.distributions[0];
        let service = found.service.as_ref().unwrap();
        assert!(found.response.mean > 10.0 * service.mean, "{found:?}");
        // Those that were due and never begun waited, too.
        assert_eq!(found.response.count, 400_000_000);
        let said = report.warnings.join("\n");
        assert!(
            said.contains("of 1000000000 operations a second were reached"),
            "{said}"
        );
    }
}
