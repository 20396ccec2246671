//! `strandfs bench requests`.

use std::process::ExitCode;

use strandfs_lab::requests::{STEPS, run as count};

use super::{choices, measured, print_notes};
use crate::args::bench::RequestsArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// Counts.
///
/// # Errors
/// A wrong request, a kernel that cannot count, or nothing could be mounted.
pub fn run(args: &RequestsArgs) -> Result<ExitCode, Failure> {
    let subjects = choices(&args.peers, vec![1])?.subjects();
    let counts = measured(&args.output, |stop, progress| {
        count(&subjects, &args.directory, stop, progress)
    })?;
    println!(
        "Linux {}, requests sent by the kernel, {STEPS} files per operation\n\n{}",
        counts.environment.kernel,
        counts.table()
    );
    print_notes(&counts.failures);
    args.output.write(|path| counts.write(path))?;
    Ok(if counts.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        Exit::Degraded.into()
    })
}
