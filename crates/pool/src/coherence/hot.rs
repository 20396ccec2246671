//! Files that are written to in a storm: their reports are held back for a while, and their
//! attributes not cached meanwhile.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::identity::VolumeId;
use crate::sys::{self, ProcPath};

/// This many reports of one file within [`WINDOW`] are a storm.
const STORM: u32 = 8;
const WINDOW: Duration = Duration::from_millis(100);
/// How long reports are held back.
const HOLD: Duration = Duration::from_secs(1);
/// Files held back at once; each costs a descriptor.
const HELD_MAX: usize = 64;

type FileKey = (VolumeId, u64);

/// The files whose reports are held back, as requests see them.
#[derive(Default)]
pub(super) struct HotFiles {
    count: AtomicUsize,
    files: papaya::HashMap<FileKey, ()>,
}

impl HotFiles {
    /// Whether reports of the file may be missing.
    pub fn holds(&self, volume: VolumeId, ino: u64) -> bool {
        self.count.load(Ordering::SeqCst) != 0 && self.files.pin().contains_key(&(volume, ino))
    }

    fn add(&self, file: FileKey) {
        self.files.pin().insert(file, ());
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub fn remove(&self, file: FileKey) {
        if self.files.pin().remove(&file).is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A file whose reports are held back.
struct Held {
    file: FileKey,
    fd: OwnedFd,
    until: Instant,
}

/// The listener's side: who is in a storm, and who is let go again when.
pub(super) struct Storms {
    group: Arc<OwnedFd>,
    seen: HashMap<FileKey, u32>,
    window_end: Instant,
    held: Vec<Held>,
}

impl Storms {
    pub fn new(group: Arc<OwnedFd>) -> Self {
        Storms {
            group,
            seen: HashMap::new(),
            window_end: Instant::now(),
            held: Vec::new(),
        }
    }

    /// Counts a report of a write; true if there were so many that the next should be held back.
    pub fn count(&mut self, file: FileKey, now: Instant) -> bool {
        if now >= self.window_end {
            self.seen.clear();
            self.window_end = now + WINDOW;
        }
        let seen = self.seen.entry(file).or_insert(0);
        *seen += 1;
        *seen == STORM && self.held.len() < HELD_MAX
    }

    /// Holds reports of a file back. What changed before is still to be told.
    pub fn hold(&mut self, hot: &HotFiles, file: FileKey, fd: OwnedFd, now: Instant) {
        hot.add(file);
        let path = ProcPath::new(&fd);
        let outcome =
            sys::fanotify_ignore(self.group.as_fd(), path.as_c_str(), libc::FAN_MODIFY, true);
        if let Err(errno) = outcome {
            tracing::debug!(%errno, "reports of a much-written file cannot be held back");
            hot.remove(file);
            return;
        }
        let until = now + HOLD;
        self.held.push(Held { file, fd, until });
    }

    /// When the next file is due to be let go.
    pub fn next_due(&self) -> Option<Instant> {
        self.held.first().map(|held| held.until)
    }

    /// Lets reports of the first file that is due pass again. The caller tells of the changes
    /// meanwhile, then removes it from [`HotFiles`], in this order.
    pub fn let_go(&mut self, now: Instant) -> Option<FileKey> {
        if self.next_due().is_none_or(|due| due > now) {
            return None;
        }
        let held = self.held.remove(0);
        let path = ProcPath::new(&held.fd);
        // ENOENT: the kernel dropped the inode, and what held its reports back with it.
        let _ = sys::fanotify_ignore(self.group.as_fd(), path.as_c_str(), libc::FAN_MODIFY, false);
        Some(held.file)
    }
}
