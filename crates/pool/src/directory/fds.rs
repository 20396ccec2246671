//! How many descriptors directories hold open.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use strandfs_fuse::NodeId;

use crate::base::shares::{FairShare, FairShares};
use crate::directory::Directories;

/// Directories of processes that threads keep open to ask for their users.
pub(crate) const ASKED_MAX: usize = 4;
/// Descriptors that are opened once more requests come, by threads and queues.
const TO_COME: usize = 8 + ASKED_MAX;

/// Bounds the descriptors that directories hold open, far below RLIMIT_NOFILE.
///
/// A second-chance queue: a directory used since it was last looked at is passed over once.
pub struct DirFdCache {
    limit: AtomicUsize,
    open: AtomicUsize,
    queue: Mutex<VecDeque<NodeId>>,
    /// Of those that stay until their node is forgotten.
    for_good: FairShares,
}

impl DirFdCache {
    /// Holds at most `limit`.
    pub fn new(limit: usize) -> Self {
        DirFdCache {
            limit: AtomicUsize::new(limit),
            open: AtomicUsize::new(0),
            queue: Mutex::default(),
            for_good: FairShares::default(),
        }
    }

    /// From now on holds at most `limit`.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// How many descriptors are held.
    pub fn open_count(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Accounts for descriptors of a user's doing that stay until their node is forgotten. None, and nothing
    /// taken, if too many do: a user can make any number of directories, stand in them and remove them.
    pub(crate) fn take_for_good(
        &self,
        user: impl FnOnce() -> u32,
        count: usize,
    ) -> Option<FairShare> {
        let share = self.for_good.take_unasked(user, count, self.limit() / 2)?;
        self.open.fetch_add(count, Ordering::Relaxed);
        Some(share)
    }

    pub(crate) fn note(
        &self,
        pool: &Directories,
        id: NodeId,
        added: usize,
        removed: Option<usize>,
    ) {
        self.open.fetch_add(added, Ordering::Relaxed);
        match removed {
            Some(count) => self.forget(count),
            None => self.queue_up(pool, id),
        }
        self.make_room(pool, id);
    }

    /// Has directories other than `keep` opened anew once they are needed, where too many descriptors are held.
    pub(crate) fn make_room(&self, pool: &Directories, keep: NodeId) {
        let mut tries = self.queue.lock().len();
        while self.open_count() > self.limit() && tries > 0 {
            tries -= 1;
            let Some(oldest) = self.queue.lock().pop_front() else {
                return;
            };
            self.evict(pool, oldest, keep);
        }
    }

    /// Forgotten directories leave their id behind; they are swept out before they pile up.
    fn queue_up(&self, pool: &Directories, id: NodeId) {
        let mut queue = self.queue.lock();
        queue.push_back(id);
        if queue.len() > self.limit().saturating_mul(2).saturating_add(1024) {
            let mut seen = std::collections::HashSet::new();
            queue.retain(|id| seen.insert(*id) && pool.nodes.get(*id).is_some());
        }
    }

    fn evict(&self, pool: &Directories, id: NodeId, keep: NodeId) {
        let Some(node) = pool.nodes.get(id) else {
            return;
        };
        let mut place = node.place_mut();
        let Some(set) = &place.dirs else { return };
        if id == keep || set.recently_used.swap(false, Ordering::Relaxed) {
            drop(place);
            self.queue.lock().push_back(id);
            return;
        }
        let count = set.entries.len();
        place.dirs = None;
        drop(place);
        self.forget(count);
    }

    /// Accounts for descriptors dropped with their node.
    pub(crate) fn forget(&self, count: usize) {
        let _ = self
            .open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
                Some(open.saturating_sub(count))
            });
    }
}

/// Finds out what the server has open as long as it runs, and shares the rest of the limit out.
pub(crate) fn count_descriptors(pool: &Directories) {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let (here, _) = pool.files.counts();
    let fixed = open
        .count()
        .saturating_sub(here + pool.dir_fds.open_count());
    let budget = pool.files.budget();
    budget.note_fixed(fixed + TO_COME);
    pool.dir_fds.set_limit(budget.directories());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_that_stay_leave_half_to_the_others_and_something_to_each_user() {
        const USER: u32 = 7;
        let cache = DirFdCache::new(200);
        // However many directories are known.
        cache.open.store(200, Ordering::Relaxed);
        let mut of_user = Vec::new();
        while let Some(share) = cache.take_for_good(|| USER, 1) {
            of_user.push(share);
        }
        assert!((20..50).contains(&of_user.len()), "{}", of_user.len());
        let of_root = cache.take_for_good(|| 0, 100 - of_user.len()).unwrap();
        assert!(cache.take_for_good(|| 0, 1).is_none());
        assert_eq!(cache.open_count(), 300);
        drop((of_user, of_root));
        cache.forget(100);
        assert!(cache.take_for_good(|| USER, 1).is_some());
    }
}
