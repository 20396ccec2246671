//! `strandfs bench`.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strandfs_bench::BenchError;
use strandfs_bench::metadata::plan::{Choices, workloads};
use strandfs_bench::metadata::{Plan, Results, run as measure};
use strandfs_bench::regime::Regime;

use crate::args::{BenchCommand, MetadataArgs};
use crate::failure::Failure;

/// Exit code of a result with a blemish: something was left out or went wrong on a peer.
const DEGRADED: u8 = 3;

/// Measures.
///
/// # Errors
/// A wrong request, or nothing could be measured.
pub fn run(command: &BenchCommand) -> Result<ExitCode, Failure> {
    match command {
        BenchCommand::Metadata(args) => metadata(args),
    }
}

fn metadata(args: &MetadataArgs) -> Result<ExitCode, Failure> {
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
    // Everything mounted has to go whichever way the run ends, so a signal only asks for the end.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(Failure::system("taking charge of signals"))?;
    }
    let results = measure(&plan, &stop, &mut tell())?;
    if let Some(path) = &args.json {
        write_json(path, &results)?;
    }
    print(&results);
    Ok(match (results.repetitions, results.failures.is_empty()) {
        (0, _) => ExitCode::from(crate::failure::FAILED),
        (_, true) if !results.interrupted => ExitCode::SUCCESS,
        _ => ExitCode::from(DEGRADED),
    })
}

/// Shows progress on a terminal, one line that is overwritten.
fn tell() -> impl FnMut(&str) {
    let shown = io::stderr().is_terminal();
    move |line: &str| {
        if shown {
            eprint!("\r\x1b[K{line}");
            let _ = io::stderr().flush();
        }
    }
}

fn print(results: &Results) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
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

fn write_json(path: &Path, results: &Results) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(results)
        .map_err(|error| Failure::system("writing the samples")(error.into()))?;
    std::fs::write(path, text).map_err(BenchError::io("writing", path))?;
    Ok(())
}

/// Splits `NAME=VALUE`.
fn named(items: &[String], flag: &str) -> Result<Vec<(String, String)>, BenchError> {
    let split = |item: &String| match item.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(BenchError::Usage(format!(
            "{flag} takes NAME=VALUE, not {item:?}"
        ))),
    };
    items.iter().map(split).collect()
}
