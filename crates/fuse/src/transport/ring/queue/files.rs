//! What a ring does with files beside reading and writing them.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::opcode;
use io_uring::types::{Fd, FsyncFlags};

use super::{Ring, Slot};
use crate::transport::ring::RingEntry;
use crate::types::{Errno, SyncScope};

impl Ring {
    /// Keeps the payload buffers of these entries in memory and known to the kernel, which then
    /// need not look them up for each transfer with this ring (with another it does). Once, before
    /// any of them is in use. ENOMEM: more than may be locked (RLIMIT_MEMLOCK, unless the process
    /// has CAP_IPC_LOCK), EINVAL: more than 16384; they can be used all the same then.
    pub fn pin(&mut self, entries: &mut [RingEntry]) -> Result<(), Errno> {
        let payloads = entries.iter_mut().map(|entry| {
            let (_, payload) = entry.parts_mut();
            libc::iovec {
                iov_base: payload.as_mut_ptr().cast(),
                iov_len: payload.len(),
            }
        });
        let payloads: Vec<libc::iovec> = payloads.collect();
        // SAFETY: the kernel writes to the buffers only in transfers, for which the entry is in
        // the ring; it holds the pages itself, should the mapping go.
        let pinned = unsafe { self.uring.submitter().register_buffers(&payloads) };
        pinned.map_err(super::errno_of)?;
        for (index, entry) in (0..).zip(entries) {
            entry.set_pinned(self.number, index);
        }
        Ok(())
    }

    /// fsync(2) of `file`, or fdatasync(2).
    pub fn sync_file(&mut self, entry: RingEntry, file: &Arc<OwnedFd>, scope: SyncScope) {
        let flags = match scope {
            SyncScope::All => FsyncFlags::empty(),
            SyncScope::DataOnly => FsyncFlags::DATASYNC,
        };
        let sync = opcode::Fsync::new(Fd(file.as_raw_fd())).flags(flags);
        self.begin(sync.build().into(), moving(entry, file));
    }

    /// fallocate(2) of `file`.
    pub fn allocate_file(
        &mut self,
        entry: RingEntry,
        file: &Arc<OwnedFd>,
        mode: i32,
        offset_bytes: u64,
        len_bytes: u64,
    ) {
        let allocate = opcode::Fallocate::new(Fd(file.as_raw_fd()), len_bytes)
            .offset(offset_bytes)
            .mode(mode);
        self.begin(allocate.build().into(), moving(entry, file));
    }

    /// Waits until `file` can be read from, or has failed; the number that comes back are the
    /// `POLL*` that hold. The entry only stands for the wait.
    pub fn poll_file(&mut self, entry: RingEntry, file: &Arc<OwnedFd>) {
        let events = libc::POLLIN as u32;
        let poll = opcode::PollAdd::new(Fd(file.as_raw_fd()), events);
        self.begin(poll.build().into(), moving(entry, file));
    }
}

/// What the kernel does something with until the completion.
pub(super) fn moving(entry: RingEntry, file: &Arc<OwnedFd>) -> Slot {
    Slot::Moving(ManuallyDrop::new(entry), Arc::clone(file))
}
