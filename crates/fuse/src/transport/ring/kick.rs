//! A request of our own, for a queue where requests wait and no thread is about to answer one: about a
//! regular file that the kernel knows, or to the mount itself where it knows none.
//!
//! A child process sends the latter. Were the server killed meanwhile, who waits for it must not be what
//! keeps `/dev/fuse` open, nor the memory of the rings: the kernel ends what is on its way to a
//! ring's dead thread only with the ring, which is there while it is mapped.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, thread};

use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

use super::queue_worker::QueueWorker;
use super::worker_pool::RingWorkerPool;
use crate::affinity;
use crate::mount::answers;
use crate::sys;
use crate::types::Errno;

/// Fetches what waits in a queue whose threads are all away. For the thread that has just offered an
/// entry there.
pub(super) fn fetch_waiting(worker_pool: &RingWorkerPool, queue_worker: &QueueWorker) {
    let RingWorkerPool {
        server,
        life,
        queues,
        kicks,
        ..
    } = worker_pool;
    let queue = queue_worker.queue;
    // The request goes to the queue of the CPU it is sent from.
    let elsewhere = sched_getaffinity(None).ok();
    let here = affinity::only(queue);
    let moved = match (&elsewhere, here) {
        (Some(now), Some(here)) if *now != here => sched_setaffinity(None, &here).is_ok(),
        _ => false,
    };
    let mut files = queues.files_nearest_to(queue).into_iter();
    if !files.any(|file| server.connection.kick_from(file).is_ok()) && !life.has_ended() {
        let kicked = affinity::only(queue)
            .ok_or_else(|| Errno::RANGE.into())
            .and_then(|cpu| kicks.kick(queue, cpu));
        if let Err(error) = kicked {
            tracing::warn!(%error, queue, "waiting requests cannot be fetched");
        }
    }
    if moved && let Some(elsewhere) = elsewhere {
        // It was there before.
        let _ = sched_setaffinity(None, &elsewhere);
    }
}

/// Who asks, for each queue.
pub(super) struct Kicks {
    mountpoint: CString,
    /// The process (or the thread) that asked last on a queue; 0 for none.
    askers: Box<[AtomicU32]>,
}

impl Kicks {
    pub(super) fn new(mountpoint: &Path, queues: usize) -> Arc<Self> {
        Arc::new(Self {
            // Of the kernel's list of mounts, and so without NUL.
            mountpoint: CString::new(mountpoint.as_os_str().as_bytes()).unwrap_or_default(),
            askers: (0..queues).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// Sends a request to the queue of `cpu`. Does not wait for it.
    pub(super) fn kick(self: &Arc<Self>, queue: usize, cpu: CpuSet) -> io::Result<()> {
        let kicks = self.clone();
        thread::Builder::new()
            .name("strandfs-kick".to_owned())
            .spawn(move || kicks.ask(queue, &cpu))
            .map(drop)
    }

    fn ask(&self, queue: usize, cpu: &CpuSet) {
        let Some(asker) = self.askers.get(queue) else {
            return;
        };
        if sys::leave_descriptors().is_err() || sched_setaffinity(None, cpu).is_err() {
            return;
        }
        let own = match sys::ask_in_child(&self.mountpoint, asker) {
            Ok(child) => child,
            Err(errno) => {
                tracing::debug!(%errno, "no child process; the thread asks itself");
                let own = gettid().as_raw_nonzero().get().cast_unsigned();
                asker.store(own, Ordering::Release);
                answers(Path::new(OsStr::from_bytes(self.mountpoint.to_bytes())));
                own
            }
        };
        // Another one may have begun since.
        let _ = asker.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether a request of this queue is ours: it is to be answered, with anything, and not to be
    /// carried out, which might block.
    pub(super) fn is_own(&self, queue: usize, pid: u32) -> bool {
        let asker = self.askers.get(queue);
        pid != 0 && asker.is_some_and(|asker| asker.load(Ordering::Acquire) == pid)
    }
}
