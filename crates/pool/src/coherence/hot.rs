//! Files that are written to in a storm: their reports are held back for a while, and their
//! attributes not cached meanwhile. The file itself is not held open: it would keep its space after
//! it was removed.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::base::sys::{self, ProcPath, RawHandle};
use crate::state::identity::VolumeId;

/// This many reports of one file within [`WINDOW`] are a storm.
const STORM: u32 = 8;
const WINDOW: Duration = Duration::from_millis(100);
/// How long reports are held back.
const HOLD: Duration = Duration::from_secs(1);
/// Files held back at once.
const HELD_MAX: usize = 64;

type FileKey = (VolumeId, u64);

/// The files whose reports are held back, as requests see them. `SeqCst` for the same reason as in
/// [`Changes`](super::changes::Changes): a file is added before what the kernel was given is taken
/// back, and a request notes what it gives before it looks here.
#[derive(Default)]
pub(crate) struct HotFiles {
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
    handle: RawHandle,
    until: Instant,
}

/// The listener's side: who is in a storm, and who is let go again when.
pub(crate) struct Storms {
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

    /// Holds reports of a file back, which is open as `fd`. What changed before is still to be
    /// told.
    pub fn hold(
        &mut self,
        hot: &HotFiles,
        file: FileKey,
        (handle, fd): (&RawHandle, BorrowedFd<'_>),
        now: Instant,
    ) {
        hot.add(file);
        if let Err(errno) = self.ignore(fd, true) {
            tracing::debug!(%errno, "reports of a much-written file cannot be held back");
            hot.remove(file);
            return;
        }
        self.held.push(Held {
            file,
            handle: *handle,
            until: now + HOLD,
        });
    }

    fn ignore(&self, fd: BorrowedFd<'_>, ignore: bool) -> sys::Result<()> {
        let path = ProcPath::new(fd);
        sys::fanotify_ignore(
            self.group.as_fd(),
            path.as_c_str(),
            libc::FAN_MODIFY,
            ignore,
        )
    }

    /// When the next file is due to be let go.
    pub fn next_due(&self) -> Option<Instant> {
        self.held.first().map(|held| held.until)
    }

    /// The first file that is due to be let go.
    pub fn take_due(&mut self, now: Instant) -> Option<(FileKey, RawHandle)> {
        if self.next_due().is_none_or(|due| due > now) {
            return None;
        }
        let held = self.held.remove(0);
        Some((held.file, held.handle))
    }

    /// Lets reports of a file pass again. The caller then tells of the changes meanwhile and
    /// removes it from [`HotFiles`], in this order.
    pub fn let_go(&self, fd: BorrowedFd<'_>) {
        // ENOENT: the kernel dropped the inode, and what held its reports back with it.
        let _ = self.ignore(fd, false);
    }

    /// Lets reports of all files pass again; those that are held back still stay so for requests.
    pub fn let_go_all(&self) {
        if let Err(errno) = sys::fanotify_ignore_nothing(self.group.as_fd()) {
            tracing::warn!(%errno, "reports of much-written files stay held back");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::super::event::Events;
    use super::*;

    /// Whether changes of the file wait to be read.
    fn reported(group: &OwnedFd, file: &RawHandle) -> bool {
        let mut buffer = vec![0; 64 << 10];
        let mut found = false;
        while let Ok(read) = rustix::io::read(group, &mut *buffer) {
            found |= Events::new(&buffer[..read])
                .filter_map(|event| event.target)
                .any(|id| (id.handle.kind(), id.handle.bytes()) == (file.kind(), file.bytes()));
        }
        found
    }

    #[test]
    fn reports_are_held_back_until_all_may_pass_again() {
        let Ok(group) = sys::fanotify_group(sys::Report::Inodes).map(Arc::new) else {
            eprintln!("skipped: needs root");
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::create(dir.path().join("f")).unwrap();
        let root = File::open(dir.path()).unwrap();
        sys::fanotify_watch_filesystem(group.as_fd(), root.as_fd(), libc::FAN_MODIFY).unwrap();
        let handle = sys::name_to_handle_fd(file.as_fd()).unwrap();
        let mut write = || file.write_all(b"x").unwrap();
        write();
        assert!(reported(&group, &handle));
        let (mut storms, hot) = (Storms::new(Arc::clone(&group)), HotFiles::default());
        let (key, now) = ((VolumeId(0), 1), Instant::now());
        let again = File::open(dir.path().join("f")).unwrap();
        storms.hold(&hot, key, (&handle, again.as_fd()), now);
        drop(again);
        write();
        assert!(!reported(&group, &handle) && hot.holds(key.0, key.1));
        assert!(storms.take_due(now).is_none());
        let (due, held) = storms.take_due(now + HOLD).unwrap();
        assert!(due == key && held.bytes() == handle.bytes());
        storms.let_go_all();
        write();
        assert!(reported(&group, &handle));
    }
}
