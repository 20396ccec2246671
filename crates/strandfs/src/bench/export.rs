//! `strandfs bench export`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use strandfs_lab::BenchError;
use strandfs_lab::export::csv;
use strandfs_lab::result::Report;

use crate::args::bench::results::ExportArgs;
use crate::failure::Failure;

/// Writes the table.
///
/// # Errors
/// A file that is no result, or the table cannot be written.
pub fn run(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let text = csv(&Report::read(&args.file)?);
    match &args.output {
        Some(path) => {
            let is_same = fs::canonicalize(path).ok() == fs::canonicalize(&args.file).ok();
            if is_same && path.exists() {
                let why = format!("the table would replace the result {}", path.display());
                return Err(BenchError::Usage(why).into());
            }
            fs::write(path, text).map_err(BenchError::io("writing", path))?;
        }
        None => io::stdout()
            .write_all(text.as_bytes())
            .map_err(BenchError::io("writing to", Path::new("standard output")))?,
    }
    Ok(ExitCode::SUCCESS)
}
