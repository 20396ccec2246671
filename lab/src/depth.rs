//! Deep queues: fio's small direct requests, one, some and many in flight, on the bare filesystem and through a pool
//! in each mode.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use strandfs_options::show_size;

use crate::counters::Meter;
use crate::cpu::CpuMeter;
use crate::credibility;
use crate::error::BenchError;
use crate::expense;
use crate::fio::{self, Job};
use crate::format;
use crate::layers::LayersPlan;
use crate::layers::placed::{Placed, set_up};
use crate::layers::plan::Mode;
use crate::layers::setup::Levels;
use crate::progress::{Progress, Step};
use crate::result::{Cache, Kind, Report, Sample, Series, Unit, Work};
use crate::sentinel::Watch;
use crate::spread;
use crate::tool;

/// Bytes of a request.
const BLOCK: u64 = 4096;
/// What is done: the row's name and fio's.
const JOBS: [(&str, &str); 2] = [("random-read", "randread"), ("random-write", "randwrite")];

/// Everything the user chose.
#[derive(Clone, Debug)]
pub struct DepthPlan {
    /// Where, with which options, with files of which size; repetitions.
    pub place: LayersPlan,
    /// Ways of the pool.
    pub modes: Vec<Mode>,
    /// Requests in flight.
    pub depths: Vec<u32>,
    /// Of one job.
    pub time: Duration,
}

/// Measures. A job that fails is named, and has no figure.
///
/// # Errors
/// A plan that makes no sense, no fio, nothing could be set up.
pub fn run(
    plan: &DepthPlan,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Report, BenchError> {
    if plan.depths.is_empty() || plan.depths.contains(&0) {
        return Err(BenchError::Usage("--depths must be 1 or more".to_owned()));
    }
    if plan.time < Duration::from_millis(100) {
        return Err(BenchError::Usage(
            "--time must be at least 100ms".to_owned(),
        ));
    }
    if tool::find("fio").is_none() {
        let why = "fio is not installed: install it (Debian: apt-get install fio)";
        return Err(BenchError::Usage(why.to_owned()));
    }
    let (levels, mut ready, subjects) = set_up(&plan.place, &plan.modes, stop, progress)?;
    let mut report = Report::new(Kind::Depth, plan.place.regime, plan.place.seed);
    for (name, value) in [
        ("size", show_size(plan.place.file_bytes)),
        ("block", show_size(BLOCK)),
        ("time", format!("{} ms", plan.time.as_millis())),
        ("ioengine", "libaio".to_owned()),
        ("options of pools", plan.place.options.clone()),
    ] {
        report.settings.insert(name.to_owned(), value);
    }
    report.subjects = subjects;
    for one in &ready {
        one.write_file(&plan.place, stop, progress)?;
    }
    let mut random = fastrand::Rng::with_seed(plan.place.seed);
    let servers: Vec<u32> = ready.iter().filter_map(|it| it.dir.server).collect();
    while report.repetitions < plan.place.repetitions && !report.interrupted {
        random.shuffle(&mut ready);
        let watch = Watch::start(&servers);
        repetition(plan, &ready, &mut report, stop, progress);
        report.noise.extend(watch.stop());
        report.repetitions += usize::from(!report.interrupted);
    }
    finish(&mut report, &levels);
    Ok(report)
}

fn row(job: &str, depth: u32) -> String {
    format!("{job}, {depth} in flight")
}

fn repetition(
    plan: &DepthPlan,
    ready: &[Placed],
    report: &mut Report,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) {
    let steps = JOBS.len() * plan.depths.len() * ready.len();
    let mut done = report.repetitions * steps;
    for &depth in &plan.depths {
        for (name, kind) in JOBS {
            for one in ready {
                if stop.load(Ordering::Relaxed) {
                    report.interrupted = true;
                    return;
                }
                let what = format!("{}: {}", one.name, row(name, depth));
                progress(&Step {
                    done: done * plan.time.as_millis() as usize,
                    total: steps * plan.place.repetitions * plan.time.as_millis() as usize,
                    what: &what,
                    ..Step::default()
                });
                done += 1;
                match job(plan, one, kind, depth) {
                    Ok(sample) => keep(report, one, &row(name, depth), sample),
                    // fio is a child of the same terminal: the user's Ctrl-C ends it too.
                    Err(_) if stop.load(Ordering::Relaxed) => report.interrupted = true,
                    Err(error) => {
                        report.has_failed = true;
                        let said = format!("{what} failed: {error}");
                        if !report.warnings.contains(&said) {
                            report.warnings.push(said);
                        }
                    }
                }
            }
        }
    }
}

fn job(plan: &DepthPlan, one: &Placed, kind: &str, depth: u32) -> Result<Sample, BenchError> {
    let meter = Meter::start(one.dir.server, one.device.as_deref());
    let cpu = CpuMeter::start(one.dir.server.as_slice());
    let outcome = fio::run(&Job {
        kind,
        target: &one.file(),
        size: plan.place.file_bytes,
        block: BLOCK,
        depth,
        time: plan.time,
    })?;
    Ok(Sample {
        cpu: Some(cpu.stop()),
        traffic: Some(meter.stop()),
        done: Some(Work {
            operations: outcome.operations,
            bytes: outcome.operations * BLOCK,
        }),
        ..outcome.sample
    })
}

fn keep(report: &mut Report, one: &Placed, workload: &str, sample: Sample) {
    let new = Series {
        subject: one.name.clone(),
        workload: workload.to_owned(),
        unit: Unit::OperationsPerSecond,
        work: Work {
            operations: 1,
            bytes: BLOCK,
        },
        cache: Cache::Direct,
        samples: Vec::new(),
        unstable: false,
    };
    report.keep(new, sample);
}

fn finish(report: &mut Report, levels: &Levels) {
    let place = |name: &str| report.subjects.iter().position(|it| it.name == name);
    let order: Vec<(usize, Option<usize>)> = (0..report.series.len())
        .map(|it| (it, report.series.get(it).and_then(|it| place(&it.subject))))
        .collect();
    let mut sorted: Vec<(Option<usize>, Series)> = order
        .into_iter()
        .map(|it| it.1)
        .zip(std::mem::take(&mut report.series))
        .collect();
    sorted.sort_by_key(|it| it.0);
    report.series = sorted.into_iter().map(|it| it.1).collect();
    for series in &mut report.series {
        series.samples.resize(report.repetitions, None);
        series.unstable = credibility::is_unstable(series);
    }
    report.warnings.extend(levels.said.clone());
    let said = credibility::run_notes(report);
    report.warnings.extend(said);
}

/// Operations a second, a row for each job and depth, a column for each subject, with the speed against the bare
/// filesystem.
pub fn table(report: &Report) -> String {
    let mut heading = vec!["thousand op/s; bare = 1".to_owned()];
    heading.extend(report.subjects.iter().map(|it| it.name.clone()));
    let mut rows = vec![heading];
    let bare = report.subjects.first().map_or("", |it| it.name.as_str());
    for workload in report.workloads() {
        let mut row = vec![workload.to_owned()];
        row.extend(report.subjects.iter().map(|subject| {
            let Some(series) = report.find(&subject.name, workload) else {
                return "-".to_owned();
            };
            let thousands = |it: f64| format!("{:.1}", it / 1e3);
            let rate = series.estimate();
            let rate = rate.map(|it| format::between(&it, thousands));
            let mark = if series.unstable { "~" } else { "" };
            let ratio = report
                .find(bare, workload)
                .filter(|_| subject.name != bare)
                .and_then(|bare| series.speed(bare));
            let ratio = ratio.map_or_else(String::new, |it| {
                format!("; {}", spread::describe_ratio(&it))
            });
            format!("{mark}{}{ratio}", rate.unwrap_or_else(|| "-".to_owned()))
        }));
        rows.push(row);
    }
    format::table(&rows)
}

/// CPU time and path.
pub fn expense(report: &Report) -> String {
    let rows = report.workloads();
    [
        expense::cpu_table(report, &rows),
        expense::path_table(report, &rows),
    ]
    .join("\n")
}
