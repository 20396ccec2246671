//! What a thread does with a request whose user has as many threads away as they may.

use std::sync::atomic::Ordering;

use super::Serving;
use super::carry_out::{Reply, RingWorker};
use crate::abi::InHeader;
use crate::transport::ring::entry::RingEntry;
use crate::transport::ring::shares::Begun;
use crate::types::Errno;

impl Serving<'_> {
    /// Leaves the request to its user's share, or refuses it; it comes back if it may be begun. Two
    /// loads, while few threads are away.
    pub(super) fn put_aside(
        &mut self,
        entry: RingEntry,
        header: &InHeader,
    ) -> Result<Option<RingEntry>, Errno> {
        let (crew, post, unique) = (self.crew, self.post, header.unique);
        let waited = crew.late.take_let_go(unique);
        post.of_share.store(waited, Ordering::Relaxed);
        if !crew.shares_matter(post) || !crew.is_beyond_share(post, header) {
            return Ok(Some(entry));
        }
        let has_others = self.foreign || self.ring.entries() > 0;
        let fresh = match RingWorker::go_on_without(crew, post, has_others) {
            Ok(fresh) => fresh,
            // It cannot wait without a thread: better its user's error than everybody's wait.
            Err(errno) => {
                tracing::debug!(%errno, "a request beyond a share cannot wait");
                self.refuse(entry, header);
                return Ok(None);
            }
        };
        match crew.wait_for_share(header, entry) {
            Begun::Yes(entry) => {
                // What was made for going on is given up again.
                if let Some(fresh) = fresh {
                    crew.drop_entry(fresh);
                }
                return Ok(Some(entry));
            }
            Begun::Waits => {}
            Begun::Refused(entry) => {
                if let Some(fresh) = fresh {
                    crew.drop_entry(fresh);
                }
                self.refuse(entry, header);
                return Ok(None);
            }
        }
        post.of_share.store(false, Ordering::Relaxed);
        if crew.was_interrupted(post, unique) {
            crew.late.interrupt(unique);
        }
        self.go_on(fresh)?;
        Ok(None)
    }

    fn refuse(&mut self, entry: RingEntry, header: &InHeader) {
        self.post.of_share.store(false, Ordering::Relaxed);
        let reply = Reply::later(header.unique, Err(Errno::AGAIN));
        self.send(entry, header, &reply);
    }
}
