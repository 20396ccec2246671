//! How many threads there are, and whether there may be one more.

use std::io;

use crate::types::Errno;

/// Places are kept for one in so many threads at most.
const RESERVED_SHARE: usize = 4;

/// All threads of the queues.
pub(super) struct ThreadBudget {
    queues: usize,
    max_threads: usize,
    pub(super) running: usize,
    started: usize,
    /// Queues that have had a thread.
    opened: usize,
    /// Places kept for those that take over what a thread with several entries must not do.
    reserved: usize,
    /// Of all entries.
    pub(super) buffer_bytes: usize,
    /// No thread is started any more.
    pub(super) closed: bool,
}

/// By what right a thread is started.
#[derive(Clone, Copy)]
pub(super) enum Admission {
    /// As the first of its queue.
    First,
    /// Because there is room.
    Further,
    /// Its place was kept.
    Reserved,
    /// In the place of one that may never come back from a branch: all may be there.
    InPlace,
}

impl ThreadBudget {
    /// Nobody yet.
    pub(super) fn new(queues: usize, max_threads: usize, buffer_bytes: usize) -> Self {
        Self {
            queues,
            max_threads,
            running: 0,
            started: 0,
            opened: 0,
            reserved: 0,
            buffer_bytes,
            closed: false,
        }
    }

    /// One more thread; its number. Every queue can always have its first.
    pub(super) fn admit(&mut self, admission: Admission) -> io::Result<usize> {
        if self.closed {
            return Err(Errno::NOTCONN.into());
        }
        match admission {
            Admission::First => self.opened += 1,
            Admission::Further if self.room() == 0 => return Err(Errno::AGAIN.into()),
            // Each thread is stood in for once, even where those that stand in come to hang too.
            Admission::InPlace if self.running >= self.max_threads.saturating_mul(2) => {
                return Err(Errno::AGAIN.into());
            }
            Admission::Further | Admission::InPlace => {}
            Admission::Reserved => self.release(),
        }
        self.running += 1;
        self.started += 1;
        Ok(self.started - 1)
    }

    /// How many there may be beside those that have a place already.
    fn room(&self) -> usize {
        let first_ones = self.queues.saturating_sub(self.opened);
        let taken = self.running + first_ones + self.reserved;
        self.max_threads.saturating_sub(taken)
    }

    /// Keeps a place for one more; false if there is no room, or if too much of it would be kept
    /// from branches that block.
    pub(super) fn reserve(&mut self) -> bool {
        !self.closed && self.room() > 0 && self.keep_place()
    }

    /// Keeps the place of a thread that is about to end; false if enough are kept. Since that thread
    /// took its place over, others may have been kept.
    pub(super) fn keep_place(&mut self) -> bool {
        let fits = self.reserved < self.max_threads / RESERVED_SHARE;
        self.reserved += usize::from(fits);
        fits
    }

    /// A place that was kept is not needed.
    pub(super) fn release(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Another place for one that was kept and could not be taken.
    pub(super) fn reserve_again(&mut self) {
        self.reserved += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(head: &mut ThreadBudget) -> bool {
        head.admit(Admission::Reserved).is_ok()
    }

    #[test]
    fn what_is_reserved_is_nobody_elses() {
        let mut head = ThreadBudget::new(2, 8, 0);
        assert_eq!(head.admit(Admission::First).unwrap(), 0);
        assert!(head.reserve() && head.reserve());
        assert!(!head.reserve(), "a quarter of all");
        // One runs, the other queue may want its first, two are kept: four are left.
        for number in 1..=4 {
            assert_eq!(head.admit(Admission::Further).unwrap(), number);
        }
        assert!(head.admit(Admission::Further).is_err());
        assert!(head.admit(Admission::First).is_ok());
        assert!(reserved(&mut head) && reserved(&mut head));
        assert_eq!(head.running, 8);
        assert!(!head.reserve(), "no room");
    }

    /// A thread with several entries gave three away, got three more, and had the first three back.
    #[test]
    fn no_more_places_are_kept_for_entries_that_come_back_than_for_new_ones() {
        let mut head = ThreadBudget::new(1, 16, 0);
        head.admit(Admission::First).unwrap();
        for _ in 0..4 {
            assert!(head.reserve());
        }
        for _ in 0..3 {
            assert!(reserved(&mut head));
        }
        assert!(head.reserve() && head.reserve() && head.reserve());
        assert!(!head.keep_place(), "a quarter is kept");
        assert!(reserved(&mut head));
        assert!(head.keep_place() && !head.keep_place());
    }

    #[test]
    fn who_hangs_is_stood_in_for_though_all_places_are_taken() {
        let mut head = ThreadBudget::new(1, 4, 0);
        head.admit(Admission::First).unwrap();
        for _ in 1..4 {
            head.admit(Admission::Further).unwrap();
        }
        assert!(head.admit(Admission::Further).is_err());
        for _ in 0..4 {
            assert!(head.admit(Admission::InPlace).is_ok());
        }
        assert!(head.admit(Admission::InPlace).is_err(), "no end of them");
    }

    #[test]
    fn a_place_that_is_not_needed_is_anybodys() {
        let mut head = ThreadBudget::new(1, 4, 0);
        head.admit(Admission::First).unwrap();
        assert!(head.reserve());
        head.admit(Admission::Further).unwrap();
        head.admit(Admission::Further).unwrap();
        assert!(head.admit(Admission::Further).is_err());
        head.release();
        assert!(head.admit(Admission::Further).is_ok());
    }

    #[test]
    fn one_that_cannot_be_had_is_reserved_again() {
        let mut head = ThreadBudget::new(1, 4, 0);
        head.admit(Admission::First).unwrap();
        assert!(head.reserve());
        assert!(reserved(&mut head));
        head.running -= 1;
        head.reserve_again();
        head.admit(Admission::Further).unwrap();
        head.admit(Admission::Further).unwrap();
        assert!(head.admit(Admission::Further).is_err());
        assert!(reserved(&mut head));
    }
}
