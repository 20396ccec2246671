//! Carries a plan out.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::candidate::{Candidate, Ready};
use crate::counters::Meter;
use crate::cpu::CpuMeter;
use crate::credibility;
use crate::error::BenchError;
use crate::fio::{self, Job};
use crate::matrix::test_device::check_room;
use crate::progress::{Progress, Step};
use crate::regime::Regime;
use crate::result::{Cache, Kind, Report, Sample, Series, Unit, Work};
use crate::scratch::Scratch;
use crate::sentinel::Watch;
use crate::storage::{Medium, Storage};
use crate::tool;

/// The four jobs, in their order: name, `rw=`, and operations a second that somebody published for a
/// volume served over io_uring from a file in memory, on another machine.
pub const JOBS: [(&str, &str, f64); 4] = [
    ("seq-read", "read", 165_000.0),
    ("rand-read", "randread", 91_000.0),
    ("seq-write", "write", 131_000.0),
    ("rand-write", "randwrite", 103_000.0),
];
/// Bytes of a request, and requests in flight.
const BLOCK: u64 = 4096;
const DEPTH: u32 = 1024;

/// Everything the user chose.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// Columns.
    pub candidates: Vec<Candidate>,
    /// Bytes of each backing file.
    pub size: u64,
    /// Of one job.
    pub time: Duration,
    /// Repetitions.
    pub repetitions: usize,
    /// Where the backing files go; none for a tmpfs of their own.
    pub directory: Option<PathBuf>,
    /// Of the order.
    pub seed: u64,
}

/// The row of the server's CPU time beside a job.
pub fn cpu_row(job: &str) -> String {
    format!("{job}: server CPU per operation")
}

/// Measures. What was complete when the user stops it is returned; a candidate that cannot be set up
/// or fails is left out and named.
///
/// # Errors
/// Not even a bare file can be measured; a plan that makes no sense.
pub fn run(
    plan: &VolumePlan,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Report, BenchError> {
    plan.check()?;
    let mut report = Report::new(Kind::Volume, Regime::Quiet, plan.seed);
    report.settings = plan.settings();
    let default = std::env::temp_dir();
    let mut scratch = Scratch::new(plan.directory.as_deref().unwrap_or(&default))?;
    let place = scratch.branch("backing", plan.directory.is_none())?;
    let below = Storage::of(&place)?;
    let needed = plan.size.saturating_mul(plan.candidates.len() as u64);
    check_room(plan.directory.as_deref().unwrap_or(&place), &below, needed)?;
    if below.medium == Medium::Memory {
        report.warnings.push(
            "the backing files lie in RAM: the figures are of the path to them, not of a disk"
                .to_owned(),
        );
    }
    let mut ready: Vec<Ready> = Vec::new();
    for (number, candidate) in plan.candidates.iter().enumerate() {
        progress(&Step {
            done: 0,
            total: plan.steps(),
            what: &format!("setting up {}", candidate.name()),
            ..Step::default()
        });
        let dir = place.join(number.to_string());
        std::fs::create_dir(&dir).map_err(BenchError::io("making", &dir))?;
        match candidate.set_up(&dir, plan.size, stop) {
            Ok(mut one) => {
                one.facts.storage = Storage::of(&dir).ok();
                one.facts
                    .tools
                    .insert("fio".to_owned(), tool::version("fio", "--version"));
                report.subjects.push(one.facts.clone());
                ready.push(one);
            }
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(error) => {
                let name = candidate.name();
                report.warnings.push(format!("{name} is left out: {error}"));
            }
        }
    }
    measure(plan, ready, stop, progress, &mut report);
    finish(&mut report);
    Ok(report)
}

/// All repetitions; whoever fails has no further ones.
fn measure(
    plan: &VolumePlan,
    mut ready: Vec<Ready>,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
    report: &mut Report,
) {
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let mut done = 0;
    while report.repetitions < plan.repetitions && !ready.is_empty() && !report.interrupted {
        random.shuffle(&mut ready);
        let servers: Vec<u32> = ready.iter().filter_map(Ready::server).collect();
        let watch = Watch::start(&servers);
        ready.retain(|one| {
            if report.interrupted {
                return true;
            }
            for (name, kind, _) in JOBS {
                if stop.load(Ordering::Relaxed) {
                    report.interrupted = true;
                    return true;
                }
                let what = format!("{}: {name}", one.facts.name);
                progress(&Step {
                    done,
                    total: plan.steps(),
                    what: &what,
                    ..Step::default()
                });
                done += 1;
                if let Err(error) = one_job(plan, one, name, kind, report) {
                    // fio is a child of the same terminal: the user's Ctrl-C ends it too.
                    match stop.load(Ordering::Relaxed) {
                        true => report.interrupted = true,
                        false => report
                            .warnings
                            .push(format!("{what} failed, and nothing after it: {error}")),
                    }
                    return report.interrupted;
                }
            }
            true
        });
        report.noise.extend(watch.stop());
        report.repetitions += usize::from(!report.interrupted);
    }
}

fn one_job(
    plan: &VolumePlan,
    one: &Ready,
    name: &str,
    kind: &str,
    report: &mut Report,
) -> Result<(), BenchError> {
    let server = one.server();
    let device = one.facts.storage.as_ref().and_then(|it| it.device.clone());
    let meter = Meter::start(server, device.as_deref());
    let cpu = CpuMeter::start(server.as_slice());
    let outcome = fio::run(&Job {
        kind,
        target: &one.target,
        size: one.size,
        block: BLOCK,
        depth: DEPTH,
        time: plan.time,
    })?;
    let cpu = cpu.stop();
    let sample = Sample {
        cpu: Some(cpu),
        traffic: Some(meter.stop()),
        done: Some(Work {
            operations: outcome.operations,
            bytes: outcome.operations * BLOCK,
        }),
        ..outcome.sample
    };
    let subject = &one.facts.name;
    keep(report, subject, name, Unit::OperationsPerSecond, sample);
    if let Some(seconds) = cpu.server {
        let sample = Sample {
            value: seconds / outcome.operations as f64,
            ..Sample::default()
        };
        keep(report, subject, &cpu_row(name), Unit::Seconds, sample);
    }
    Ok(())
}

/// Puts a sample in the place of its repetition.
fn keep(report: &mut Report, subject: &str, workload: &str, unit: Unit, sample: Sample) {
    let new = Series {
        subject: subject.to_owned(),
        workload: workload.to_owned(),
        unit,
        // Rates and times are of one operation each.
        work: Work {
            operations: 1,
            bytes: 0,
        },
        cache: Cache::Direct,
        samples: Vec::new(),
        unstable: false,
    };
    report.keep(new, sample);
}

fn finish(report: &mut Report) {
    let names: Vec<String> = report.subjects.iter().map(|it| it.name.clone()).collect();
    let job = |workload: &str| {
        let all = JOBS.iter().map(|it| it.0.to_owned());
        let mut rows = all.clone().chain(all.map(|it| cpu_row(&it)));
        rows.position(|it| it == workload)
    };
    let place = |subject: &str| names.iter().position(|it| it == subject);
    report
        .series
        .sort_by_key(|it| (place(&it.subject), job(&it.workload)));
    for series in &mut report.series {
        series.samples.resize(report.repetitions, None);
        series.unstable = credibility::is_unstable(series);
    }
    report
        .series
        .retain(|it| it.samples.iter().any(Option::is_some));
    let said = credibility::run_notes(report);
    report
        .warnings
        .extend(credibility::load_note(&report.environment));
    report.warnings.extend(said);
}

impl VolumePlan {
    fn steps(&self) -> usize {
        self.repetitions * self.candidates.len() * JOBS.len()
    }

    fn check(&self) -> Result<(), BenchError> {
        let usage = |why: &str| Err(BenchError::Usage(why.to_owned()));
        if self.size < 4 << 20 || !self.size.is_multiple_of(1 << 20) {
            return usage("--size must be a multiple of 1 MiB, and at least 4 MiB");
        }
        if self.repetitions == 0 || self.time < Duration::from_millis(100) {
            return usage("--reps must be at least 1, and --time at least 100ms");
        }
        for (place, candidate) in self.candidates.iter().enumerate() {
            let name = candidate.name();
            if self
                .candidates
                .iter()
                .take(place)
                .any(|it| it.name() == name)
            {
                return usage(&format!(
                    "two subjects are called {name}: give each way once"
                ));
            }
        }
        if !rustix::process::geteuid().is_root() {
            return usage("loop devices can only be set up by root: use sudo");
        }
        if tool::find("fio").is_none() {
            return usage("fio is not installed: install it (Debian: apt-get install fio)");
        }
        Ok(())
    }

    fn settings(&self) -> std::collections::BTreeMap<String, String> {
        [
            ("size", format!("{} MiB", self.size >> 20)),
            ("time", format!("{} ms", self.time.as_millis())),
            ("block", format!("{BLOCK} bytes")),
            ("iodepth", format!("{DEPTH} requests")),
            ("ioengine", "libaio".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}
