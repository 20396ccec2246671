//! What test runs found, a JSON line each, in the file that `STRANDFS_RESULTS` names; the table of
//! `docs/reliability.md` is made of them.

use std::io::Write;

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
    pub fn keep(&self) -> std::io::Result<()> {
        let Some(path) = std::env::var_os("STRANDFS_RESULTS") else {
            return Ok(());
        };
        let quoted = |text: &str| text.replace(['"', '\\'], "'");
        let line = format!(
            "{{\"suite\":\"{}\",\"configuration\":\"{}\",\"cases\":{},\"unit\":\"{}\",\
             \"documented\":{},\"failed\":{}}}\n",
            quoted(self.suite),
            quoted(self.configuration),
            self.cases,
            quoted(self.unit),
            self.documented,
            self.failed
        );
        // One write: tests that end together must not mix their lines.
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.append(true).create(true).open(path)?;
        file.write_all(line.as_bytes())
    }
}
