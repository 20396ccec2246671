//! `strandfs bench requests`.

use std::process::ExitCode;

use strandfs_lab::requests::{STEPS, run as count};

use super::progress::Bar;
use super::{choices, stop_on_signals};
use crate::args::bench::RequestsArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// Counts.
///
/// # Errors
/// A wrong request, a kernel that cannot count, or nothing could be mounted.
pub fn run(args: &RequestsArgs) -> Result<ExitCode, Failure> {
    args.output.check()?;
    let choices = choices(&args.peers, vec![1])?;
    let stop = stop_on_signals()?;
    let bar = Bar::new();
    let counts = count(&choices.subjects(), &args.directory, &stop, &mut |step| {
        bar.show(step);
    })?;
    drop(bar);
    println!(
        "Linux {}, requests sent by the kernel, {STEPS} files per operation\n\n{}",
        counts.environment.kernel,
        counts.table()
    );
    for failure in &counts.failures {
        println!("note: {failure}");
    }
    args.output.write(|path| counts.write(path))?;
    Ok(if counts.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        Exit::Degraded.into()
    })
}
