//! `strandfs bench latency`.

use std::process::ExitCode;

use strandfs_lab::BenchError;
use strandfs_lab::latency::{LatencyPlan, run as measure, text};
use strandfs_lab::layers::LayersPlan;
use strandfs_lab::layers::plan::{Mode, named};
use strandfs_lab::result::Report;

use super::layers::{pools, targets};
use super::{conclude, measured, print_notes, setting};
use crate::args::bench::latency::LatencyArgs;
use crate::failure::Failure;

/// Rounds, where no other number is asked for.
const ROUNDS: usize = 10;
/// The most that the specification allows until steady state.
const STEADY_ROUNDS: usize = 25;

/// Measures.
///
/// # Errors
/// A wrong request, or nothing could be measured.
pub fn run(args: &LatencyArgs) -> Result<ExitCode, Failure> {
    let plan = plan(args)?;
    let report = measured(&args.output, |stop, progress| {
        measure(&plan, stop, progress)
    })?;
    print(&report);
    args.output.write(|path| report.write(path))?;
    let is_steady =
        |it: &strandfs_lab::result::Distribution| it.window.is_some_and(|it| it.is_steady);
    let steady = !plan.until_steady || report.distributions.iter().all(is_steady);
    Ok(conclude(&report, steady && !report.has_failed))
}

fn plan(args: &LatencyArgs) -> Result<LatencyPlan, Failure> {
    let mut modes = match args.modes.is_empty() {
        true => Mode::ALL.to_vec(),
        false => named("mode", &Mode::ALL, Mode::name, &args.modes)?,
    };
    modes.dedup();
    let default_rounds = if args.steady { STEADY_ROUNDS } else { ROUNDS };
    let block_bytes = usize::try_from(args.block)
        .map_err(|_| BenchError::Usage("--block is too large".to_owned()))?;
    Ok(LatencyPlan {
        place: LayersPlan {
            targets: targets(args.target.as_slice(), &args.pools)?,
            file_bytes: args.size,
            sample_limit: args.round,
            seed: args.seed,
            ..pools(&args.pools)?
        },
        modes,
        operation: args.operation.operation(),
        block_bytes,
        rate: args.rate,
        threads: args.threads,
        is_direct: args.direct,
        is_synced: args.sync,
        round: args.round,
        rounds: args.rounds.unwrap_or(default_rounds),
        until_steady: args.steady,
    })
}

fn print(report: &Report) {
    let setting = |name| setting(report, name);
    println!(
        "{}; {}; {}, {}, {} rounds of {}\n",
        super::machine(&report.environment),
        report.regime.describe(&report.environment, &report.noise),
        report.workloads().join(", "),
        setting("rate"),
        report.repetitions,
        setting("round"),
    );
    println!("{}\n{}", text::rates(report), text::percentiles(report));
    println!("{}\n{}", text::over_time(report), text::expense(report));
    print_notes(&report.warnings);
}
