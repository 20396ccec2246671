//! INTERRUPT: the caller of a request got a signal and wants EINTR.

use zerocopy::FromBytes;

use super::worker_pool::WorkerPool;
use crate::abi::{LkIn, Opcode};

/// Whether a request is carried out though its caller does not wait any more: what it gives back (locks,
/// an open file) others may want, and nobody asks a second time. `argument` is the first one.
pub(super) fn has_to_be_done(opcode: u32, argument: &[u8]) -> bool {
    const ALWAYS: [Opcode; 3] = [Opcode::Flush, Opcode::Release, Opcode::Releasedir];
    const LOCKS: [Opcode; 2] = [Opcode::Setlk, Opcode::Setlkw];
    let is = |kind: &Opcode| *kind as u32 == opcode;
    let unlocks = || {
        let asked = LkIn::read_from_prefix(argument);
        asked.is_ok_and(|(asked, _)| asked.lk.kind == libc::F_UNLCK as u32)
    };
    ALWAYS.iter().any(is) || LOCKS.iter().any(is) && unlocks()
}

impl WorkerPool {
    /// The kernel wants this request interrupted. One that runs while another thread reads this
    /// message, or that no thread is with, is found here; any other is answered already, for its
    /// thread is the one that read the message, unless several read. False if it was not found.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let mut worker_table = self.worker_table.lock();
        if self.interrupt_kept(unique) {
            return true;
        }
        let worker_state = worker_table
            .worker_states
            .iter()
            .find(|worker_state| worker_state.handed_off_request() == unique)
            .cloned();
        let Some(worker_state) = worker_state else {
            drop(worker_table);
            if self.server.filesystem.interrupt(unique) {
                return true;
            }
            return match self.ring.get() {
                Some(ring) => {
                    ring.interrupt(unique);
                    true
                }
                None => false,
            };
        };
        if worker_state.interrupt(unique) {
            worker_table.interrupts += 1;
        }
        // Under the lock: the thread cannot have gone on to another request.
        if worker_state.wants_signal() {
            worker_state.signal();
        }
        drop(worker_table);
        self.watchdog.wake();
        true
    }

    /// Signals again those that go on: the signal before may have come just before the system
    /// call it was to interrupt. Returns whether there is any.
    pub(super) fn press_interrupts(&self) -> bool {
        let worker_table = self.worker_table.lock();
        if worker_table.interrupts == 0 {
            return false;
        }
        for worker_state in worker_table
            .worker_states
            .iter()
            .filter(|worker_state| worker_state.wants_signal())
        {
            worker_state.signal();
        }
        true
    }
}
