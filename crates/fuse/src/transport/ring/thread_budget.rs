//! How many threads there are, and whether there may be one more.

use std::io;

use crate::types::Errno;

/// Places are kept for one in so many threads at most.
const RESERVED_SHARE: usize = 4;

/// All threads of the queues.
pub(super) struct ThreadBudget {
    queues: usize,
    max_threads: usize,
    running: usize,
    started: usize,
    /// Queues that have a thread.
    opened: usize,
    /// Places kept for those that take over what a thread with several entries must not do.
    reserved: usize,
    /// No thread is started any more.
    closed: bool,
}

/// By what right a thread is started.
#[derive(Clone, Copy, Debug)]
pub(super) enum Admission {
    /// To start the others.
    Starter,
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
    pub(super) fn new(queues: usize, max_threads: usize) -> Self {
        Self {
            queues,
            max_threads,
            running: 0,
            started: 0,
            opened: 0,
            reserved: 0,
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
            Admission::Starter | Admission::Further | Admission::InPlace => {}
            Admission::Reserved => self.release(),
        }
        self.running += 1;
        debug_assert!(self.running <= self.ceiling(), "{} threads", self.running);
        self.started += 1;
        Ok(self.started - 1)
    }

    /// A thread that was admitted could not be had: its place is as before.
    pub(super) fn give_up(&mut self, admission: Admission) {
        match admission {
            Admission::First => self.lose_queue(),
            Admission::Reserved => self.reserved += 1,
            Admission::Starter | Admission::Further | Admission::InPlace => {}
        }
        self.depart();
    }

    /// A queue has no thread any more.
    pub(super) fn lose_queue(&mut self) {
        debug_assert!(self.opened > 0, "no queue has a thread");
        self.opened = self.opened.saturating_sub(1);
    }

    /// A thread ends.
    pub(super) fn depart(&mut self) {
        debug_assert!(self.running > 0, "a thread that was never counted");
        self.running = self.running.saturating_sub(1);
    }

    /// How many there are.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// No thread is started any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// No right lets more run: as many as there may be, each stood in for, kept places taken, and
    /// what is started whatever the limit.
    fn ceiling(&self) -> usize {
        let kept = self.max_threads / RESERVED_SHARE;
        2 * self.max_threads + kept + self.queues + 1
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
        debug_assert!(self.reserved > 0, "a place that was never kept");
        self.reserved = self.reserved.saturating_sub(1);
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
        let mut head = ThreadBudget::new(2, 8);
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
        let mut head = ThreadBudget::new(1, 16);
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
        let mut head = ThreadBudget::new(1, 4);
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
        let mut head = ThreadBudget::new(1, 4);
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
        let mut head = ThreadBudget::new(1, 4);
        head.admit(Admission::First).unwrap();
        assert!(head.reserve());
        assert!(reserved(&mut head));
        head.give_up(Admission::Reserved);
        head.admit(Admission::Further).unwrap();
        head.admit(Admission::Further).unwrap();
        assert!(head.admit(Admission::Further).is_err());
        assert!(reserved(&mut head));
    }

    /// Each attempt counted the queue as one that has a thread, so that others took the places of
    /// queues without one.
    #[test]
    fn a_first_thread_that_cannot_be_had_leaves_its_queue_without() {
        let mut head = ThreadBudget::new(2, 4);
        for _ in 0..4 {
            head.admit(Admission::First).unwrap();
            head.give_up(Admission::First);
        }
        for _ in 0..2 {
            head.admit(Admission::Further).unwrap();
        }
        assert!(
            head.admit(Admission::Further).is_err(),
            "two are the queues'"
        );
        assert!(head.admit(Admission::First).is_ok() && head.admit(Admission::First).is_ok());
        assert_eq!(head.running(), 4);
    }
}
