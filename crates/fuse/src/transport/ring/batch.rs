//! Several entries for one thread, where many short reads and writes are under way.
//!
//! With one entry each request costs a system call of its own. A thread of a backlog whose data is
//! at hand ([`Filesystem::read_nowait`]) therefore gets more entries, and answers all requests that
//! came meanwhile with one call. What cannot be answered without waiting (a name, an open, data that
//! a disk has to be asked for) it must not carry out, for the requests in its other entries would
//! wait as well, and nobody could take them away. Such a request moves with its entry to a thread
//! of its own, which answers it from its ring and has that entry from then on. For each entry beyond
//! the first a thread can be had: its place among `threads` and its descriptor are kept for it.
//!
//! [`Filesystem::read_nowait`]: crate::Filesystem::read_nowait

use std::sync::Arc;

use zerocopy::FromBytes;

use super::entry::RingEntry;
use super::queue_worker::QueueWorker;
use super::work::Begin;
use super::worker_pool::RingWorkerPool;
use crate::abi::{InHeader, Opcode, ReadIn, UringReqHeader, WriteIn};

/// Entries of a thread that has several. Half as many as a program is likely to have under way
/// leave some in the kernel's queue, where another thread gets at them.
pub(super) const ENTRIES: u32 = 16;
/// Requests that came together, so that a thread at home counts as having a backlog.
pub(super) const CROWD_THRESHOLD: u32 = ENTRIES / 2;
/// The longest read or write that is tried: a longer one takes so long to copy that the system
/// calls do not matter.
const TRIED_BYTES: u32 = 128 << 10;
/// Data after which what was answered is sent, though more is there to answer.
const UNSENT_BYTES: usize = 64 << 10;
/// Reads and writes in a row that were answered at once, before a thread gets more entries.
const BATCH_AFTER: i32 = 512;
/// Requests before a thread tries again after one that could not be answered at once.
const RETRY_AFTER: i32 = 4096;
/// A queue of so many threads has handed enough entries over.
const MOST_THREADS: usize = 16;

/// What a thread has learnt from trying.
#[derive(Debug, Default)]
pub(super) struct Trial {
    /// Successes in a row; below zero, requests until it tries again.
    streak: i32,
    /// Of the replies that have not been sent.
    unsent_bytes: usize,
}

impl Trial {
    /// Whether a thread with one entry is to try. Asked once for each read and write.
    pub(super) fn is_due(&mut self) -> bool {
        if self.streak < 0 {
            self.streak += 1;
        }
        self.streak >= 0
    }

    /// An answer was there at once: whether that is proof enough for more entries.
    pub(super) fn succeed(&mut self) -> bool {
        self.streak = self.streak.saturating_add(1);
        self.streak == BATCH_AFTER
    }

    /// It was not.
    pub(super) fn fail(&mut self) {
        self.streak = -RETRY_AFTER;
    }

    /// An answer to a request about so much data waits to be sent: whether that is to be now.
    pub(super) fn owes(&mut self, bytes: usize) -> bool {
        self.unsent_bytes += bytes;
        self.unsent_bytes >= UNSENT_BYTES
    }

    /// All answers are sent.
    pub(super) fn is_even(&mut self) {
        self.unsent_bytes = 0;
    }
}

/// The bytes that a short read or write is about; `None` for any other request.
pub(super) fn transfer_bytes(headers: &UringReqHeader) -> Option<usize> {
    let (header, _) = InHeader::read_from_prefix(&headers.in_out).ok()?;
    let is = |opcode: Opcode| header.opcode == opcode as u32;
    let size = if is(Opcode::Read) {
        ReadIn::read_from_prefix(&headers.op_in).ok()?.0.size
    } else if is(Opcode::Write) {
        WriteIn::read_from_prefix(&headers.op_in).ok()?.0.size
    } else {
        return None;
    };
    (size <= TRIED_BYTES).then_some(size as usize)
}

/// Further entries for a thread that has one, each with the place of a thread that may have to
/// take it over; fewer or none if that cannot be had.
pub(super) fn widen(worker_pool: &RingWorkerPool, queue_worker: &QueueWorker) -> Vec<RingEntry> {
    let RingWorkerPool {
        queues, resources, ..
    } = worker_pool;
    let queue = queue_worker.queue;
    let threads = queues.lock(queue).map(|state| state.queue_workers.len());
    if threads.is_none_or(|threads| threads >= MOST_THREADS) {
        return Vec::new();
    }
    let mut entries = Vec::new();
    while entries.len() + 1 < ENTRIES as usize && resources.budget().reserve() {
        let entry = resources.lay_out_tools();
        match entry.and_then(|()| resources.further_entry(queue)) {
            Ok(entry) => entries.push(entry),
            Err(errno) => {
                tracing::debug!(%errno, queue, "fewer entries for a thread");
                resources.budget().release();
                break;
            }
        }
    }
    entries
}

/// Gives a request to a thread of its own. The entry comes back if there is none after all.
pub(super) fn hand_over(
    worker_pool: &Arc<RingWorkerPool>,
    mut entry: RingEntry,
) -> Option<RingEntry> {
    entry.begin_to_wait();
    let queue = usize::from(entry.queue());
    let Some(mut state) = worker_pool.queues.lock(queue) else {
        return Some(entry);
    };
    match worker_pool.spawn_worker(queue, &mut state, Begin::TakeOver(entry)) {
        Err((Begin::TakeOver(entry), error)) => {
            tracing::warn!(%error, queue, "no thread to take a request over");
            Some(entry)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn more_entries_need_proof_and_a_failure_a_pause() {
        let mut trial = Trial::default();
        let proven = |trial: &mut Trial| (0..BATCH_AFTER).filter(|_| trial.succeed()).count();
        assert!(trial.is_due());
        assert_eq!(proven(&mut trial), 1);
        assert!(!trial.succeed(), "once");
        trial.fail();
        let pause = (0..2 * RETRY_AFTER).take_while(|_| !trial.is_due()).count();
        assert_eq!(pause as i32, RETRY_AFTER - 1);
        assert_eq!(proven(&mut trial), 1);
    }

    #[test]
    fn answers_do_not_wait_for_much_data() {
        let mut trial = Trial::default();
        assert_eq!((0..16).filter(|_| trial.owes(4096)).count(), 1);
        trial.is_even();
        assert!(!trial.owes(4096));
    }

    #[test]
    fn only_short_reads_and_writes_are_tried() {
        let asked = |opcode: Opcode, size: u32| {
            let header = InHeader {
                opcode: opcode as u32,
                ..InHeader::default()
            };
            let mut headers = UringReqHeader::default();
            let read = ReadIn {
                size,
                ..ReadIn::default()
            };
            let write = WriteIn {
                size,
                ..WriteIn::default()
            };
            let first = match opcode {
                Opcode::Write => write.as_bytes(),
                _ => read.as_bytes(),
            };
            headers.op_in[..first.len()].copy_from_slice(first);
            headers.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
            transfer_bytes(&headers)
        };
        assert_eq!(asked(Opcode::Read, 4096), Some(4096));
        assert_eq!(asked(Opcode::Write, TRIED_BYTES), Some(128 << 10));
        assert_eq!(asked(Opcode::Read, TRIED_BYTES + 1), None);
        assert_eq!(asked(Opcode::Readdir, 4096), None);
    }
}
