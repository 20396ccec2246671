//! Notifications: what the server tells the kernel unasked.
//!
//! # Deadlocks
//! Invalidation takes locks in the kernel that a request on the same object may hold while it
//! waits for its answer (a directory's lock during LOOKUP, CREATE, UNLINK or RENAME in it; a page's
//! lock during READ). So [`invalidate_inode`](Connection::invalidate_inode) with data,
//! [`invalidate_entry`](Connection::invalidate_entry),
//! [`delete_entry`](Connection::delete_entry) and [`store`](Connection::store) must not be
//! called by a request's handler, nor by any thread such a handler waits for, while a request on
//! the same node is unanswered. Call them from a thread of your own. A directory's listing is the
//! exception: no request holds its pages, so a handler that has called
//! [`may_block`](crate::Context::may_block) may invalidate its inode.
//!
//! ENOENT from the kernel means that it holds nothing to invalidate: that is success here.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;

use zerocopy::IntoBytes;

use super::Connection;
use crate::abi::{self, NotifyCode, OutHeader};
use crate::types::{Errno, NodeId};

impl Connection {
    /// Cached attributes of `node` are stale, and its cached data from `offset` on for `len`
    /// bytes (0 or negative: to the end). A negative `offset` invalidates attributes only.
    pub fn invalidate_inode(&self, node: NodeId, offset: i64, len: i64) -> Result<(), Errno> {
        self.invalidate_known_inode(node, offset, len).map(drop)
    }

    /// As [`invalidate_inode`](Self::invalidate_inode); says whether the kernel knew the node. One
    /// whose first look-up is being answered is not known yet.
    pub fn invalidate_known_inode(
        &self,
        node: NodeId,
        offset: i64,
        len: i64,
    ) -> Result<bool, Errno> {
        let body = abi::NotifyInvalInodeOut {
            ino: node.0,
            off: offset,
            len,
        };
        match self.notify(NotifyCode::InvalInode, &[body.as_bytes()]) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// The cached name, existing or not, is stale and dropped, with everything mounted on it.
    pub fn invalidate_entry(&self, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        self.notify_stale_entry(parent, name, 0)
    }

    /// The cached name, existing or not, is looked up again at its next use; what is mounted on it
    /// stays. Needs `HAS_EXPIRE_ONLY`; older kernels drop the name, as
    /// [`invalidate_entry`](Self::invalidate_entry) does.
    pub fn expire_entry(&self, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        self.notify_stale_entry(parent, name, abi::EXPIRE_ONLY)
    }

    fn notify_stale_entry(&self, parent: NodeId, name: &OsStr, flags: u32) -> Result<(), Errno> {
        let body = abi::NotifyInvalEntryOut {
            parent: parent.0,
            namelen: length(name.len())?,
            flags,
        };
        let parts = [body.as_bytes(), name.as_bytes(), b"\0"];
        known_or_gone(self.notify(NotifyCode::InvalEntry, &parts))
    }

    /// `name` was deleted and led to `child`: like
    /// [`invalidate_entry`](Self::invalidate_entry), and watchers (inotify) are told. Where the
    /// name no longer leads to `child`, nothing happens. ENOTEMPTY and EBUSY: the name is a
    /// directory in use and stays.
    pub fn delete_entry(&self, parent: NodeId, child: NodeId, name: &OsStr) -> Result<(), Errno> {
        let body = abi::NotifyDeleteOut {
            parent: parent.0,
            child: child.0,
            namelen: length(name.len())?,
            padding: 0,
        };
        let parts = [body.as_bytes(), name.as_bytes(), b"\0"];
        known_or_gone(self.notify(NotifyCode::Delete, &parts))
    }

    /// Puts `data` into the page cache of `node` at `offset_bytes`, as if it had been read. At
    /// most `Negotiated::max_write_bytes` at once.
    pub fn store(&self, node: NodeId, offset_bytes: u64, data: &[u8]) -> Result<(), Errno> {
        let body = abi::NotifyStoreOut {
            nodeid: node.0,
            offset: offset_bytes,
            size: length(data.len())?,
            padding: 0,
        };
        known_or_gone(self.notify(NotifyCode::Store, &[body.as_bytes(), data]))
    }

    /// What the page cache of `node` holds from `offset_bytes` on, at most `size_bytes` and
    /// `Negotiated::max_write_bytes`; ends at the first page that is not cached. Waits for the
    /// kernel's message, so a request's handler must have called
    /// [`may_block`](crate::Context::may_block). ENOENT: the kernel does not know the node.
    /// ENOTCONN: the mount ended.
    pub fn retrieve(
        &self,
        node: NodeId,
        offset_bytes: u64,
        size_bytes: u32,
    ) -> Result<Vec<u8>, Errno> {
        let (number, arrival) = self.expect_retrieval()?;
        let body = abi::NotifyRetrieveOut {
            notify_unique: number,
            nodeid: node.0,
            offset: offset_bytes,
            size: size_bytes,
            padding: 0,
        };
        if let Err(errno) = self.notify(NotifyCode::Retrieve, &[body.as_bytes()]) {
            self.cancel_retrieval(number);
            return Err(errno);
        }
        arrival.recv().map_err(|_| Errno::NOTCONN)
    }

    /// Makes the kernel send a request that asks for nothing (a NOTIFY_REPLY without data), to the
    /// queue of the CPU this thread runs on. Does not wait for it. ENOENT: the kernel does not know
    /// the node (any more); EINVAL: it is no regular file.
    pub(crate) fn kick_from(&self, node: NodeId) -> Result<(), Errno> {
        let body = abi::NotifyRetrieveOut {
            notify_unique: self.unexpected_retrieval(),
            nodeid: node.0,
            ..abi::NotifyRetrieveOut::default()
        };
        self.notify(NotifyCode::Retrieve, &[body.as_bytes()])
    }

    /// Asks for every request that was read and not answered once more, with bit 63 of `unique`
    /// set: for a successor of a dead server. EINVAL: the kernel is older than 6.9.
    pub fn resend(&self) -> Result<(), Errno> {
        self.notify(NotifyCode::Resend, &[])
    }

    /// Every cached name of the mount is stale from now on; each is dropped at its next use and
    /// looked up again, which detaches what is mounted on it or below. EINVAL: the kernel is older
    /// than 6.16.
    pub fn increment_epoch(&self) -> Result<(), Errno> {
        self.notify(NotifyCode::IncEpoch, &[])
    }

    /// Asks the kernel to drop these inodes if nothing uses them; their FORGETs follow. EINVAL:
    /// the kernel does not know how (older than 6.18).
    pub fn prune(&self, nodes: &[NodeId]) -> Result<(), Errno> {
        let body = abi::NotifyPruneOut {
            count: length(nodes.len())?,
            ..abi::NotifyPruneOut::default()
        };
        let ids: Vec<u64> = nodes.iter().map(|node| node.0).collect();
        known_or_gone(self.notify(NotifyCode::Prune, &[body.as_bytes(), ids.as_bytes()]))
    }

    /// Wakes those who poll with the kernel's name `waiter`: they ask for readiness again.
    pub fn wake_poll(&self, waiter: u64) -> Result<(), Errno> {
        let body = abi::NotifyPollWakeupOut { kh: waiter };
        known_or_gone(self.notify(NotifyCode::Poll, &[body.as_bytes()]))
    }

    /// Sends one notification in one system call.
    fn notify(&self, code: NotifyCode, parts: &[&[u8]]) -> Result<(), Errno> {
        const HEADER_BYTES: usize = size_of::<OutHeader>();
        let total = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader {
            len: length(total)?,
            error: code as i32,
            unique: 0,
        };
        let mut slices = [IoSlice::new(&[]); 4];
        let pieces = std::iter::once(header.as_bytes()).chain(parts.iter().copied());
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        let used = slices.get(..=parts.len()).unwrap_or(&slices);
        rustix::io::retry_on_intr(|| rustix::io::writev(self.device(), used)).map(drop)
    }
}

/// A length as the wire has it; E2BIG beyond 32 bits.
fn length(bytes: usize) -> Result<u32, Errno> {
    u32::try_from(bytes).map_err(|_| Errno::TOOBIG)
}

/// "The kernel does not know it" is what an invalidation wants.
fn known_or_gone(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
