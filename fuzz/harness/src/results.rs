//! What test runs found, a JSON line each, in the file that `STRANDFS_RESULTS` names; the table of
//! `docs/reliability.md` is made of them.

use std::fs::OpenOptions;
use std::io::{self, Write};

/// One suite in one configuration.
#[derive(Clone, Copy, Debug)]
pub struct TestResult<'a> {
    /// What was run.
    pub suite: &'a str,
    /// On what.
    pub configuration: &'a str,
    /// How much of it.
    pub cases: u64,
    /// What `cases` counts.
    pub unit: &'a str,
    /// How many of the failures here have a reason in `docs/semantics.md`.
    pub documented: u64,
    /// How many failed, those included.
    pub failed: u64,
}

impl TestResult<'_> {
    /// Appends it where it is wanted; a run whose results nobody keeps is no fault.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self) -> io::Result<()> {
        append(&format!(
            "{{\"suite\":\"{}\",\"configuration\":\"{}\",\"cases\":{},\"unit\":\"{}\",\
             \"documented\":{},\"failed\":{}}}\n",
            quoted(self.suite),
            quoted(self.configuration),
            self.cases,
            quoted(self.unit),
            self.documented,
            self.failed
        ))
    }
}

/// Faults injected under a load, and what was looked at afterwards. Kept when it goes out of scope:
/// by a test that panics as one that lost something.
#[derive(Clone, Debug)]
pub struct FaultRun {
    /// What was done to the server or its branches.
    pub fault: String,
    /// On what.
    pub configuration: String,
    /// How often.
    pub injected: u64,
    /// Acknowledged bytes that were read and compared afterwards; the same byte counts again after
    /// a further fault.
    pub verified_bytes: u64,
}

impl FaultRun {
    /// Nothing has been injected yet.
    #[must_use]
    pub fn new(fault: &str, configuration: &str) -> Self {
        Self {
            fault: fault.to_owned(),
            configuration: configuration.to_owned(),
            injected: 0,
            verified_bytes: 0,
        }
    }
}

impl Drop for FaultRun {
    fn drop(&mut self) {
        let kept = append(&format!(
            "{{\"fault\":\"{}\",\"configuration\":\"{}\",\"injected\":{},\"verified_bytes\":{},\
             \"failed\":{}}}\n",
            quoted(&self.fault),
            quoted(&self.configuration),
            self.injected,
            self.verified_bytes,
            std::thread::panicking()
        ));
        if let Err(error) = kept {
            eprintln!("the result is not kept: {error}");
        }
    }
}

fn quoted(text: &str) -> String {
    text.replace(['"', '\\'], "'")
}

/// One write: tests that end together must not mix their lines.
fn append(line: &str) -> io::Result<()> {
    let Some(path) = std::env::var_os("STRANDFS_RESULTS") else {
        return Ok(());
    };
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(line.as_bytes())
}
