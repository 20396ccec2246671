//! `strandfs bench layers`, `passthrough` and `blocksize`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use strandfs_lab::depth::{self as queues, DepthPlan};
use strandfs_lab::expense;
use strandfs_lab::layers::judge::ALL_ROWS;
use strandfs_lab::layers::plan::{Mode, Transport, named};
use strandfs_lab::layers::setup::silent;
use strandfs_lab::layers::text;
use strandfs_lab::layers::{LayersPlan, Target};
use strandfs_lab::matrix::recipe;
use strandfs_lab::progress::Step;
use strandfs_lab::result::{Kind, Report, Verdict};
use strandfs_lab::sequential::FIRST;
use strandfs_lab::stats::FEWEST_FOR_INTERVAL;
use strandfs_lab::{BenchError, blocksize as sizes, layers as levels, passthrough as ways};

use strandfs_options::show_size;

use super::worker::{self, GivenUp, Outcome, Teller};
use super::{measured, print_notes, stop_on_signals, this_program};
use crate::args::bench::layers::{DataArgs, DepthArgs, FarArgs, LayersArgs, RunArgs};
use crate::args::bench::{OutputArgs, PoolArgs};
use crate::exit::Exit;
use crate::failure::Failure;

/// Repetitions for figures, where no other number is asked for.
const REPETITIONS: usize = 9;
/// Repetitions, at most, for an answer.
const MOST_REPETITIONS: usize = 20;
/// The same for a quick one, which its minute ends: on a fast target twenty take a quarter of that.
const MOST_QUICK_REPETITIONS: usize = 60;
/// The time for an answer.
const TIME_LIMIT: Duration = Duration::from_secs(300);
/// The time for a quick one.
const QUICK_LIMIT: Duration = Duration::from_secs(60);

/// A benchmark on data.
type Measure = fn(
    &LayersPlan,
    &std::sync::atomic::AtomicBool,
    &mut strandfs_lab::progress::Progress<'_>,
) -> Result<Report, BenchError>;

/// Measures the layers and says which is slow.
///
/// # Errors
/// A wrong request, or nothing could be measured.
pub fn layers(args: &LayersArgs) -> Result<ExitCode, Failure> {
    if args.worker {
        return work(args);
    }
    args.run.output.check()?;
    let limit = args.quick.then(|| limit(args)).flatten();
    let report = match worker::supervise(limit)? {
        Outcome::Done(report) => report,
        Outcome::Failed(code) => return Ok(code),
        Outcome::GivenUp(end) => given_up(args, end),
    };
    heading(&report, args.run.size);
    for line in text::headlines(&report) {
        println!("{line}\n");
    }
    if !report.series.is_empty() {
        print_tables(&report);
    }
    finish(&report, &args.run.output)
}

fn print_tables(report: &Report) {
    print!("{}\n{}", text::levels(report), text::layers(report));
    println!("{}", text::expense(report));
    for table in [
        text::branches(report),
        text::round_trips(report),
        text::lines(report),
    ] {
        if !table.is_empty() {
            println!("{table}");
        }
    }
}

/// The result of a measurement that did not end: what there was, and what it waits for.
fn given_up(args: &LayersArgs, end: GivenUp) -> Report {
    let is_judged = end.report.is_some();
    let mut report = end.report.unwrap_or_else(|| {
        Report::new(Kind::Layers, args.run.pools.regime.regime(), args.run.seed)
    });
    report.interrupted |= end.interrupted;
    let (waits, subject) = match end.at {
        Some(at) => {
            let targets: Vec<String> = args
                .targets
                .iter()
                .map(|it| it.to_string_lossy().into_owned())
                .collect();
            let waits = format!(
                "\"{}\" had not ended {:.0} s after it began; {}",
                at.what,
                at.since.as_secs_f64(),
                silent(&at.subject, &targets)
            );
            (waits, at.subject)
        }
        None => ("nothing was begun".to_owned(), String::new()),
    };
    match is_judged {
        true => report.warnings.push(waits),
        false => report.verdicts.push(Verdict {
            about: ALL_ROWS.to_owned(),
            subject,
            layer: None,
            share: None,
            text: format!("cannot tell: {waits}"),
            parts: Vec::new(),
            per: String::new(),
            tried: Vec::new(),
        }),
    }
    if let Some(pid) = end.left {
        report.warnings.push(format!(
            "the process that measures, {pid}, is left behind: a call to storage cannot be ended from outside; when it \
             returns the process unmounts its pools, removes its files and ends"
        ));
    }
    report
}

/// The process that measures.
fn work(args: &LayersArgs) -> Result<ExitCode, Failure> {
    let stop = stop_on_signals()?;
    let teller = Teller { stop: &stop };
    for target in &args.targets {
        // Even to look whether it is there may not return.
        let subject = target.to_string_lossy();
        teller.step(&Step {
            what: &format!("looking at {subject}"),
            subject: &subject,
            ..Step::default()
        });
    }
    let plan = layers_plan(args)?;
    let report = levels::run(&plan, &stop, &mut |step| teller.step(step), &mut |report| {
        teller.judged(report)
    })?;
    teller.done(report);
    Ok(ExitCode::SUCCESS)
}

/// What the measurement may take.
fn limit(args: &LayersArgs) -> Option<Duration> {
    match (args.run.time_limit, args.quick) {
        (Some(limit), _) => Some(limit),
        (None, true) => Some(QUICK_LIMIT),
        (None, false) => args.run.reps.is_none().then_some(TIME_LIMIT),
    }
}

fn layers_plan(args: &LayersArgs) -> Result<LayersPlan, Failure> {
    let modes = match (args.modes.is_empty(), args.quick) {
        (true, false) => Mode::ALL.to_vec(),
        (true, true) => vec![levels::plan::quick_mode()],
        _ => named("mode", &Mode::ALL, Mode::name, &args.modes)?,
    };
    let mut transports = named(
        "transport",
        &Transport::ALL,
        Transport::name,
        &args.transports,
    )?;
    if args.quick && transports.is_empty() {
        transports.push(Transport::Device);
    }
    // Pools of several branches are compared, not judged: their figures need intervals.
    let first = match args.branches.is_empty() {
        true => FIRST,
        false => FEWEST_FOR_INTERVAL,
    };
    let first = args.run.reps.unwrap_or(first);
    let most = args.run.reps.unwrap_or(match args.quick {
        true => MOST_QUICK_REPETITIONS,
        false => MOST_REPETITIONS,
    });
    Ok(LayersPlan {
        deadline: deadline(limit(args)),
        targets: targets(&args.targets, &args.run.pools)?,
        modes,
        transports,
        only: args.only.clone(),
        branches: args.branches.clone(),
        round_trips: args.round_trips.clone(),
        far_program: this_program()?,
        cross_check: !args.no_cross_check && !args.quick,
        is_quick: args.quick,
        repetitions: first.min(args.run.max_reps.unwrap_or(first)),
        most_repetitions: args.run.max_reps.unwrap_or(most).max(first),
        ..plan(&args.run)?
    })
}

/// Measures the ways in which a pool moves data.
///
/// # Errors
/// As [`layers`].
pub fn passthrough(args: &DataArgs) -> Result<ExitCode, Failure> {
    let report = measure(ways::run, &with_target(args)?, &args.run)?;
    println!("{}\n{}", ways::table(&report), all_expense(&report));
    finish(&report, &args.run.output)
}

/// Measures what block sizes cost.
///
/// # Errors
/// As [`layers`].
pub fn blocksize(args: &DataArgs) -> Result<ExitCode, Failure> {
    let report = measure(sizes::run, &with_target(args)?, &args.run)?;
    println!(
        "{}\n{}\n{}",
        sizes::table(&report),
        text::lines(&report),
        text::expense(&report)
    );
    finish(&report, &args.run.output)
}

/// Serves a directory with a round trip before every answer, for a benchmark that runs.
///
/// # Errors
/// Those of mounting.
pub fn far(args: &FarArgs) -> Result<ExitCode, Failure> {
    strandfs_lab::far::serve(&args.directory, &args.mountpoint, args.round_trip)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures deep queues.
///
/// # Errors
/// As [`layers`].
pub fn depth(args: &DepthArgs) -> Result<ExitCode, Failure> {
    let plan = DepthPlan {
        modes: named("mode", &Mode::ALL, Mode::name, &args.modes)?,
        depths: args.depths.clone(),
        time: args.time,
        place: LayersPlan {
            targets: targets(args.target.as_slice(), &args.pools)?,
            file_bytes: args.size,
            repetitions: args.reps,
            seed: args.seed,
            ..pools(&args.pools)?
        },
    };
    let report = measured(&args.output, |stop, progress| {
        queues::run(&plan, stop, progress)
    })?;
    heading(&report, plan.place.file_bytes);
    println!("{}\n{}", queues::table(&report), queues::expense(&report));
    finish(&report, &args.output)
}

/// CPU time and paths of all rows.
fn all_expense(report: &Report) -> String {
    let rows = report.workloads();
    let rows: Vec<&str> = rows.into_iter().filter(|it| !it.contains(',')).collect();
    let tables = [
        expense::cpu_table(report, &rows),
        expense::path_table(report, &rows),
    ];
    tables.join("\n")
}

fn with_target(args: &DataArgs) -> Result<LayersPlan, Failure> {
    Ok(LayersPlan {
        targets: targets(args.target.as_slice(), &args.run.pools)?,
        ..plan(&args.run)?
    })
}

/// What these words name.
///
/// # Errors
/// A target, or a file of filesystems, that is none.
pub(super) fn targets(words: &[OsString], args: &PoolArgs) -> Result<Vec<Target>, BenchError> {
    let recipes = recipe::all(args.filesystems.as_deref())?;
    let parse = |it: &OsString| Target::parse(it, &recipes);
    words.iter().map(parse).collect()
}

/// As long as something can be measured in it.
fn deadline(limit: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(limit?)
}

/// A plan for these pools, of one repetition on memory.
///
/// # Errors
/// The program that runs has no name.
pub(super) fn pools(args: &PoolArgs) -> Result<LayersPlan, Failure> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => this_program()?,
    };
    Ok(LayersPlan {
        options: args.options.clone(),
        regime: args.regime.regime(),
        directory: args.directory.clone(),
        ..LayersPlan::new(program, args.images.clone())
    })
}

fn plan(args: &RunArgs) -> Result<LayersPlan, Failure> {
    Ok(LayersPlan {
        modes: Mode::ALL.to_vec(),
        file_bytes: args.size,
        repetitions: args.reps.unwrap_or(REPETITIONS),
        most_repetitions: args.max_reps.or(args.reps).unwrap_or(2 * REPETITIONS),
        deadline: deadline(args.time_limit),
        sample_limit: args.sample_time,
        cross_check: true,
        seed: args.seed,
        ..pools(&args.pools)?
    })
}

fn measure(measure: Measure, plan: &LayersPlan, args: &RunArgs) -> Result<Report, Failure> {
    let report = measured(&args.output, |stop, progress| measure(plan, stop, progress))?;
    heading(&report, plan.file_bytes);
    Ok(report)
}

fn heading(report: &Report, file_bytes: u64) {
    println!(
        "{}; {}; files of {}, {} repetitions\n",
        super::machine(&report.environment),
        report.regime.describe(&report.environment, &report.noise),
        show_size(file_bytes),
        report.repetitions
    );
}

fn finish(report: &Report, output: &OutputArgs) -> Result<ExitCode, Failure> {
    print_notes(&report.warnings);
    output.write(|path| report.write(path))?;
    Ok(
        match (report.repetitions, report.interrupted || report.has_failed) {
            (0, _) => Exit::Failed.into(),
            (_, true) => Exit::Degraded.into(),
            _ => ExitCode::SUCCESS,
        },
    )
}
