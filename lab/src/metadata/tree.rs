//! A tree of small files: made as tar makes it, walked as find walks it.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Stat};

use crate::error::BenchError;

/// Files in each directory, about what source trees have.
const PER_DIR: usize = 20;
/// Bytes in each file.
const FILE_BYTES: usize = 1024;
/// Modification time of every file, in seconds since 1970: something that is not now.
const MTIME_SECONDS: u64 = 1_000_000_000;

/// What a walk met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Regular files.
    pub files: usize,
    /// Their sizes.
    pub bytes: u64,
}

/// Makes a tree of `files` files; returns how many were made.
///
/// # Errors
/// Those of the calls, or [`BenchError::Interrupted`].
pub fn make(top: &Path, files: usize, stop: &AtomicBool) -> Result<usize, BenchError> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let data = [b'x'; FILE_BYTES];
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(MTIME_SECONDS);
    let times = FileTimes::new().set_accessed(time).set_modified(time);
    fs::create_dir(top).map_err(BenchError::io("making", top))?;
    let mut dir = top.to_path_buf();
    for number in 0..files {
        if number % PER_DIR == 0 {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            // Two levels, so that a walk goes down and up.
            dir = top.join(format!("d{}", number / (PER_DIR * PER_DIR)));
            if number % (PER_DIR * PER_DIR) == 0 {
                fs::create_dir(&dir).map_err(BenchError::io("making", &dir))?;
            }
            dir.push(format!("d{}", number / PER_DIR));
            fs::create_dir(&dir).map_err(BenchError::io("making", &dir))?;
        }
        let path = dir.join(format!("f{number}"));
        let put = || -> std::io::Result<()> {
            let mut file: File = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)?;
            file.write_all(&data)?;
            file.set_times(times)?;
            fchown(&file, Some(uid), Some(gid))?;
            file.set_permissions(fs::Permissions::from_mode(0o644))
        };
        put().map_err(BenchError::io("making", &path))?;
    }
    Ok(files)
}

/// What `find` and `ls` ask for: no birth time, which the standard library would add and which
/// costs a request of its own where it is known at all.
///
/// # Errors
/// Those of lstat(2).
pub fn look_at(path: &Path) -> Result<Stat, BenchError> {
    rustix::fs::lstat(path).map_err(BenchError::io("looking at", path))
}

/// Looks at everything below `top`.
///
/// # Errors
/// Those of the calls.
pub fn walk(top: &Path) -> Result<Walked, BenchError> {
    let mut walked = Walked::default();
    let mut open = vec![top.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).map_err(BenchError::io("listing", &dir))? {
            let path = entry.map_err(BenchError::io("listing", &dir))?.path();
            let found = look_at(&path)?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                open.push(path);
            } else {
                walked.files += 1;
                walked.bytes += found.st_size.unsigned_abs();
            }
        }
    }
    Ok(walked)
}

/// Goes through everything below `top` for the names alone, as `find` does without conditions; returns
/// how many files there are.
///
/// # Errors
/// Those of the calls.
pub fn find(top: &Path) -> Result<usize, BenchError> {
    let mut files = 0;
    let mut open = vec![top.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).map_err(BenchError::io("listing", &dir))? {
            let entry = entry.map_err(BenchError::io("listing", &dir))?;
            // The listing tells the kind, or the standard library asks for it.
            let kind = entry.file_type();
            match kind.map_err(BenchError::io("looking at", &dir))?.is_dir() {
                true => open.push(entry.path()),
                false => files += 1,
            }
        }
    }
    Ok(files)
}

/// Whether the tree is what [`make`] was asked for; the sentence says what is not.
pub fn verify(top: &Path, files: usize) -> Result<(), String> {
    let walked = walk(top).map_err(|error| error.to_string())?;
    let bytes = (files * FILE_BYTES) as u64;
    if walked != (Walked { files, bytes }) {
        return Err(format!(
            "{} files with {} bytes, not {files} with {bytes}",
            walked.files, walked.bytes
        ));
    }
    let first = top.join("d0/d0/f0");
    let modified = fs::metadata(&first).and_then(|found| found.modified());
    match modified.map_err(|error| format!("{}: {error}", first.display()))? {
        time if time == SystemTime::UNIX_EPOCH + Duration::from_secs(MTIME_SECONDS) => Ok(()),
        time => Err(format!("{} was modified at {time:?}", first.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_what_was_asked_for_and_a_lost_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("tree");
        let files = PER_DIR * PER_DIR + 1;
        assert_eq!(make(&top, files, &AtomicBool::new(false)).unwrap(), files);
        verify(&top, files).unwrap();
        fs::remove_file(top.join("d0/d3/f60")).unwrap();
        assert!(verify(&top, files).is_err());
    }
}
