//! What threads work with: their places in the budget, their descriptors, the memory of entries.

use std::io;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::super::{END_IN_PEACE, INTERRUPT_EVERY};
use super::entry::RingEntry;
use super::probe::Prepared;
use super::queue::Ring;
use super::thread_budget::{Admission, ThreadBudget};
use super::work::Scratch;
use super::{batch, cpus};
use crate::connection::Connection;
use crate::report::{RingReport, TransportReport};
use crate::types::Errno;

/// A ring, and room for a request and its reply.
type Tools = (Ring, Scratch);

/// See the module.
pub(super) struct Resources {
    connection: Connection,
    queues: usize,
    payload_bytes: usize,
    /// For the first thread of each CPU's queue, and for those whose place is kept: a request must
    /// not wait for a descriptor.
    tools: Mutex<Vec<Tools>>,
    budget: Mutex<ThreadBudget>,
    departed: Condvar,
    /// Address space of all entries.
    buffer_bytes: Mutex<usize>,
}

impl Resources {
    /// For up to `max_threads` threads, the one that starts the others included.
    pub(super) fn new(connection: Connection, prepared: &Prepared, max_threads: usize) -> Self {
        let queues = prepared.entries.len();
        let online = cpus::online().len().min(queues);
        let tools = (0..online).map_while(|_| make_tools(&connection).ok());
        let tools = Mutex::new(tools.collect());
        Self {
            connection,
            queues,
            payload_bytes: prepared.payload_bytes,
            tools,
            budget: Mutex::new(ThreadBudget::new(queues, max_threads)),
            departed: Condvar::new(),
            buffer_bytes: Mutex::new(prepared.entries.iter().map(RingEntry::bytes).sum()),
        }
    }

    /// How many threads there are, and may be.
    pub(super) fn budget(&self) -> MutexGuard<'_, ThreadBudget> {
        self.budget.lock()
    }

    /// What `status` shows.
    pub(super) fn report(&self) {
        let buffer_bytes = *self.buffer_bytes.lock();
        let queues = self.queues;
        let report = RingReport {
            queues,
            buffer_bytes,
        };
        self.connection.set_transport(TransportReport::Ring(report));
    }

    /// What a thread works with; for some it is ready.
    pub(super) fn take_tools(&self, admission: Admission) -> Result<Tools, Errno> {
        let ready = match admission {
            Admission::First | Admission::Reserved => self.tools.lock().pop(),
            Admission::Starter | Admission::Further | Admission::InPlace => None,
        };
        ready.map_or_else(|| make_tools(&self.connection), Ok)
    }

    /// Has what a further thread works with ready.
    pub(super) fn lay_out_tools(&self) -> Result<(), Errno> {
        let tools = make_tools(&self.connection)?;
        self.tools.lock().push(tools);
        Ok(())
    }

    /// An entry for a queue that needs one more.
    pub(super) fn further_entry(&self, queue: usize) -> Result<RingEntry, Errno> {
        let queue = u16::try_from(queue).map_err(|_| Errno::RANGE)?;
        let entry = RingEntry::new(queue, self.payload_bytes)?;
        *self.buffer_bytes.lock() += entry.bytes();
        self.report();
        Ok(entry)
    }

    /// An entry that was not needed after all.
    pub(super) fn drop_entry(&self, entry: RingEntry) {
        self.forget_entry(entry.bytes());
    }

    /// The same of one that is gone already.
    pub(super) fn forget_entry(&self, bytes: usize) {
        let mut buffer_bytes = self.buffer_bytes.lock();
        debug_assert!(*buffer_bytes >= bytes, "an entry that was never counted");
        *buffer_bytes = buffer_bytes.saturating_sub(bytes);
        drop(buffer_bytes);
        self.report();
    }

    /// A further thread may run; its number.
    pub(super) fn admit(&self, admission: Admission) -> io::Result<usize> {
        self.budget().admit(admission)
    }

    /// A thread that was admitted could not be had.
    pub(super) fn give_up(&self, admission: Admission) {
        self.budget().give_up(admission);
        self.departed.notify_all();
    }

    /// A thread ends.
    pub(super) fn depart(&self) {
        self.budget().depart();
        self.departed.notify_all();
    }

    /// Starts no thread any more, and waits at most `patience` for those there are. `press_on` is
    /// called every few milliseconds, with true once they had time to end in peace.
    pub(super) fn wait_for_all(&self, patience: Duration, press_on: impl Fn(bool)) {
        let start = Instant::now();
        let mut budget = self.budget();
        budget.close();
        while budget.running() > 0 && start.elapsed() < patience {
            let impatient = start.elapsed() >= END_IN_PEACE;
            MutexGuard::unlocked(&mut budget, || press_on(impatient));
            self.departed.wait_for(&mut budget, INTERRUPT_EVERY);
        }
        if budget.running() > 0 {
            tracing::warn!(threads = budget.running(), "requests outlive the mount");
        }
    }
}

fn make_tools(connection: &Connection) -> Result<Tools, Errno> {
    let ring = Ring::new(connection.clone(), batch::ENTRIES)?;
    Ok((ring, Scratch::new()?))
}
