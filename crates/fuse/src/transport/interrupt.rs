//! INTERRUPT: the caller of a request got a signal and wants EINTR.

use super::crew::Crew;

impl Crew {
    /// The kernel wants this request interrupted. One that runs while another thread reads this
    /// message, or that no thread is with, is found here; any other is answered already, for its
    /// thread is the one that read the message.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut roster = self.roster.lock();
        if self.interrupt_kept(unique) {
            return;
        }
        let seat = roster
            .seats
            .iter()
            .find(|seat| seat.relieved_request() == unique)
            .cloned();
        let Some(seat) = seat else {
            drop(roster);
            if self.server.filesystem.interrupt(unique) {
                return;
            }
            if let Some(ring) = self.ring.get() {
                ring.interrupt(unique);
            }
            return;
        };
        if seat.interrupt(unique) {
            roster.interrupts += 1;
        }
        // Under the lock: the thread cannot have gone on to another request.
        if seat.wants_signal() {
            seat.signal();
        }
        drop(roster);
        self.watchdog.wake();
    }

    /// Signals again those that go on: the signal before may have come just before the system
    /// call it was to interrupt. Returns whether there is any.
    pub(super) fn press_interrupts(&self) -> bool {
        let roster = self.roster.lock();
        if roster.interrupts == 0 {
            return false;
        }
        for seat in roster.seats.iter().filter(|seat| seat.wants_signal()) {
            seat.signal();
        }
        true
    }
}
