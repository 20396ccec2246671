//! One command at a time for one file, by a lock that nobody else can hold: its directory is this user's alone,
//! while anybody may lock a file or a directory that everybody may read.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::failure::Failure;

/// Commands that change the same kind of file.
pub struct Kind {
    /// Where root's locks are, each with the name of such a file; those of others are in
    /// `$XDG_RUNTIME_DIR`.
    place: &'static str,
    command: &'static str,
    /// How long another one is waited for.
    patience: Duration,
}

/// `attach`, `detach` and `resize` of a volume: two at once would both see that there is no block device yet,
/// and put one each on the same blocks. Making a filesystem takes its time.
pub const VOLUME: Kind = Kind {
    place: "/run/strandfs/volumes.busy",
    command: "`strandfs volume` command",
    patience: Duration::from_secs(60),
};

/// `--save`: of two at once each would write what it has read, without the other's change.
pub const SETTINGS: Kind = Kind {
    place: "/run/strandfs/settings.busy",
    command: "`--save`",
    patience: Duration::from_secs(10),
};

/// When the user is told what is waited for.
const SILENCE: Duration = Duration::from_secs(2);
/// Pause between two tries.
const LOOK: Duration = Duration::from_millis(10);

/// Held by the one command that changes a file.
pub struct Alone {
    path: PathBuf,
    _file: File,
}

impl Alone {
    /// Waits for the others. `None` where this user can have no lock.
    ///
    /// # Errors
    /// The others take too long, or a lock cannot be had for another reason.
    pub fn take(kind: &Kind, file: &Path) -> Result<Option<Alone>, Failure> {
        let Some(place) = place(kind) else {
            return Ok(None);
        };
        let path = place.join(name_for(file));
        let begin = Instant::now();
        let mut told = false;
        loop {
            match try_lock(&place, &path) {
                Ok(Some(file)) => return Ok(Some(Alone { path, _file: file })),
                Ok(None) => {}
                Err(error) if is_refused(&error) => return Ok(None),
                Err(error) => {
                    let what = "locking a file against other commands";
                    return Err(Failure::system(what)(error));
                }
            }
            if begin.elapsed() > kind.patience {
                return Err(Failure::InUse {
                    path: file.to_owned(),
                    why: format!(
                        "another {} is at work on it; try again when that has ended",
                        kind.command
                    ),
                });
            }
            if begin.elapsed() > SILENCE && !std::mem::replace(&mut told, true) {
                say!(
                    "waiting for another {} that is at work on {}",
                    kind.command,
                    file.display()
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
fn place(kind: &Kind) -> Option<PathBuf> {
    let place = Path::new(kind.place);
    if rustix::process::geteuid().is_root() {
        return Some(place.to_owned());
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty())?;
    let below = place.strip_prefix("/run").ok()?;
    Some(Path::new(&own).join(below))
}

/// A name that stands for a file: its path with the separators made harmless.
pub fn name_for(file: &Path) -> String {
    let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let parent = std::fs::canonicalize(parent.unwrap_or(Path::new(".")));
    let real = std::fs::canonicalize(file).unwrap_or_else(|_| {
        parent
            .unwrap_or_default()
            .join(file.file_name().unwrap_or_default())
    });
    let mut name = String::new();
    for byte in real.as_os_str().as_bytes() {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' => name.push(char::from(*byte)),
            _ => name.push_str(&format!("\\x{byte:02x}")),
        }
    }
    let name = name.trim_start_matches('-');
    // Longer names than a directory can have end alike rather than begin alike.
    let from = name.len().saturating_sub(255);
    name.get(from..).unwrap_or(name).to_owned()
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
