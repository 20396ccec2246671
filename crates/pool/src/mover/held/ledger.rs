//! What was allowed and may not have been taken yet, and what an access may take: pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// An access that was allowed has taken its room by then, or never will.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(2);
/// What a branch needs besides the bytes themselves.
const MARGIN_BYTES: u64 = 2 << 20;

/// A file at the moment of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) inode: u64,
    /// Whose it is.
    pub(super) owner: u32,
    pub(super) size_bytes: u64,
    pub(super) allocated_bytes: u64,
    /// Its filesystem writes elsewhere what it overwrites.
    pub(super) copies_on_write: bool,
    /// Somebody may append to it through the pool.
    pub(super) appends: bool,
}

/// The most that an access can take.
pub(super) fn need_bytes(facts: &Facts, range: Option<(u64, u64)>) -> u64 {
    let Some((offset, count)) = range else {
        // Whatever it is, it is no write of this size.
        return MARGIN_BYTES;
    };
    let start = match facts.appends {
        true => facts.size_bytes.max(offset),
        false => offset,
    };
    let end = start.saturating_add(count);
    // As far as numbers tell: a file with holes has less than its size, and what is reserved beyond
    // its end comes on top.
    let is_dense = facts.allocated_bytes >= facts.size_bytes;
    match is_dense && !facts.copies_on_write {
        true => end.saturating_sub(facts.allocated_bytes).min(count),
        false => count,
    }
}

/// Files that are looked at again; what others were allowed counts in full.
const FOLLOWED_MAX: usize = 64;

/// Room allowed to an access.
struct Grant {
    bytes: u64,
    allocated_before: u64,
    at: Instant,
}

/// The accesses that were allowed on one branch, one for each file: the next on the same file comes
/// when the one before is over.
#[derive(Default)]
pub(super) struct Ledger {
    grants: HashMap<u64, Grant>,
}

impl Ledger {
    /// What may still be taken by accesses that were allowed, but for those on `but`; `allocated_now`
    /// says what an inode occupies, if that can be known.
    pub(super) fn outstanding(
        &mut self,
        but: u64,
        now: Instant,
        allocated_now: impl Fn(u64) -> Option<u64>,
    ) -> u64 {
        let (mut sum, mut followed) = (0_u64, 0);
        self.grants.retain(|inode, grant| {
            followed += 1;
            let allocated = match followed <= FOLLOWED_MAX {
                true => allocated_now(*inode),
                false => None,
            };
            let taken = allocated.map(|now| now.saturating_sub(grant.allocated_before));
            let left = grant.bytes.saturating_sub(taken.unwrap_or(0));
            let counts = left > 0 && now.saturating_duration_since(grant.at) < FORGOTTEN_AFTER;
            if counts && *inode != but {
                sum = sum.saturating_add(left);
            }
            counts
        });
        sum
    }

    /// An access is allowed, in the place of the one before on the same file.
    pub(super) fn grant(&mut self, facts: &Facts, bytes: u64, now: Instant) {
        let grant = Grant {
            bytes,
            allocated_before: facts.allocated_bytes,
            at: now,
        };
        self.grants.insert(facts.inode, grant);
    }
}

/// What has to be available for `need_bytes` more to fit where so much is promised.
pub(super) fn sufficient_bytes(need_bytes: u64, outstanding_bytes: u64) -> u64 {
    let margin = MARGIN_BYTES.saturating_add(need_bytes / 32);
    need_bytes
        .saturating_add(outstanding_bytes)
        .saturating_add(margin)
}

/// Whether `need_bytes` more fit where so much is available and so much promised.
pub(super) fn fits(need_bytes: u64, available_bytes: u64, outstanding_bytes: u64) -> bool {
    available_bytes >= sufficient_bytes(need_bytes, outstanding_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn facts(size_bytes: u64, allocated_bytes: u64) -> Facts {
        Facts {
            inode: 7,
            owner: 0,
            size_bytes,
            allocated_bytes,
            copies_on_write: false,
            appends: false,
        }
    }

    #[test]
    fn what_lies_in_the_file_needs_nothing_and_what_lies_beyond_needs_its_length() {
        let file = facts(10 * MIB, 10 * MIB);
        assert_eq!(need_bytes(&file, Some((0, MIB))), 0);
        assert_eq!(need_bytes(&file, Some((10 * MIB - 4096, 8192))), 4096);
        assert_eq!(need_bytes(&file, Some((50 * MIB, MIB))), MIB);
        // Reserved ahead, as by fallocate or XFS.
        assert_eq!(need_bytes(&facts(0, 64 * MIB), Some((MIB, MIB))), 0);
        assert_eq!(need_bytes(&file, None), MARGIN_BYTES);
    }

    #[test]
    fn holes_copies_and_appends_need_all_of_it() {
        assert_eq!(need_bytes(&facts(10 * MIB, MIB), Some((0, MIB))), MIB);
        let mut file = facts(10 * MIB, 10 * MIB);
        file.copies_on_write = true;
        assert_eq!(need_bytes(&file, Some((0, MIB))), MIB);
        let mut file = facts(10 * MIB, 10 * MIB);
        file.appends = true;
        assert_eq!(need_bytes(&file, Some((0, MIB))), MIB);
        assert_eq!(need_bytes(&file, Some((0, u64::MAX))), u64::MAX - 10 * MIB);
    }

    #[test]
    fn what_was_allowed_counts_until_it_is_taken_or_long_ago() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.grant(&facts(0, 0), 5 * MIB, now);
        assert_eq!(ledger.outstanding(0, now, |_| Some(0)), 5 * MIB);
        assert_eq!(ledger.outstanding(0, now, |_| Some(2 * MIB)), 3 * MIB);
        assert_eq!(ledger.outstanding(7, now, |_| Some(2 * MIB)), 0);
        // The next access on the file takes the place of the one before.
        ledger.grant(&facts(0, 5 * MIB), MIB, now);
        assert_eq!(ledger.outstanding(0, now, |_| Some(5 * MIB)), MIB);
        assert_eq!(ledger.outstanding(0, now, |_| Some(6 * MIB)), 0);
        assert!(ledger.grants.is_empty());
        ledger.grant(&facts(0, 0), MIB, now);
        let later = now + FORGOTTEN_AFTER;
        assert_eq!(ledger.outstanding(0, later, |_| None), 0);
    }

    #[test]
    fn a_margin_stays_free() {
        assert!(fits(0, 2 * MIB, 0));
        assert!(!fits(1, 2 * MIB, 0));
        assert!(fits(64 * MIB, 68 * MIB, 0) && !fits(64 * MIB, 68 * MIB, 1));
        assert!(!fits(u64::MAX, u64::MAX - 1, u64::MAX));
    }
}
