//! What was allowed and may not have been taken yet, and what an access may take: pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// An access that was allowed has taken its room by then, or never will; but for one that waits for its disk.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(2);
/// And that one no longer than this: a thread can wait in the kernel for anything, for as long as its user likes.
const BLOCKED_FOR: Duration = Duration::from_secs(10);
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
/// Threads of one file of which each keeps what it was allowed. The oldest of more is taken for over: a user has
/// any number of threads, and all are gone through at each access.
const THREADS_MAX: usize = 64;

/// Room allowed to one thread.
struct Grant {
    thread: i32,
    bytes: u64,
    at: Instant,
    /// The thread goes on with another file.
    is_over: bool,
}

/// What was allowed on one inode: several threads may write to it at once.
struct OfInode {
    grants: Vec<Grant>,
    /// What the inode occupied, but for what these grants have taken since.
    allocated_before: u64,
}

impl OfInode {
    fn granted_bytes(&self) -> u64 {
        let bytes = self.grants.iter().map(|it| it.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    fn taken_bytes(&self, allocated_now: Option<u64>) -> u64 {
        allocated_now.map_or(0, |now| now.saturating_sub(self.allocated_before))
    }

    /// Ends grants. Nobody knows which of the threads took what was taken: of those that have ended as
    /// much as they might, so that more is kept for the others than they need, and never less.
    fn end(&mut self, allocated_now: Option<u64>, mut is_over: impl FnMut(&Grant) -> bool) {
        let mut taken = self.taken_bytes(allocated_now);
        self.grants.retain(|grant| {
            let over = is_over(grant);
            if over {
                let of_it = grant.bytes.min(taken);
                taken -= of_it;
                self.allocated_before += of_it;
            }
            !over
        });
    }

    fn left_bytes(&self, allocated_now: Option<u64>) -> u64 {
        let taken = self.taken_bytes(allocated_now);
        self.granted_bytes().saturating_sub(taken)
    }
}

/// The accesses that were allowed on one branch, one for each thread: its next one comes when the one before is
/// over.
#[derive(Default)]
pub(super) struct Ledger {
    inodes: HashMap<u64, OfInode>,
}

impl Ledger {
    /// What may still be taken by accesses that were allowed. `allocated_now` says what an inode occupies, if
    /// that can be known, and `is_blocked` whether a thread waits in the kernel.
    pub(super) fn outstanding(
        &mut self,
        now: Instant,
        allocated_now: impl Fn(u64) -> Option<u64>,
        is_blocked: impl Fn(i32) -> bool,
    ) -> u64 {
        let (mut sum, mut followed, mut asked) = (0_u64, 0, 0);
        self.inodes.retain(|inode, of| {
            followed += 1;
            let allocated = match followed <= FOLLOWED_MAX {
                true => allocated_now(*inode),
                false => None,
            };
            let mut may_be_blocked = |thread| {
                asked += 1;
                asked <= FOLLOWED_MAX && is_blocked(thread)
            };
            of.end(allocated, |it| match now.saturating_duration_since(it.at) {
                _ if it.is_over => true,
                age if age < FORGOTTEN_AFTER => false,
                age => age >= BLOCKED_FOR || !may_be_blocked(it.thread),
            });
            let left = of.left_bytes(allocated);
            sum = sum.saturating_add(left);
            left > 0
        });
        sum
    }

    /// The access of a thread before this one is over, on whatever file that was. Of threads without a number only
    /// the file can tell.
    pub(super) fn end_of(&mut self, thread: i32, facts: &Facts) {
        for (inode, of) in &mut self.inodes {
            if *inode == facts.inode {
                of.end(Some(facts.allocated_bytes), |it| it.thread == thread);
            } else if thread > 0 {
                let own = of.grants.iter_mut().filter(|it| it.thread == thread);
                own.for_each(|it| it.is_over = true);
            }
        }
    }

    /// An access is allowed.
    pub(super) fn grant(&mut self, thread: i32, facts: &Facts, bytes: u64, now: Instant) {
        let of = self.inodes.entry(facts.inode).or_insert_with(|| OfInode {
            grants: Vec::new(),
            allocated_before: facts.allocated_bytes,
        });
        if of.grants.is_empty() {
            of.allocated_before = facts.allocated_bytes;
        }
        if of.grants.len() >= THREADS_MAX {
            let mut is_oldest = true;
            of.end(Some(facts.allocated_bytes), |_| {
                std::mem::take(&mut is_oldest)
            });
        }
        of.grants.push(Grant {
            thread,
            bytes,
            at: now,
            is_over: false,
        });
    }
}

/// What there is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) outstanding_bytes: u64,
    pub(super) available_bytes: u64,
}

impl Room {
    /// Looks. What is taken meanwhile counts twice: the other way round it would not count at all.
    pub(super) fn look(
        outstanding_bytes: impl FnOnce() -> u64,
        available_bytes: impl FnOnce() -> Option<u64>,
    ) -> Option<Room> {
        let outstanding_bytes = outstanding_bytes();
        let available_bytes = available_bytes()?;
        Some(Room {
            outstanding_bytes,
            available_bytes,
        })
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
        let awake = |_| false;
        ledger.grant(1, &facts(0, 0), 5 * MIB, now);
        assert_eq!(ledger.outstanding(now, |_| Some(0), awake), 5 * MIB);
        assert_eq!(ledger.outstanding(now, |_| Some(2 * MIB), awake), 3 * MIB);
        // The next access of the same thread takes the place of the one before.
        ledger.end_of(1, &facts(0, 5 * MIB));
        ledger.grant(1, &facts(0, 5 * MIB), MIB, now);
        assert_eq!(ledger.outstanding(now, |_| Some(5 * MIB), awake), MIB);
        assert_eq!(ledger.outstanding(now, |_| Some(6 * MIB), awake), 0);
        assert!(ledger.inodes.is_empty());
        ledger.grant(1, &facts(0, 0), MIB, now);
        let later = now + FORGOTTEN_AFTER;
        // The disk is slow, and the thread still in its write.
        assert_eq!(ledger.outstanding(later, |_| None, |it| it == 1), MIB);
        assert_eq!(ledger.outstanding(later, |_| None, awake), 0);
    }

    #[test]
    fn threads_that_write_to_one_file_have_a_grant_each() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let awake = |_| false;
        for thread in 1..=8 {
            let file = facts(100 * MIB, 0);
            ledger.end_of(thread, &file);
            ledger.grant(thread, &file, MIB, now);
        }
        assert_eq!(ledger.outstanding(now, |_| Some(0), awake), 8 * MIB);
        // One has taken its own and asks again: what the others were allowed stays theirs.
        let file = facts(100 * MIB, MIB);
        ledger.end_of(3, &file);
        assert_eq!(ledger.outstanding(now, |_| Some(MIB), awake), 7 * MIB);
        ledger.grant(3, &file, MIB, now);
        assert_eq!(ledger.outstanding(now, |_| Some(MIB), awake), 8 * MIB);
        assert_eq!(ledger.outstanding(now, |_| Some(9 * MIB), awake), 0);
    }

    /// A thread that was let go once and waits here now is blocked: it waited for itself.
    #[test]
    fn who_goes_on_with_another_file_has_left_the_one_before() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        let other = Facts {
            inode: 8,
            ..facts(0, 0)
        };
        ledger.grant(1, &facts(0, 0), 5 * MIB, now);
        ledger.grant(2, &facts(0, 0), MIB, now);
        ledger.end_of(1, &other);
        let later = now + FORGOTTEN_AFTER;
        assert_eq!(ledger.outstanding(later, |_| Some(0), |_| true), MIB);
    }

    #[test]
    fn a_user_with_very_many_threads_has_the_ledger_ask_and_keep_no_more_than_so_much() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        for thread in 1..=1000 {
            ledger.grant(thread, &facts(100 * MIB, 0), MIB, now);
            let file = Facts {
                inode: 100 + u64::from(thread.unsigned_abs()),
                ..facts(0, 0)
            };
            ledger.grant(5000 + thread, &file, MIB, now);
        }
        let most = THREADS_MAX as u64 * MIB;
        assert_eq!(ledger.inodes[&7].granted_bytes(), most);
        let asked = std::cell::Cell::new(0);
        let is_blocked = |_| {
            asked.set(asked.get() + 1);
            true
        };
        let later = now + FORGOTTEN_AFTER;
        assert_eq!(ledger.outstanding(later, |_| Some(0), is_blocked), most);
        assert_eq!(asked.get(), FOLLOWED_MAX);
        assert_eq!(
            ledger.outstanding(now + BLOCKED_FOR, |_| Some(0), |_| true),
            0
        );
    }

    /// A write that was allowed goes on between the two looks.
    #[test]
    fn what_is_taken_while_room_is_looked_for_is_not_given_twice() {
        let (available, granted) = (std::cell::Cell::new(8 * MIB), std::cell::Cell::new(4 * MIB));
        let write = || {
            available.set(available.get() - granted.get());
            granted.set(0);
        };
        let seen = Room::look(
            || (granted.get(), write()).0,
            || Some((available.get(), write()).0),
        );
        let room = seen.unwrap();
        let free = room.available_bytes - room.outstanding_bytes;
        assert!(free <= available.get() - granted.get(), "{room:?}");
    }

    #[test]
    fn a_margin_stays_free() {
        assert!(fits(0, 2 * MIB, 0));
        assert!(!fits(1, 2 * MIB, 0));
        assert!(fits(64 * MIB, 68 * MIB, 0) && !fits(64 * MIB, 68 * MIB, 1));
        assert!(!fits(u64::MAX, u64::MAX - 1, u64::MAX));
    }
}
