//! What a thread does with a request whose user has as many threads away as they may.

use std::sync::atomic::Ordering;

use super::Serving;
use super::carry_out::{Reply, RingWorker};
use crate::abi::InHeader;
use crate::transport::ring::entry::RingEntry;
use crate::transport::ring::interrupt;
use crate::transport::ring::shares::{self, Begun};
use crate::types::Errno;

impl Serving<'_> {
    /// Leaves the request to its user's share, or refuses it; it comes back if it may be begun. Two
    /// loads, while few threads are away.
    pub(super) fn put_aside(
        &mut self,
        entry: RingEntry,
        header: &InHeader,
    ) -> Result<Option<RingEntry>, Errno> {
        let (worker_pool, queue_worker, unique) =
            (self.worker_pool, self.queue_worker, header.unique);
        let waited = worker_pool.late.take_let_go(unique);
        queue_worker.of_share.store(waited, Ordering::Relaxed);
        if !shares::matter(worker_pool, queue_worker)
            || !shares::is_beyond_share(worker_pool, queue_worker, header)
        {
            return Ok(Some(entry));
        }
        let has_others = self.foreign || self.ring.entries() > 0;
        let fresh = match RingWorker::go_on_without(worker_pool, queue_worker, has_others) {
            Ok(fresh) => fresh,
            // It cannot wait without a thread: better its user's error than everybody's wait.
            Err(errno) => {
                tracing::debug!(%errno, "a request beyond a share cannot wait");
                self.refuse(entry, header);
                return Ok(None);
            }
        };
        match shares::wait_for_share(worker_pool, header, entry) {
            Begun::Yes(entry) => {
                // What was made for going on is given up again.
                if let Some(fresh) = fresh {
                    worker_pool.resources.drop_entry(fresh);
                }
                return Ok(Some(entry));
            }
            Begun::Waits => {}
            Begun::Refused(entry) => {
                if let Some(fresh) = fresh {
                    worker_pool.resources.drop_entry(fresh);
                }
                self.refuse(entry, header);
                return Ok(None);
            }
        }
        queue_worker.of_share.store(false, Ordering::Relaxed);
        if interrupt::was_interrupted(worker_pool, queue_worker, unique) {
            worker_pool.late.interrupt(unique);
        }
        self.go_on(fresh)?;
        Ok(None)
    }

    fn refuse(&mut self, entry: RingEntry, header: &InHeader) {
        self.queue_worker.of_share.store(false, Ordering::Relaxed);
        let reply = Reply::later(header.unique, Err(Errno::AGAIN));
        self.send(entry, header, &reply);
    }
}
