//! `strandfs bench requests`.

use std::path::PathBuf;
use std::process::ExitCode;

use strandfs_bench::metadata::plan::Choices;
use strandfs_bench::requests::{STEPS, run as count};

use super::progress::Bar;
use super::{DEGRADED, named, stop_on_signals};
use crate::args::bench::RequestsArgs;
use crate::failure::Failure;

/// Counts.
///
/// # Errors
/// A wrong request, a kernel that cannot count, or nothing could be mounted.
pub fn run(args: &RequestsArgs) -> Result<ExitCode, Failure> {
    let choices = Choices {
        program: std::env::current_exe().map_err(Failure::system("finding the program"))?,
        variants: named(&args.variants, "--variant")?,
        builds: named(&args.peers, "--peer")?
            .into_iter()
            .map(|(name, program)| (name, PathBuf::from(program)))
            .collect(),
        peers: !args.no_peers,
        branches: vec![1],
    };
    let stop = stop_on_signals()?;
    let bar = Bar::new();
    let counts = count(&choices.subjects(), &args.directory, &stop, &mut |step| {
        bar.show(step);
    })?;
    drop(bar);
    if let Some(path) = &args.json {
        counts.write(path)?;
    }
    println!(
        "Linux {}, requests sent by the kernel, {STEPS} files per operation\n\n{}",
        counts.environment.kernel,
        counts.table()
    );
    for failure in &counts.failures {
        println!("note: {failure}");
    }
    Ok(if counts.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(DEGRADED)
    })
}
