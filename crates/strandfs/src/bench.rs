//! `strandfs bench`: what its subcommands share.

mod compare;
mod export;
mod latency;
mod layers;
mod live;
mod matrix;
mod metadata;
mod output;
mod progress;
mod report;
mod reproduce;
mod requests;
mod volume;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use strandfs_lab::BenchError;
use strandfs_lab::environment::Environment;
use strandfs_lab::metadata::plan::Choices;
use strandfs_lab::progress::Progress;
use strandfs_lab::result::Report;

use crate::args::bench::{BenchCommand, OutputArgs, PeerArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use progress::Bar;

/// Measures.
///
/// # Errors
/// A wrong request, or nothing could be measured.
pub fn run(command: &BenchCommand) -> Result<ExitCode, Failure> {
    match command {
        BenchCommand::Layers(args) => layers::layers(args),
        BenchCommand::Live(args) => live::run(args),
        BenchCommand::Blocksize(args) => layers::blocksize(args),
        BenchCommand::Passthrough(args) => layers::passthrough(args),
        BenchCommand::Metadata(args) => metadata::run(args),
        BenchCommand::Matrix(args) => matrix::run(args),
        BenchCommand::Volume(args) => volume::run(args),
        BenchCommand::Compare(args) => compare::run(args),
        BenchCommand::Latency(args) => latency::run(args),
        BenchCommand::Depth(args) => layers::depth(args),
        BenchCommand::Far(args) => layers::far(args),
        BenchCommand::Reproduce(args) => reproduce::run(args),
        BenchCommand::Report(args) => report::run(args),
        BenchCommand::Export(args) => export::run(args),
        BenchCommand::Requests(args) => requests::run(args),
    }
}

/// Everything mounted has to go whichever way a run ends, a closed terminal's included, so a signal only
/// asks for the end: the result turns true. What was ignored from the beginning (nohup) stays so.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let ignored = ignored();
    let signals = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];
    for signal in signals
        .into_iter()
        .filter(|it| ignored & (1 << (it - 1)) == 0)
    {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(Failure::system("taking charge of signals"))?;
    }
    Ok(stop)
}

/// The signals that whoever started this program had it ignore, a bit for each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok())
        .unwrap_or(0)
}

/// Measures, with a bar for whoever waits. Whether the result can be written is known before.
///
/// # Errors
/// Those of the measurement, and a file for the result that cannot be written.
fn measured<T>(
    output: &OutputArgs,
    measure: impl FnOnce(&AtomicBool, &mut Progress<'_>) -> Result<T, BenchError>,
) -> Result<T, Failure> {
    output.check()?;
    let stop = stop_on_signals()?;
    let bar = Bar::new();
    Ok(measure(&stop, &mut |step| bar.show(step))?)
}

/// What a reader has to know beside the figures.
fn print_notes(notes: &[String]) {
    for note in notes {
        println!("note: {note}");
    }
}

/// A setting of a result, for its first line.
fn setting<'a>(report: &'a Report, name: &str) -> &'a str {
    report.settings.get(name).map_or("?", String::as_str)
}

/// What a figure was measured on, for the first line.
fn machine(machine: &Environment) -> String {
    format!(
        "Linux {}, {} CPUs ({})",
        machine.kernel, machine.cpus, machine.cpu_model
    )
}

/// The exit code of a result of which `complete` says whether nothing is missing.
fn conclude(report: &Report, complete: bool) -> ExitCode {
    match (report.series.is_empty(), complete && !report.interrupted) {
        (true, _) => Exit::Failed.into(),
        (_, true) => ExitCode::SUCCESS,
        (_, false) => Exit::Degraded.into(),
    }
}

/// The program that runs: what is measured where no other is named.
fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(Failure::system("finding the program"))
}

/// The pools to measure, of so many branches, and what beside them.
fn choices(args: &PeerArgs, branches: Vec<usize>) -> Result<Choices, Failure> {
    let builds = named(&args.builds, "--peer")?.into_iter();
    Ok(Choices {
        without_passthrough: false,
        program: this_program()?,
        variants: named(&args.variants, "--variant")?,
        builds: builds
            .map(|(name, program)| (name, PathBuf::from(program)))
            .collect(),
        peers: !args.no_peers,
        branches,
    })
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
