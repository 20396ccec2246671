//! One `attach`, `detach` or `resize` of a volume at a time: two at once would both see that there
//! is no block device yet, and put one each on the same blocks.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::attach;
use crate::failure::Failure;

/// Where root's locks are, each with the name of a backing file.
const PLACE: &str = "/run/strandfs/volumes.busy";
/// How long another command is waited for: making a filesystem takes its time.
const PATIENCE: Duration = Duration::from_secs(60);
/// When the user is told what is waited for.
const SILENCE: Duration = Duration::from_secs(2);
/// Pause between two tries.
const LOOK: Duration = Duration::from_millis(10);

/// Held by the one command that changes a volume.
pub struct Alone {
    path: PathBuf,
    _file: File,
}

impl Alone {
    /// Waits for the others. `None` where this user can have no lock.
    ///
    /// # Errors
    /// The others take too long, or a lock cannot be had for another reason.
    pub fn take(backing: &Path) -> Result<Option<Alone>, Failure> {
        let Some(place) = place() else {
            return Ok(None);
        };
        let path = place.join(attach::name_for(backing));
        let begin = Instant::now();
        let mut told = false;
        loop {
            match try_lock(&place, &path) {
                Ok(Some(file)) => return Ok(Some(Alone { path, _file: file })),
                Ok(None) => {}
                Err(error) if is_refused(&error) => return Ok(None),
                Err(error) => {
                    let what = "locking the volume against other commands";
                    return Err(Failure::system(what)(error));
                }
            }
            if begin.elapsed() > PATIENCE {
                return Err(Failure::InUse {
                    path: backing.to_owned(),
                    why: "another `strandfs volume` command is at work on it; try again when that \
                        has ended"
                        .to_owned(),
                });
            }
            if begin.elapsed() > SILENCE && !std::mem::replace(&mut told, true) {
                say!(
                    "waiting for another `strandfs volume` command that is at work on {}",
                    backing.display()
                );
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // Locked still. Who waits for the lock of a file that has lost its name takes another.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A directory that is this user's alone.
fn place() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from(PLACE));
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty())?;
    Some(Path::new(&own).join("strandfs/volumes.busy"))
}

/// Where nobody can make a lock, nobody can attach anything either.
fn is_refused(error: &io::Error) -> bool {
    let kinds = [
        io::ErrorKind::PermissionDenied,
        io::ErrorKind::ReadOnlyFilesystem,
    ];
    kinds.contains(&error.kind())
}

/// The locked file; `None` if somebody else has it.
fn try_lock(place: &Path, path: &Path) -> io::Result<Option<File>> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(place)?;
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // Whoever had it before has removed the name, and somebody may have a new file of that name.
    let ours = file.metadata()?.ino();
    let is_current = std::fs::metadata(path).is_ok_and(|named| named.ino() == ours);
    Ok(is_current.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_had_by_one_and_a_removed_one_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = try_lock(dir.path(), &path).unwrap().unwrap();
        assert!(try_lock(dir.path(), &path).unwrap().is_none());
        std::fs::remove_file(&path).unwrap();
        let second = try_lock(dir.path(), &path).unwrap();
        assert!(second.is_some(), "another file");
        drop((first, second));
        assert!(try_lock(dir.path(), &path).unwrap().is_some());
    }
}
