//! A filesystem over a directory whose calls hang or fail when the test says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use strandfs_fuse::{Errno, OpenFlags, Result};
use strandfs_lab::far::{Call, Directory};

use super::{Kind, Pool, eventually, mounts};

/// What becomes of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    Well,
    /// All of them wait.
    Stuck,
    /// Each takes so much longer.
    Slow(Duration),
    /// Opening and reading files fails.
    Failing(Errno),
    /// Finding names fails.
    Unsearchable(Errno),
    /// Listing directories fails.
    Unlistable(Errno),
}

struct Shared {
    mood: Mutex<Mood>,
    changed: Condvar,
    /// Calls that wait now.
    waiting: AtomicU64,
}

/// A mounted one.
pub struct DelayFs {
    shared: Arc<Shared>,
    mountpoint: PathBuf,
}

impl DelayFs {
    /// Shows the directory `root` at `mountpoint`.
    pub fn mount(root: &Path, mountpoint: &Path) -> DelayFs {
        let shared = Arc::new(Shared {
            mood: Mutex::new(Mood::Well),
            changed: Condvar::new(),
            waiting: AtomicU64::new(0),
        });
        let way = {
            let shared = Arc::clone(&shared);
            move |call| shared.take(call)
        };
        // Nothing is remembered that is to fail or to wait.
        let (valid, opened) = (Duration::ZERO, OpenFlags::DIRECT_IO);
        let filesystem = Directory::new(root.to_path_buf(), valid, opened, way);
        mounts::serve(filesystem, "delay", mountpoint);
        DelayFs {
            shared,
            mountpoint: mountpoint.to_path_buf(),
        }
    }

    /// Takes the place of a branch of a pool that is not served yet. What the branch has is in
    /// `pool.outside("behind")`.
    pub fn as_branch(pool: &Pool, number: usize) -> DelayFs {
        let behind = pool.outside("behind");
        fs::create_dir_all(&behind).unwrap();
        DelayFs::mount(&behind, &pool.on(number, ""))
    }

    /// A pool that is not served yet: its first branch is in memory, its second one is delayed.
    pub fn beside_memory(options: &str) -> (Pool, DelayFs) {
        let branches = Pool::build().branches([Kind::Tmpfs("64m"), Kind::Dir]);
        let pool = branches.option(options).prepare();
        let delayed = DelayFs::as_branch(&pool, 1);
        (pool, delayed)
    }

    pub fn set(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
        self.shared.changed.notify_all();
    }

    /// From now on no call returns. Waits until one of them is there.
    pub fn hang(&self) {
        self.set(Mood::Stuck);
        eventually("a call to hang", Duration::from_secs(60), || {
            self.waiting() > 0
        });
    }

    /// How many calls wait.
    pub fn waiting(&self) -> u64 {
        self.shared.waiting.load(Ordering::Acquire)
    }
}

impl Drop for DelayFs {
    fn drop(&mut self) {
        self.set(Mood::Well);
        mounts::detach(&self.mountpoint);
    }
}

impl Shared {
    fn take(&self, call: Call) -> Result<()> {
        let mut mood = self.mood.lock().unwrap();
        if *mood == Mood::Stuck {
            self.waiting.fetch_add(1, Ordering::AcqRel);
            let is_stuck = |mood: &mut Mood| *mood == Mood::Stuck;
            mood = self.changed.wait_while(mood, is_stuck).unwrap();
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        let now = *mood;
        drop(mood);
        match (now, call) {
            (Mood::Failing(errno), Call::Work)
            | (Mood::Unsearchable(errno), Call::Find)
            | (Mood::Unlistable(errno), Call::List) => Err(errno),
            (Mood::Slow(delay), _) => {
                std::thread::sleep(delay);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
