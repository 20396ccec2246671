//! The thread that offers the first entry of every queue and starts a queue's first thread with
//! its first request.

use std::sync::Arc;
use std::time::Duration;

use super::ending;
use super::entry::RingEntry;
use super::queue::{Completion, Ring};
use super::work::Begin;
use super::worker_pool::RingWorkerPool;
use crate::sys;
use crate::types::Errno;

/// Pause before a thread is asked for again that could not be had.
const RETRY: Duration = Duration::from_millis(10);

/// Serves until every queue has a thread, or the mount ends.
pub(super) fn start(
    worker_pool: &Arc<RingWorkerPool>,
    mut ring: Ring,
    entries: Vec<RingEntry>,
    refused: impl FnOnce(Errno),
) {
    if let Err(errno) = sys::allow_wake_signal() {
        tracing::debug!(%errno, "unblocking the wake signal");
    }
    let mut left = entries.len();
    let mut waiting = match offer(&mut ring, entries) {
        Ok(waiting) => waiting,
        Err(errno) => return refused(errno),
    };
    while left > 0 && !worker_pool.life.has_ended() {
        for entry in std::mem::take(&mut waiting) {
            match hand_over(worker_pool, entry) {
                None => left -= 1,
                Some(entry) => waiting.push(entry),
            }
        }
        if left == 0 {
            break;
        }
        let patience = (!waiting.is_empty()).then_some(RETRY);
        match ring.wait(patience) {
            Ok(()) | Err(Errno::INTR | Errno::TIME) => {}
            Err(errno) => return ending::end(worker_pool, errno),
        }
        while let Some(completion) = ring.next() {
            match completion {
                Completion::Request(entry) => waiting.push(entry),
                Completion::Lost(_, errno) => {
                    ending::end(worker_pool, errno);
                    left -= 1;
                }
                Completion::Transferred(..) => {}
            }
        }
    }
}

/// The kernel's answer to a good offer is to say nothing, until there is a request.
fn offer(ring: &mut Ring, entries: Vec<RingEntry>) -> Result<Vec<RingEntry>, Errno> {
    ring.start()?;
    for entry in entries {
        ring.register(entry);
    }
    while let Err(errno) = ring.submit() {
        if errno != Errno::INTR {
            return Err(errno);
        }
    }
    let mut waiting = Vec::new();
    while let Some(completion) = ring.next() {
        match completion {
            Completion::Request(entry) => waiting.push(entry),
            Completion::Lost(_, errno) => return Err(errno),
            Completion::Transferred(..) => {}
        }
    }
    Ok(waiting)
}

/// Starts the thread of a queue; the entry comes back if there can be none now.
fn hand_over(worker_pool: &Arc<RingWorkerPool>, entry: RingEntry) -> Option<RingEntry> {
    let queue = usize::from(entry.queue());
    let mut state = worker_pool.queues.lock(queue)?;
    match worker_pool.spawn_worker(queue, &mut state, Begin::Answer(entry)) {
        Ok(()) => None,
        Err((begin, error)) => {
            tracing::warn!(%error, queue, "no thread for a queue yet");
            match begin {
                Begin::Answer(entry) => Some(entry),
                Begin::Offer(_) | Begin::Send(_) | Begin::TakeOver(_) | Begin::Nothing => None,
            }
        }
    }
}
