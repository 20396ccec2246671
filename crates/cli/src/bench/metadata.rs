//! `strandfs bench metadata`.

use std::path::PathBuf;
use std::process::ExitCode;

use strandfs_bench::metadata::plan::{Choices, workloads};
use strandfs_bench::metadata::{Plan, Results, run as measure};
use strandfs_bench::regime::Regime;

use super::progress::Bar;
use super::{DEGRADED, named, stop_on_signals};
use crate::args::bench::MetadataArgs;
use crate::failure::Failure;

/// Measures.
///
/// # Errors
/// A wrong request, or nothing could be measured.
pub fn run(args: &MetadataArgs) -> Result<ExitCode, Failure> {
    let program = std::env::current_exe().map_err(Failure::system("finding the program"))?;
    let choices = Choices {
        program,
        variants: named(&args.variants, "--variant")?,
        builds: named(&args.peers, "--peer")?
            .into_iter()
            .map(|(name, program)| (name, PathBuf::from(program)))
            .collect(),
        peers: !args.no_peers,
        branches: args.branches.clone(),
    };
    let mut plan = Plan {
        subjects: choices.subjects(),
        workloads: workloads(&args.only)?,
        files: args.files,
        repetitions: args.reps,
        regime: if args.busy {
            Regime::Busy
        } else {
            Regime::Quiet
        },
        directory: args.directory.clone(),
        seed: args.seed,
    };
    for line in plan.settle()? {
        eprintln!("strandfs: {line}");
    }
    let stop = stop_on_signals()?;
    let bar = Bar::new();
    let results = measure(&plan, &stop, &mut |step| bar.show(step))?;
    drop(bar);
    if let Some(path) = &args.json {
        results.report().write(path)?;
    }
    print(&results);
    Ok(match (results.repetitions, results.failures.is_empty()) {
        (0, _) => ExitCode::from(crate::failure::FAILED),
        (_, true) if !results.interrupted => ExitCode::SUCCESS,
        _ => ExitCode::from(DEGRADED),
    })
}

fn print(results: &Results) {
    let machine = &results.environment;
    println!(
        "Linux {}, {} CPUs ({}), regime: {}, {} entries, {} repetitions",
        machine.kernel,
        machine.cpus,
        machine.cpu_model,
        results.regime.name(),
        results.files,
        results.repetitions
    );
    if results.repetitions > 0 {
        println!("\n{}", results.table());
        let against = results.against_mergerfs();
        if !against.is_empty() {
            println!("{against}");
        }
    }
    for warning in results.warnings() {
        println!("note: {warning}");
    }
}
