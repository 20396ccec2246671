//! Listings that are being read: the latest of each directory.
//!
//! Reading goes on after a position that means the same in every listing of the directory, so a
//! listing that was dropped meanwhile is made again, and nobody misses a name or gets one twice
//! that was there all the time. Readers may stop anywhere without a word, so listings are dropped
//! when the end was met, when nobody reads on for a while, and when there are too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use papaya::{Compute, Operation};
use strandfs_fuse::NodeId;

use crate::directory::listing::Listing;

/// A listing nobody reads on in for this long was given up.
const IDLE_MS: u64 = 10_000;
/// With more than this in memory, listings given up are looked for every second.
const MANY_BYTES: usize = 32 << 20;
/// More is only held for the latest listing; others are dropped, even from under their readers.
const MOST_BYTES: usize = 256 << 20;
/// Worth a look whether other threads still read it, which interrupts their CPUs.
const LARGE_BYTES: usize = 64 << 10;
/// What holding a listing takes beside it.
const OVERHEAD_BYTES: usize = 256;

/// A directory's latest listing.
pub(crate) struct Snapshot {
    pub listing: Listing,
    bytes: usize,
    /// Those that began and did not meet the end; a guess.
    readers: AtomicU32,
    used_ms: AtomicU64,
}

/// The latest listings of directories being read.
pub(crate) struct ListingCache {
    latest: papaya::HashMap<NodeId, Arc<Snapshot>>,
    bytes: AtomicUsize,
    swept_ms: AtomicU64,
    most_bytes: usize,
    begun: AtomicU64,
}

impl Default for ListingCache {
    fn default() -> Self {
        ListingCache {
            latest: papaya::HashMap::new(),
            bytes: AtomicUsize::new(0),
            swept_ms: AtomicU64::new(0),
            most_bytes: MOST_BYTES,
            begun: AtomicU64::new(0),
        }
    }
}

impl ListingCache {
    /// The listing to go on in.
    pub fn get(&self, directory: NodeId, now_ms: u64) -> Option<Arc<Snapshot>> {
        let found = self.latest.pin().get(&directory).cloned()?;
        let idle_ms = now_ms.saturating_sub(found.used_ms.swap(now_ms, Ordering::Relaxed));
        (idle_ms <= IDLE_MS).then_some(found)
    }

    /// The number of a listing that is about to be made.
    pub fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::AcqRel)
    }

    /// Holds a listing that is new, for one reader more if it `begins`. One that was begun later and
    /// made sooner stays: its readers must not go on in an older one.
    pub fn put(
        &self,
        directory: NodeId,
        listing: Listing,
        begins: bool,
        now_ms: u64,
    ) -> Arc<Snapshot> {
        let guard = self.latest.guard();
        let before = self.latest.get(&directory, &guard);
        let readers = before.map_or(0, |before| before.readers.load(Ordering::Relaxed));
        let bytes = listing.bytes() + OVERHEAD_BYTES;
        let snapshot = Arc::new(Snapshot {
            listing,
            bytes,
            readers: AtomicU32::new(readers.saturating_add(u32::from(begins))),
            used_ms: AtomicU64::new(now_ms),
        });
        let hold = |held: Option<(&NodeId, &Arc<Snapshot>)>| match held {
            Some((_, held)) if held.listing.number > snapshot.listing.number => {
                Operation::Abort(Arc::clone(held))
            }
            _ => Operation::Insert(Arc::clone(&snapshot)),
        };
        match self.latest.compute(directory, hold, &guard) {
            Compute::Aborted(held) => {
                held.readers.fetch_add(u32::from(begins), Ordering::Relaxed);
                return snapshot;
            }
            Compute::Updated { old, .. } => self.let_go(Some(old.1), &guard),
            _ => {}
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.sweep(directory, now_ms);
        snapshot
    }

    /// A reader met the end.
    pub fn end(&self, directory: NodeId) {
        let guard = self.latest.guard();
        let last = |_: &NodeId, snapshot: &Arc<Snapshot>| {
            let readers = snapshot.readers.load(Ordering::Relaxed).saturating_sub(1);
            snapshot.readers.store(readers, Ordering::Relaxed);
            readers == 0
        };
        if let Ok(Some((_, removed))) = self.latest.remove_if(&directory, last, &guard) {
            self.let_go(Some(removed), &guard);
        }
    }

    /// The map would keep the last few that this thread removed.
    fn let_go(&self, removed: Option<&Arc<Snapshot>>, guard: &impl papaya::Guard) {
        if let Some(snapshot) = removed {
            self.bytes.fetch_sub(snapshot.bytes, Ordering::Relaxed);
            if snapshot.bytes >= LARGE_BYTES {
                guard.flush();
            }
        }
    }

    /// Drops what was given up, and more if need be, but not the listing of `keep`.
    fn sweep(&self, keep: NodeId, now_ms: u64) {
        let many = self.bytes.load(Ordering::Relaxed) > MANY_BYTES;
        let too_many = self.bytes.load(Ordering::Relaxed) > self.most_bytes;
        let swept_ms = self.swept_ms.load(Ordering::Relaxed);
        let pause_ms = if many { IDLE_MS / 10 } else { IDLE_MS };
        if !too_many && now_ms.saturating_sub(swept_ms) < pause_ms {
            return;
        }
        self.swept_ms.store(now_ms, Ordering::Relaxed);
        let guard = self.latest.guard();
        let mut others: Vec<(u64, NodeId)> = self
            .latest
            .iter(&guard)
            .filter(|(directory, _)| **directory != keep)
            .map(|(directory, held)| (held.used_ms.load(Ordering::Relaxed), *directory))
            .collect();
        others.sort_unstable();
        for (used_ms, directory) in others {
            let idle = now_ms.saturating_sub(used_ms) > IDLE_MS;
            if !idle && self.bytes.load(Ordering::Relaxed) <= self.most_bytes {
                return;
            }
            self.let_go(self.latest.remove(&directory, &guard), &guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn listing(names: usize) -> Listing {
        let mut listing = Listing::default();
        for number in 0..names {
            listing.push(OsStr::new(&format!("{number:0200}")), 1, None);
        }
        listing.sort();
        listing
    }

    #[test]
    fn a_listing_lives_until_its_last_reader_meets_the_end() {
        let (held, dir) = (ListingCache::default(), NodeId(5));
        held.put(dir, listing(3), true, 0);
        held.put(dir, listing(3), true, 0);
        held.end(dir);
        assert!(held.get(dir, 0).is_some());
        held.end(dir);
        assert!(held.get(dir, 0).is_none());
        assert_eq!(held.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn readers_of_a_later_listing_do_not_go_on_in_an_older_one_that_took_longer() {
        let (held, dir) = (ListingCache::default(), NodeId(5));
        let begun = |names| {
            let mut listing = listing(names);
            listing.number = held.begin();
            listing
        };
        let (older, later) = (begun(3), begun(2));
        held.put(dir, later, true, 0);
        let own = held.put(dir, older, true, 0);
        assert_eq!(own.listing.len(), 3);
        assert_eq!(held.get(dir, 0).unwrap().listing.len(), 2);
        held.end(dir);
        assert!(held.get(dir, 0).is_some(), "one reads on");
        held.end(dir);
        assert!(held.get(dir, 0).is_none());
        assert_eq!(held.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_large_listing_is_freed_when_it_is_let_go_of() {
        let (held, dir) = (ListingCache::default(), NodeId(5));
        let large = held.put(dir, listing(1000), true, 0);
        let large = Arc::downgrade(&{ large });
        held.end(dir);
        assert_eq!(large.strong_count(), 0);
    }

    #[test]
    fn listings_given_up_are_not_read_on_and_go_after_a_while() {
        let held = ListingCache::default();
        for number in 0..100 {
            held.put(NodeId(number), listing(3), true, 0);
        }
        assert!(held.get(NodeId(7), IDLE_MS).is_some());
        assert!(held.get(NodeId(8), IDLE_MS + 1).is_none());
        held.put(NodeId(1000), listing(3), true, IDLE_MS + 2);
        assert_eq!(held.latest.len(), 3);
        held.put(NodeId(1001), listing(3), true, 3 * IDLE_MS + 3);
        assert_eq!(held.latest.len(), 1);
    }

    #[test]
    fn memory_is_bounded_and_the_latest_is_always_held() {
        let held = ListingCache {
            most_bytes: 1 << 20,
            ..ListingCache::default()
        };
        let mut most = 0;
        for number in 0..40 {
            held.put(NodeId(number), listing(200), true, number);
            most = most.max(held.bytes.load(Ordering::Relaxed));
            assert!(held.get(NodeId(number), number).is_some());
        }
        assert!(held.latest.len() > 5 && held.latest.len() < 30);
        assert!(most < 1 << 20 | 1 << 17, "{most}");
        held.put(NodeId(99), listing(10_000), true, 99);
        assert_eq!(held.latest.len(), 1);
    }
}
