//! `strandfs bench metadata`.

use std::process::ExitCode;

use strandfs_lab::metadata::plan::workloads;
use strandfs_lab::metadata::{MetadataPlan, Results, User, run as measure};

use super::{choices, measured, print_notes};
use crate::args::bench::MetadataArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// Measures.
///
/// # Errors
/// A wrong request, or nothing could be measured.
pub fn run(args: &MetadataArgs) -> Result<ExitCode, Failure> {
    args.output.check()?;
    let mut choices = choices(&args.peers, args.branches.clone())?;
    choices.without_passthrough = true;
    let mut plan = MetadataPlan {
        reads_only: choices.reads_only(),
        subjects: choices.subjects(),
        workloads: workloads(&args.only)?,
        callers: args.callers.clone(),
        user: args.user.as_deref().map(User::named).transpose()?,
        files: args.files,
        repetitions: args.reps,
        regime: args.regime.regime(),
        directory: args.directory.clone(),
        seed: args.seed,
    };
    for line in plan.settle()? {
        say!("{line}");
    }
    let results = measured(&args.output, |stop, progress| {
        measure(&plan, stop, progress)
    })?;
    print(&results);
    args.output.write(|path| results.report().write(path))?;
    Ok(match (results.repetitions, results.failures.is_empty()) {
        (0, _) => Exit::Failed.into(),
        (_, true) if !results.interrupted => ExitCode::SUCCESS,
        _ => Exit::Degraded.into(),
    })
}

fn print(results: &Results) {
    println!(
        "{}; {}; {} entries, {} repetitions{}",
        super::machine(&results.environment),
        results
            .regime
            .describe(&results.environment, &results.noise),
        results.files,
        results.repetitions,
        results.user.as_ref().map_or_else(String::new, |user| {
            format!(", the calls are those of user {user}")
        })
    );
    for line in results.transports() {
        println!("{line}");
    }
    if results.repetitions > 0 {
        println!("\n{}", results.table());
        let against = results.against_mergerfs();
        for table in [against, results.server_cpu()] {
            if !table.is_empty() {
                println!("{table}");
            }
        }
    }
    print_notes(&results.warnings());
}
