//! `strandfs bench report`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use strandfs_lab::BenchError;
use strandfs_lab::report::{Source, page};
use strandfs_lab::result::Report;

use crate::args::bench::results::ReportArgs;
use crate::failure::Failure;

/// Writes the page.
///
/// # Errors
/// A file that is no result, a page in the place of one, or the page cannot be written.
pub fn run(args: &ReportArgs) -> Result<ExitCode, Failure> {
    let target = fs::canonicalize(&args.output).ok();
    let is_target = |path: &PathBuf| target.is_some() && fs::canonicalize(path).ok() == target;
    if let Some(path) = args.files.iter().find(|path| is_target(path)) {
        let why = format!("the page would replace the result {}", path.display());
        return Err(BenchError::Usage(why).into());
    }
    let read = |path: &PathBuf| Ok((path.display().to_string(), Report::read(path)?));
    let reports = args
        .files
        .iter()
        .map(read)
        .collect::<Result<Vec<_>, BenchError>>()?;
    let sources: Vec<Source<'_>> = reports
        .iter()
        .map(|(name, report)| Source { name, report })
        .collect();
    fs::write(&args.output, page(&sources)).map_err(BenchError::io("writing", &args.output))?;
    Ok(ExitCode::SUCCESS)
}
