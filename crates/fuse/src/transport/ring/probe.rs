//! Whether requests can come over io_uring here, and all that has to be had for it before the
//! kernel is told so: after that there is no way back.

use super::cpus;
use super::entry::RingEntry;
use super::queue::Ring;
use crate::connection::Connection;
use crate::report::RingUnavailable;
use crate::types::Errno;

/// The kernel's switch, off by default.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Threads beside those of the queues: for `/dev/fuse`, and the one that starts the others.
const OTHER_THREADS: usize = super::DEVICE_THREADS + 1;

/// What can be told without a connection.
pub(crate) fn possible(max_threads: usize) -> Result<(), RingUnavailable> {
    let switch = std::fs::read_to_string(SWITCH).map_err(|_| RingUnavailable::NoKernelSupport)?;
    if !matches!(switch.trim(), "Y" | "1") {
        return Err(RingUnavailable::SwitchedOff);
    }
    let queues = cpus::possible();
    if max_threads < queues + OTHER_THREADS {
        return Err(RingUnavailable::TooFewThreads {
            allowed: max_threads,
            queues,
            others: OTHER_THREADS,
        });
    }
    match cpus::closed() {
        Some(cpu) => Err(RingUnavailable::ClosedCpu(cpu)),
        None => Ok(()),
    }
}

/// What the transport starts with.
pub(crate) struct Prepared {
    /// For the thread that starts the others.
    pub(super) ring: Ring,
    /// One for each queue.
    pub(super) entries: Vec<RingEntry>,
    /// Of each entry.
    pub(super) payload_bytes: usize,
}

/// Gets it all. Memory is only addresses at first.
pub(crate) fn prepare(
    connection: &Connection,
    payload_bytes: usize,
) -> Result<Prepared, RingUnavailable> {
    let queues = cpus::possible();
    let ring = u32::try_from(queues).map_err(|_| Errno::RANGE);
    let ring = ring.and_then(|queues| Ring::new(connection.clone(), queues));
    let ring = ring.map_err(RingUnavailable::Forbidden)?;
    let entries: Result<_, Errno> = (0..queues)
        .map(|queue| {
            RingEntry::new(
                u16::try_from(queue).map_err(|_| Errno::RANGE)?,
                payload_bytes,
            )
        })
        .collect();
    Ok(Prepared {
        ring,
        entries: entries.map_err(|errno| RingUnavailable::NoMemory { queues, errno })?,
        payload_bytes,
    })
}
