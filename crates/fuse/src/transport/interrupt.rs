//! INTERRUPT: the caller of a request got a signal and wants EINTR.

use zerocopy::FromBytes;

use super::worker_pool::{WorkerPool, WorkerTable};
use super::worker_state::WorkerState;
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
        if self.interrupt_running(unique) || self.server.filesystem.interrupt(unique) {
            return true;
        }
        match self.ring.get() {
            Some(ring) => {
                ring.interrupt(unique);
                true
            }
            None => false,
        }
    }

    /// One that a thread of this pool is with, or is to be.
    fn interrupt_running(&self, unique: u64) -> bool {
        let mut worker_table = self.worker_table.lock();
        if self.interrupt_kept(unique) {
            return true;
        }
        let mut workers = worker_table.worker_states.iter();
        let Some(worker_state) = workers.find(|it| it.works_on(unique)).cloned() else {
            return false;
        };
        if worker_state.handed_off_request() != unique {
            // Another reader's. It is not handed off, which takes the lock; but it may be over by now, and
            // somebody else be to answer it: its thread looks at what was noted only as it ends.
            worker_state.interrupt(unique);
            return worker_state.works_on(unique);
        }
        self.note_interrupted(&mut worker_table, &worker_state, unique);
        drop(worker_table);
        self.watchdog.wake();
        true
    }

    /// A handed off request is to be interrupted. Under the worker table's lock: its thread cannot have gone on
    /// to another one.
    fn note_interrupted(
        &self,
        worker_table: &mut WorkerTable,
        worker_state: &WorkerState,
        unique: u64,
    ) {
        if worker_state.interrupt(unique) {
            worker_table.interrupts += 1;
        }
        if worker_state.wants_signal() {
            worker_state.signal();
        }
    }

    /// A request is handed off, which another reader may have been told to interrupt before. Under the worker
    /// table's lock.
    pub(super) fn interrupt_handed_off(
        &self,
        worker_table: &mut WorkerTable,
        worker_state: &WorkerState,
    ) {
        let unique = worker_state.handed_off_request();
        if unique != 0 && worker_state.was_interrupted(unique) {
            worker_table.interrupts += 1;
            if worker_state.wants_signal() {
                worker_state.signal();
            }
            self.watchdog.wake();
        }
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
