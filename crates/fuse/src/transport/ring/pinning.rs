//! On which CPU the thread of a queue runs: the queue's, unless it is told otherwise.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::super::placement::{Placement, Role};
use super::queue_worker::QueueWorker;
use crate::affinity;

/// Where threads may run.
pub(super) struct Pinning {
    placement: Placement,
    /// Where this process was put: no thread leaves it.
    allowed: Option<CpuSet>,
}

impl Pinning {
    /// For the process as it is placed now.
    pub(super) fn new(placement: Placement) -> Self {
        Self {
            placement,
            allowed: sched_getaffinity(None).ok(),
        }
    }

    /// Puts the calling thread on its queue's CPU, or where `Placement` wants it.
    pub(super) fn settle(&self, queue_worker: &QueueWorker) {
        if !self.placement.is_free() {
            return self.place(queue_worker, Role::Reading);
        }
        if !self.placement.is_near_caller() {
            return;
        }
        let allowed = self.allowed.as_ref();
        let Some(cpu) = affinity::only(queue_worker.queue)
            .filter(|_| allowed.is_none_or(|allowed| allowed.is_set(queue_worker.queue)))
        else {
            return;
        };
        // A CPU that is not there: the thread serves its queue from elsewhere.
        if let Err(errno) = sched_setaffinity(None, &cpu) {
            tracing::debug!(%errno, queue = queue_worker.queue, "a thread cannot be pinned");
        }
    }

    /// Whether threads may leave their queue's CPU: nobody has put them there on purpose, and there
    /// is another one.
    pub(super) fn may_be_unpinned(&self) -> bool {
        let allowed = self.allowed.as_ref();
        self.placement.is_near_caller() && allowed.is_some_and(|allowed| allowed.count() > 1)
    }

    /// Lets the calling thread run wherever this process may.
    pub(super) fn unsettle(&self, queue_worker: &QueueWorker) {
        if let Some(allowed) = &self.allowed
            && let Err(errno) = sched_setaffinity(None, allowed)
        {
            tracing::debug!(%errno, queue = queue_worker.queue, "a thread cannot leave its CPU");
        }
    }

    /// Puts a thread where `Placement` wants it in a role that is new to it.
    pub(super) fn place(&self, queue_worker: &QueueWorker, role: Role) {
        if !self.placement.is_free() {
            queue_worker.place(&self.placement, role);
        }
    }
}
