//! `strandfs bench matrix`.

use std::process::ExitCode;

use strandfs_lab::BenchError;
use strandfs_lab::matrix::recipe;
use strandfs_lab::matrix::{Backing, MatrixPlan, run as measure, table};
use strandfs_lab::result::Report;

use super::{conclude, measured, print_notes, setting};
use crate::args::bench::matrix::{MatrixArgs, MatrixPreset};
use crate::failure::Failure;

/// Repetitions that unstable figures get beyond those asked for.
const MORE_REPETITIONS: usize = 3;

/// Measures.
///
/// # Errors
/// A wrong request, a device that must not be touched, or nothing could be measured.
pub fn run(args: &MatrixArgs) -> Result<ExitCode, Failure> {
    let plan = plan(args)?;
    let report = measured(&args.output, |stop, progress| {
        measure(&plan, stop, progress)
    })?;
    print(&report);
    args.output.write(|path| report.write(path))?;
    let complete = report.subjects.len() == plan.recipes.len();
    Ok(conclude(&report, complete))
}

fn plan(args: &MatrixArgs) -> Result<MatrixPlan, BenchError> {
    let size = args.size.unwrap_or(match args.preset {
        MatrixPreset::SeedSmall => 1 << 30,
        MatrixPreset::SeedLarge => 5 << 30,
    });
    if args.device != args.i_will_lose_data_on {
        return Err(BenchError::Usage(
            "--device and --i-will-lose-data-on name different devices".to_owned(),
        ));
    }
    Ok(MatrixPlan {
        recipes: recipe::choose(recipe::all(args.filesystems.as_deref())?, &args.only)?,
        size,
        repetitions: args.reps,
        most_repetitions: args
            .max_reps
            .unwrap_or(args.reps.saturating_add(MORE_REPETITIONS)),
        pause: args.pause,
        place: match &args.device {
            Some(device) => Backing::Device(device.clone()),
            None => Backing::Image,
        },
        directory: args.directory.clone(),
        seed: args.seed,
    })
}

fn print(report: &Report) {
    let setting = |name| setting(report, name);
    println!(
        "{}, {} repetitions, a file of {} in blocks of {} on {}",
        super::machine(&report.environment),
        report.repetitions,
        setting("size"),
        setting("block"),
        setting("device"),
    );
    if !report.series.is_empty() {
        println!("\n{}", table::speeds(report));
        println!("{}", table::repeats(report));
        println!("{}", table::cpu(report));
        let differences = table::differences(report);
        if !differences.is_empty() {
            println!("{differences}");
        }
    }
    for sentence in table::conclusions(report) {
        println!("{sentence}");
    }
    print_notes(&report.warnings);
}
