//! One mount at a time on a mountpoint, or one writer at a time in a directory.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// How long to wait for another mount in progress. The lock is no more than a courtesy: somebody
/// may hold one on the directory for reasons of their own.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Held while a pool is being mounted, for example: of two mounts started at once, the second one then sees
/// the first.
pub struct Turn {
    _directory: Option<File>,
}

impl Turn {
    /// Waits for the turn; goes on without where the directory cannot be locked.
    pub fn take(directory: &Path) -> Self {
        let Ok(directory) = File::open(directory) else {
            return Self { _directory: None };
        };
        let deadline = Instant::now() + LONGEST_WAIT;
        while flock(&directory, FlockOperation::NonBlockingLockExclusive)
            == Err(rustix::io::Errno::WOULDBLOCK)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        Self {
            _directory: Some(directory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = Turn::take(dir.path());
        let path = dir.path().to_owned();
        let second = std::thread::spawn(move || Turn::take(&path));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished());
        drop(first);
        second.join().unwrap();
    }
}
