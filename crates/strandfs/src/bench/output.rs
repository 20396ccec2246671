//! `--json` of every benchmark.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use strandfs_lab::BenchError;

use crate::args::bench::OutputArgs;

impl OutputArgs {
    /// Finds out whether the file can be written, before minutes are spent on what is to be in it.
    /// One that is there keeps what it holds until then.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn check(&self) -> Result<(), BenchError> {
        match &self.json {
            Some(path) => writable(path).map_err(BenchError::io("writing", path)),
            None => Ok(()),
        }
    }

    /// Has the file written, if one was asked for. The tables come first: they are there whatever
    /// becomes of the file.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write(
        &self,
        write: impl FnOnce(&Path) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        match &self.json {
            Some(path) => write(path),
            None => Ok(()),
        }
    }
}

/// Whether a file can be written; one that is not there is not left.
///
/// # Errors
/// Those of opening it.
pub(super) fn writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if found.is_file() => File::options().write(true).open(path).map(drop),
        // Who reads from a pipe would take this for all there is.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A link to nothing is left to be written through.
            if fs::symlink_metadata(path).is_ok() {
                return Ok(());
            }
            File::create_new(path)?;
            fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}
