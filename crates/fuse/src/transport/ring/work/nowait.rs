//! What a thread does that must not wait, or tries to do so.

use super::Serving;
use super::carry_out::try_nowait;
use crate::message::Message;
use crate::transport::ring::batch;
use crate::transport::ring::entry::RingEntry;
use crate::transport::ring::reclaimed::ReclaimQueue;
use crate::types::Errno;

/// Memory that an entry of a thread with several may keep.
const KEPT_BYTES: usize = 16 << 10;

impl Serving<'_> {
    /// Answers a read or a write that need not wait. Its data stays in the entry. The entry comes
    /// back if it has to.
    pub(super) fn answer_nowait(
        &mut self,
        mut entry: RingEntry,
        bytes: usize,
    ) -> Result<Option<RingEntry>, Errno> {
        self.filled |= bytes > KEPT_BYTES;
        let headers = *entry.parts().0;
        let (_, payload) = entry.parts_mut();
        let scratch = self.scratch.0.bytes_mut();
        let is_write = headers.ring_ent_in_out.payload_sz > 0;
        let (data, out): (&[u8], &mut [u8]) = match is_write {
            true => (payload, scratch),
            false => (&[], payload),
        };
        let message = Message::from_ring(&headers, data).ok();
        let made = message.and_then(|message| {
            let len = try_nowait(self.worker_pool, self.queue_worker, &message, out)?;
            Some((message.header.unique, len))
        });
        let Some((unique, len)) = made else {
            self.trial.fail();
            self.want_reclaimed(false);
            return Ok(Some(entry));
        };
        if is_write {
            let (room, made) = (entry.parts_mut().1, self.scratch.0.bytes());
            if let (Some(room), Some(made)) = (room.get_mut(..len), made.get(..len)) {
                room.copy_from_slice(made);
            }
        }
        entry.set_answered(None);
        entry.set_reply(unique, None, len);
        self.ring.commit(entry);
        if self.trial.succeed() {
            self.want_reclaimed(true);
            if self.ring.entries() == 1 {
                for entry in batch::widen(self.worker_pool, self.queue_worker) {
                    self.ring.register(entry);
                }
            }
        }
        if self.trial.owes(bytes) {
            self.send_now()?;
        }
        Ok(None)
    }

    fn reclaimed(&self) -> Option<&ReclaimQueue> {
        let queue = self.worker_pool.queues.get(self.queue_worker.queue)?;
        Some(&queue.reclaimed)
    }

    fn want_reclaimed(&self, wanted: bool) {
        if let Some(reclaimed) = self.reclaimed() {
            reclaimed.want(wanted);
        }
    }

    /// From now on entries may come back, until [`take_reclaimed`](Self::take_reclaimed) has none.
    pub(super) fn will_look(&mut self) {
        if !std::mem::replace(&mut self.looks, true)
            && let Some(reclaimed) = self.reclaimed()
        {
            reclaimed.will_look();
        }
    }

    /// Entries that have come back.
    pub(super) fn take_reclaimed(&mut self) -> Option<Vec<RingEntry>> {
        if !self.looks {
            return None;
        }
        let entries = self.reclaimed().and_then(ReclaimQueue::look);
        self.looks = entries.is_some();
        entries
    }

    /// Of a thread that ends: what has come back goes to others.
    pub(super) fn leave_reclaimed(&mut self) {
        while let Some(entries) = self.take_reclaimed() {
            for entry in entries {
                if batch::hand_over(self.worker_pool, entry).is_some()
                    && !self.worker_pool.life.has_ended()
                {
                    tracing::error!(
                        queue = self.queue_worker.queue,
                        "a request is lost for want of a thread"
                    );
                }
            }
        }
    }

    /// Sends what was answered. EINTR does no harm: the rest goes with the next call.
    fn send_now(&mut self) -> Result<(), Errno> {
        self.trial.is_even();
        match self.ring.submit() {
            Err(Errno::INTR) if !self.worker_pool.life.has_ended() => Ok(()),
            sent => sent,
        }
    }
}
