//! A request of our own to the mount itself, for a queue where requests wait and no thread is
//! about to answer one: the last resort where the kernel knows no regular file to ask us about.
//!
//! A child process sends it. Were the server killed meanwhile, who waits for it must not be what
//! keeps `/dev/fuse` open, nor the memory of the rings: the kernel ends what is on its way to a
//! ring's dead thread only with the ring, which is there while it is mapped.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, thread};

use rustix::thread::{CpuSet, gettid, sched_setaffinity};

use crate::session::answers;
use crate::sys;

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
