//! Two threads for a queue that is busy.
//!
//! All requests of a block device come from one thread of the kernel's, so they all reach the queue
//! of the CPU that thread is on, and share that CPU with it while others idle. When requests come
//! in numbers, the queue's thread therefore lends some of its entries to the thread of the next
//! CPU: whoever answers from its ring gets the entry's next request there, and the kernel hands
//! requests to the entries that come back, so the two share the work as each gets on with it.
//!
//! A single request after the other is served soonest on the CPU that made it. The kernel gives it
//! to the entry that was answered last, so an entry that was lent and gets such requests goes back.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use strandfs_fuse::Errno;
use strandfs_fuse::ring::{Ring, RingEntry};

/// Answers in one round that make a queue busy.
const BUSY: usize = 4;
/// Rounds with a single answer in a row, after which entries go back.
const LONELY: usize = 32;
/// The share of a queue's entries that is lent at most: one in so many.
const LENT_SHARE: usize = 2;
/// The tag of no entry with requests.
const WATCH: usize = usize::MAX;

/// Where a thread gets entries from its neighbours: answered, and to be committed in its own ring.
pub(super) struct Mailbox {
    entries: Mutex<Vec<RingEntry>>,
    /// Readable while there may be some.
    bell: Arc<OwnedFd>,
}

/// What a thread that serves a queue has to do with its neighbours.
pub(super) struct Sharing {
    queue: u16,
    own: Arc<Mailbox>,
    /// Of the thread that entries are lent to.
    helper: Arc<Mailbox>,
    /// Of the thread that lends entries to this one; the same, where there are two.
    lender: Arc<Mailbox>,
    /// Stands for the wait for the bell; gone while that goes on.
    watch: Option<RingEntry>,
    /// Of the queue's entries, how many are lent, and may be.
    lent: usize,
    most_lent: usize,
    /// Answers since the last wait, to requests of all queues.
    answers: usize,
    /// Rounds in a row with one answer.
    lonely: usize,
    outgoing: Outbox,
}

/// Entries on their way, until the end of the round.
#[derive(Default)]
struct Outbox {
    to_helper: Vec<RingEntry>,
    to_lender: Vec<RingEntry>,
}

impl Mailbox {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self {
            entries: Mutex::default(),
            bell: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        })
    }

    fn post(&self, entries: &mut Vec<RingEntry>) {
        if entries.is_empty() {
            return;
        }
        self.entries.lock().append(entries);
        // EAGAIN: it has rung 2^64 times and not been heard; once is enough.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<RingEntry> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.entries.lock())
    }
}

impl Sharing {
    /// For the thread of `queue`, which has `entries` of it.
    pub(super) fn new(
        queue: u16,
        entries: usize,
        [lender, own, helper]: [Arc<Mailbox>; 3],
    ) -> Result<Self, Errno> {
        let mut watch = RingEntry::new(queue, 0)?;
        watch.set_tag(WATCH);
        Ok(Self {
            queue,
            own,
            helper,
            lender,
            watch: Some(watch),
            lent: 0,
            most_lent: entries / LENT_SHARE,
            answers: 0,
            lonely: 0,
            outgoing: Outbox::default(),
        })
    }

    /// Whether this stands for the wait for the bell.
    pub(super) fn is_watch(entry: &RingEntry) -> bool {
        entry.tag() == WATCH
    }

    /// Before a wait: has the ring listen to the bell. Afterwards the round begins.
    pub(super) fn begin_round(&mut self, ring: &mut Ring) {
        self.count_round();
        if let Some(watch) = self.watch.take() {
            ring.poll_file(watch, &self.own.bell);
        }
    }

    fn count_round(&mut self) {
        self.lonely = match self.answers {
            0 => self.lonely,
            1 => self.lonely + 1,
            _ => 0,
        };
        self.answers = 0;
    }

    /// The bell has rung: commits what has come; returns how many entries that was.
    pub(super) fn receive(&mut self, ring: &mut Ring, watch: RingEntry) -> usize {
        self.watch = Some(watch);
        let come = self.own.take();
        let count = come.len();
        for entry in come {
            self.lent -= usize::from(entry.queue() == self.queue).min(self.lent);
            ring.commit(entry);
        }
        count
    }

    /// Takes an answered entry, to be passed on at the end of the round; gives it back if it is
    /// to be committed here.
    pub(super) fn pass_on(&mut self, entry: RingEntry) -> Option<RingEntry> {
        self.answers += 1;
        if entry.queue() != self.queue {
            if self.answers == 1 && self.lonely >= LONELY {
                self.outgoing.to_lender.push(entry);
                return None;
            }
        } else if self.answers > BUSY && self.lent < self.most_lent {
            self.lent += 1;
            self.outgoing.to_helper.push(entry);
            return None;
        }
        Some(entry)
    }

    /// Sends off what is passed on; returns how many entries that was.
    pub(super) fn end_round(&mut self) -> usize {
        let Outbox {
            to_helper,
            to_lender,
        } = &mut self.outgoing;
        let count = to_helper.len() + to_lender.len();
        self.helper.post(to_helper);
        self.lender.post(to_lender);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u16 = 3;
    const OTHER: u16 = 4;

    fn sharing() -> Sharing {
        let boxes = [(); 3].map(|()| Arc::new(Mailbox::new().unwrap()));
        Sharing::new(OWN, 8, boxes).unwrap()
    }

    fn entry(queue: u16) -> RingEntry {
        RingEntry::new(queue, 0).unwrap()
    }

    /// A round with answers to requests of these queues; how many entries are passed on.
    fn round(sharing: &mut Sharing, queues: &[u16]) -> usize {
        sharing.count_round();
        for queue in queues {
            let _ = sharing.pass_on(entry(*queue));
        }
        sharing.end_round()
    }

    #[test]
    fn a_busy_queue_lends_and_not_all_it_has() {
        let mut sharing = sharing();
        assert_eq!(round(&mut sharing, &[OWN; BUSY]), 0);
        assert_eq!(round(&mut sharing, &[OWN; BUSY + 1]), 1);
        assert_eq!(round(&mut sharing, &[OWN; 20]), 3, "half of eight in all");
        assert_eq!(round(&mut sharing, &[OWN; 20]), 0);
        assert_eq!(sharing.helper.take().len(), 4);
        assert!(sharing.lender.take().is_empty());
    }

    #[test]
    fn what_is_lent_goes_back_when_requests_come_one_by_one() {
        let mut sharing = sharing();
        for number in 0..LONELY {
            assert_eq!(round(&mut sharing, &[OTHER]), 0, "round {number}");
        }
        assert_eq!(round(&mut sharing, &[OTHER]), 1);
        assert_eq!(round(&mut sharing, &[OTHER]), 1, "and the next one");
        assert_eq!(sharing.lender.take().len(), 2);
        round(&mut sharing, &[OTHER, OTHER]);
        assert_eq!(round(&mut sharing, &[OTHER]), 0, "busy again");
    }
}
