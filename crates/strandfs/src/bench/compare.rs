//! `strandfs bench compare`.

use std::process::ExitCode;

use strandfs_lab::BenchError;
use strandfs_lab::compare::compare;
use strandfs_lab::result::Report;

use crate::args::bench::results::CompareArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// Compares.
///
/// # Errors
/// A file that is no result, or two that cannot be compared.
pub fn run(args: &CompareArgs) -> Result<ExitCode, Failure> {
    if !(0.0..100.0).contains(&args.threshold) {
        let why = "--threshold must be at least 0 and below 100".to_owned();
        return Err(BenchError::Usage(why).into());
    }
    let (before, after) = (Report::read(&args.before)?, Report::read(&args.after)?);
    let found = compare(&before, &after, args.threshold / 100.0, args.absolute)?;
    let table = found.table(args.all);
    if !table.is_empty() {
        println!("{table}");
    }
    println!("{}", found.summary());
    super::print_notes(&found.notes);
    Ok(match found.is_regression() {
        true => Exit::Slower.into(),
        false => ExitCode::SUCCESS,
    })
}
