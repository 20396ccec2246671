//! `bench requests`: how many requests the kernel sends for what programs do, counted by the kernel
//! itself, for any FUSE filesystem.

pub mod operation;
mod trace;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use self::operation::{OPERATIONS, Operation};
use self::trace::Trace;
use crate::environment::Environment;
use crate::error::BenchError;
use crate::progress::{Progress, Step};
use crate::scratch::Scratch;
use crate::subject::{Mounted, Subject, SubjectKind};

/// Files each operation works on. One more is worked on first, uncounted.
pub const STEPS: usize = 100;

/// The name of a file. The first is for what is not counted.
fn name(number: usize) -> String {
    format!("file-{number:03}")
}

/// Everything that was counted.
#[derive(Debug, Serialize)]
pub struct Counts {
    /// The machine.
    pub environment: Environment,
    /// Files per operation.
    pub steps: usize,
    /// One each.
    pub subjects: Vec<Counted>,
    /// What went wrong, a sentence each.
    pub failures: Vec<String>,
}

/// The counts of one subject.
#[derive(Debug, Serialize)]
pub struct Counted {
    /// The subject.
    pub name: String,
    /// Requests per file, by operation and request.
    pub operations: Vec<Row>,
}

/// One operation.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub operation: String,
    /// Requests per file, by the name FUSE gives them.
    pub requests: BTreeMap<String, f64>,
}

impl Row {
    /// All requests per file.
    pub fn total(&self) -> f64 {
        self.requests.values().sum()
    }
}

/// Counts for every subject; those without requests of their own (the bare filesystem, overlayfs)
/// are passed over.
///
/// # Errors
/// The kernel cannot count ([`BenchError::Usage`]); nothing could be mounted; interrupted.
pub fn run(
    subjects: &[Subject],
    directory: &Path,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Counts, BenchError> {
    let mut scratch = Scratch::new(directory)?;
    let mut counts = Counts {
        environment: Environment::read(),
        steps: STEPS,
        subjects: Vec::new(),
        failures: Vec::new(),
    };
    let served =
        |subject: &&Subject| !matches!(subject.kind, SubjectKind::Native | SubjectKind::Overlayfs);
    let total = subjects.iter().filter(served).count();
    for (number, subject) in subjects.iter().filter(served).enumerate() {
        progress(&Step {
            done: number,
            total,
            what: &subject.name,
            ..Step::default()
        });
        let branch = scratch.branch(
            &format!("s{number}b0"),
            rustix::process::geteuid().is_root(),
        )?;
        make_files(&branch)?;
        let mounted = match subject.mount_over(&[branch], &scratch, &format!("s{number}")) {
            Ok(mounted) => mounted,
            Err(error) if !subject.is_needed() => {
                counts.failures.push(error.to_string());
                continue;
            }
            Err(error) => return Err(error),
        };
        match count(&mounted, &scratch, stop) {
            Ok(operations) => counts.subjects.push(Counted {
                name: subject.name.clone(),
                operations,
            }),
            // What a peer cannot do is its own affair.
            Err(error @ BenchError::Io { .. }) if !subject.is_needed() => {
                counts.failures.push(format!("{}: {error}", subject.name));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(counts)
}

/// A directory for each operation, filled before the mount: the kernel knows nothing of them.
fn make_files(branch: &Path) -> Result<(), BenchError> {
    for (number, operation) in OPERATIONS.iter().enumerate() {
        let dir = branch.join(format!("operation-{number}"));
        fs::create_dir(&dir).map_err(BenchError::io("making", &dir))?;
        let files = if operation.needs_files { STEPS + 1 } else { 0 };
        for file in (0..files).map(|number| dir.join(name(number))) {
            fs::write(&file, [7; 4096]).map_err(BenchError::io("making", &file))?;
        }
    }
    Ok(())
}

fn count(mounted: &Mounted, scratch: &Scratch, stop: &AtomicBool) -> Result<Vec<Row>, BenchError> {
    let trace = Trace::start(&mounted.root, scratch)?;
    let mut rows = Vec::new();
    for (number, operation) in OPERATIONS.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        let dir = mounted.root.join(format!("operation-{number}"));
        rows.push(count_one(&trace, operation, &dir)?);
    }
    Ok(rows)
}

fn count_one(trace: &Trace, operation: &Operation, dir: &Path) -> Result<Row, BenchError> {
    operation.prepare(dir)?;
    if operation.is_at_once() {
        fs::metadata(dir).map_err(BenchError::io("looking at", dir))?;
    } else {
        operation.carry_out(dir, 0..1)?;
    }
    let sent = trace.of(|| operation.carry_out(dir, 1..STEPS + 1))?;
    let requests = sent
        .into_iter()
        .map(|(name, count)| (name, count as f64 / STEPS as f64))
        .collect();
    Ok(Row {
        operation: operation.name.to_owned(),
        requests,
    })
}

impl Counts {
    /// Writes all of it as JSON.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        crate::result::write_json(path, self)
    }

    /// A table: a row per operation, a column per subject with the sum and its parts.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let width = OPERATIONS.iter().map(|it| it.name.len()).max().unwrap_or(0);
        for subject in &self.subjects {
            text += &format!("{}, requests per file:\n", subject.name);
            for row in &subject.operations {
                let parts: Vec<String> = row
                    .requests
                    .iter()
                    .map(|(name, count)| format!("{name} {}", short(*count)))
                    .collect();
                text += &format!(
                    "  {:width$}  {:>5}  {}\n",
                    row.operation,
                    short(row.total()),
                    parts.join(", ")
                );
            }
            text.push('\n');
        }
        text
    }
}

/// At most two decimals, none that says nothing.
fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    // The sum of nothing is -0.
    text.trim_start_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(3.0), "3");
        assert_eq!(short(0.02), "0.02");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(-0.0), "0");
        assert_eq!(short(1.5), "1.5");
        assert_eq!(short(10.0), "10");
    }
}
