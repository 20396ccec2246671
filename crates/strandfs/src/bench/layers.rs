//! `strandfs bench layers`, `passthrough` and `blocksize`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use strandfs_lab::depth::{self as queues, DepthPlan};
use strandfs_lab::expense;
use strandfs_lab::layers::plan::{Mode, Transport, named};
use strandfs_lab::layers::text;
use strandfs_lab::layers::{LayersPlan, Target};
use strandfs_lab::matrix::recipe;
use strandfs_lab::result::Report;
use strandfs_lab::sequential::FIRST;
use strandfs_lab::stats::FEWEST_FOR_INTERVAL;
use strandfs_lab::{BenchError, blocksize as sizes, layers as levels, passthrough as ways};

use strandfs_options::show_size;

use super::progress::Bar;
use super::{stop_on_signals, this_program};
use crate::args::bench::layers::{DataArgs, DepthArgs, LayersArgs, RunArgs};
use crate::exit::Exit;
use crate::failure::Failure;

/// Repetitions for figures, where no other number is asked for.
const REPETITIONS: usize = 9;
/// Repetitions, at most, for an answer.
const MOST_REPETITIONS: usize = 20;
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
    let is_told = args.run.reps.is_some();
    let limit = match (args.run.time_limit, args.quick) {
        (Some(limit), _) => Some(limit),
        (None, true) => Some(QUICK_LIMIT),
        (None, false) => (!is_told).then_some(TIME_LIMIT),
    };
    let first = args.run.reps.unwrap_or(FIRST);
    let most = args.run.reps.unwrap_or(MOST_REPETITIONS);
    let plan = LayersPlan {
        targets: targets(&args.targets, &args.run)?,
        modes,
        transports,
        only: args.only.clone(),
        cross_check: !args.no_cross_check && !args.quick,
        is_quick: args.quick,
        repetitions: first.min(args.run.max_reps.unwrap_or(first)),
        most_repetitions: args.run.max_reps.unwrap_or(most).max(first),
        deadline: deadline(limit),
        ..plan(&args.run)?
    };
    let report = measure(levels::run, &plan, &args.run)?;
    for line in text::headlines(&report) {
        println!("{line}\n");
    }
    print!("{}\n{}", text::levels(&report), text::layers(&report));
    println!("{}", text::expense(&report));
    let lines = text::lines(&report);
    if !lines.is_empty() {
        println!("{lines}");
    }
    finish(&report, &args.run)
}

/// Measures the ways in which a pool moves data.
///
/// # Errors
/// As [`layers`].
pub fn passthrough(args: &DataArgs) -> Result<ExitCode, Failure> {
    let report = measure(ways::run, &with_target(args)?, &args.run)?;
    println!("{}\n{}", ways::table(&report), all_expense(&report));
    finish(&report, &args.run)
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
    finish(&report, &args.run)
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
            targets: targets(args.target.as_slice(), &args.run)?,
            repetitions: args.run.reps.unwrap_or(FEWEST_FOR_INTERVAL),
            ..plan(&args.run)?
        },
    };
    args.run.output.check()?;
    let stop = stop_on_signals()?;
    let bar = Bar::new();
    let report = queues::run(&plan, &stop, &mut |step| bar.show(step))?;
    drop(bar);
    heading(&report, &plan.place);
    println!("{}\n{}", queues::table(&report), queues::expense(&report));
    finish(&report, &args.run)
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
        targets: targets(args.target.as_slice(), &args.run)?,
        ..plan(&args.run)?
    })
}

fn targets(words: &[OsString], args: &RunArgs) -> Result<Vec<Target>, BenchError> {
    let recipes = recipe::all(args.filesystems.as_deref())?;
    let parse = |it: &OsString| Target::parse(it, &recipes);
    words.iter().map(parse).collect()
}

/// As long as something can be measured in it.
fn deadline(limit: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(limit?)
}

fn plan(args: &RunArgs) -> Result<LayersPlan, Failure> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => this_program()?,
    };
    Ok(LayersPlan {
        program,
        targets: Vec::new(),
        images: args.images.clone(),
        modes: Mode::ALL.to_vec(),
        transports: Vec::new(),
        only: Vec::new(),
        options: args.options.clone(),
        file_bytes: args.size,
        repetitions: args.reps.unwrap_or(REPETITIONS),
        most_repetitions: args.max_reps.or(args.reps).unwrap_or(2 * REPETITIONS),
        deadline: deadline(args.time_limit),
        is_quick: false,
        sample_limit: args.sample_time,
        cross_check: true,
        regime: args.regime.regime(),
        directory: args.directory.clone(),
        seed: args.seed,
    })
}

fn measure(measure: Measure, plan: &LayersPlan, args: &RunArgs) -> Result<Report, Failure> {
    args.output.check()?;
    let stop = stop_on_signals()?;
    let bar = Bar::new();
    let report = measure(plan, &stop, &mut |step| bar.show(step))?;
    drop(bar);
    heading(&report, plan);
    Ok(report)
}

fn heading(report: &Report, plan: &LayersPlan) {
    println!(
        "{}; {}; files of {}, {} repetitions\n",
        super::machine(&report.environment),
        report.regime.describe(&report.environment, &report.noise),
        show_size(plan.file_bytes),
        report.repetitions
    );
}

fn finish(report: &Report, args: &RunArgs) -> Result<ExitCode, Failure> {
    for warning in &report.warnings {
        println!("note: {warning}");
    }
    args.output.write(|path| report.write(path))?;
    Ok(match (report.repetitions, report.interrupted) {
        (0, _) => Exit::Failed.into(),
        (_, true) => Exit::Degraded.into(),
        _ => ExitCode::SUCCESS,
    })
}
