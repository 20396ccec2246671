//! Everything a run makes: one directory, the filesystems mounted in it, and their end.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::error::BenchError;

/// A private directory. When dropped, what was mounted below it is unmounted and it is removed;
/// never removed while something is still mounted there.
pub struct Scratch {
    dir: Option<tempfile::TempDir>,
    path: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Scratch {
    /// Makes one below `parent`.
    ///
    /// # Errors
    /// `parent` cannot be written.
    pub fn new(parent: &Path) -> Result<Self, BenchError> {
        let dir = tempfile::Builder::new()
            .prefix("strandfs-bench-")
            .tempdir_in(parent)
            // Its own words name a directory that nobody has heard of.
            .map_err(|error| BenchError::io("making a directory in", parent)(error.kind()))?;
        let path = fs::canonicalize(dir.path()).map_err(BenchError::io("resolving", dir.path()))?;
        Ok(Self {
            dir: Some(dir),
            path,
            mounted: Vec::new(),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new directory in it.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn dir(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(BenchError::io("making", &path))?;
        Ok(path)
    }

    /// A new directory for a branch: a tmpfs of its own for root (a filesystem watched for one
    /// subject must not see another's changes), else a plain directory.
    ///
    /// # Errors
    /// Those of mkdir(2) and mount(2).
    pub fn branch(&mut self, name: &str, own_tmpfs: bool) -> Result<PathBuf, BenchError> {
        let path = self.dir(name)?;
        if own_tmpfs {
            mount(
                "strandfs-bench",
                &path,
                "tmpfs",
                MountFlags::empty(),
                Some(c"size=80%"),
            )
            .map_err(BenchError::io("mounting a tmpfs on", &path))?;
            self.mounted.push(path.clone());
        }
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in self.mounted.iter().rev() {
            let _ = unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        let below = format!(" {}/", self.path.display());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if let Some(dir) = self.dir.take()
            && mounts.contains(&below)
        {
            eprintln!(
                "strandfs: left in place, still mounted below: {}",
                dir.keep().display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_leaves_nothing() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let path = scratch.path().to_path_buf();
        fs::write(scratch.dir("a").unwrap().join("file"), b"x").unwrap();
        assert!(path.join("a/file").exists());
        drop(scratch);
        assert!(!path.exists());
    }
}
