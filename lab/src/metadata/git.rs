//! A git repository and its status.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::tree;
use super::workload::{TestDevice, Trouble};
use crate::error::BenchError;

/// Makes a repository with all files of a tree in its index.
pub(super) fn make_repository(test_device: &TestDevice<'_>) -> Result<(), BenchError> {
    let repository = test_device.repository();
    tree::make(&repository, test_device.files, test_device.stop)?;
    for arguments in [&["init", "-q"][..], &["add", "-A"]] {
        let output = git(&repository, arguments)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(BenchError::io("preparing", &repository)(
                std::io::Error::other(said),
            ));
        }
    }
    Ok(())
}

/// Runs `git status` on a repository where everything is new to the index and nothing changed
/// since; returns how many files it named.
pub(super) fn status(test_device: &TestDevice<'_>) -> Result<usize, Trouble> {
    let repository = test_device.repository();
    let output = git(&repository, &["status", "--porcelain"])?;
    if !output.status.success() {
        return Err(Trouble::Wrong(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ));
    }
    Ok(output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .count())
}

/// git without the user's or the system's settings, which may make it write or watch.
fn git(repository: &Path, arguments: &[&str]) -> Result<Output, BenchError> {
    Command::new("git")
        .arg("-C")
        .arg(repository)
        .args([
            "-c",
            "gc.auto=0",
            "-c",
            "core.fsync=none",
            "-c",
            "safe.directory=*",
        ])
        .args(arguments)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CEILING_DIRECTORIES", repository)
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::io("running git in", repository))
}
