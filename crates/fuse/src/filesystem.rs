//! The contract between the session layer and a filesystem: one method per operation.
//!
//! A method answers by returning; the session encodes the answer and sends it. Methods run on
//! the transport's threads, several at once. One that may take long (a disk, a network, a lock)
//! calls [`Context::may_block`] first so that other requests go on.
//!
//! # Lookup counts
//! Every reply that carries an [`Entry`] with a non-zero node adds one to that node's lookup
//! count: `lookup`, `create`, `tmpfile`, `mkdir`, `mknod`, `symlink`, `link`, and each entry of
//! `readdirplus` except `.` and `..`. `forget` takes back. While the count is above zero or a
//! handle is open, the node id must keep meaning the same inode.

use std::ffi::OsStr;
use std::time::Duration;

use crate::abi::Opcode;
use crate::connection::Connection;
use crate::deferred::Deferred;
use crate::listing::{DirPlusSink, DirSink};
use crate::negotiate::Negotiated;
use crate::types::*;

/// What a transport offers to the request it is running.
pub trait Worker {
    /// The request may block: let another thread take over reading requests. Cheap when repeated.
    fn may_block(&self);

    /// Whether the kernel has asked for this request to be interrupted.
    fn interrupted(&self) -> bool;

    /// Takes the answer out of the hands of the method that runs: what it returns from now on is
    /// ignored. Once for a request. ENOSYS where the transport cannot, ENOLCK if too many requests
    /// of the user wait already.
    fn defer(&self) -> Result<Deferred> {
        Err(Errno::NOSYS)
    }

    /// Has the request carried out once more after this time or later, instead of answering it
    /// now; false where the transport cannot, or if the request came longer ago than `at_most`.
    fn again(&self, after: Duration, at_most: Duration) -> bool {
        let _ = (after, at_most);
        false
    }

    /// Whether one of the two has happened: nothing is answered now.
    fn is_deferred(&self) -> bool {
        false
    }
}

/// Who asks, and on whose behalf a request runs.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The request's number; unique among those in flight.
    pub unique: u64,
    /// The caller's filesystem user id, or `u32::MAX` when the kernel does not say (idmapped
    /// mounts send ids only with requests that create).
    pub uid: u32,
    /// The caller's filesystem group id, or `u32::MAX`.
    pub gid: u32,
    /// The caller's thread id in the server's pid namespace, 0 if invisible there.
    pub pid: u32,
    /// A supplementary group of the caller that matters for creating here
    /// (`FUSE_EXT_GROUPS`, at most one).
    pub supplementary_gid: Option<u32>,
    /// The transport's side.
    pub worker: &'a dyn Worker,
}

impl Context<'_> {
    /// See [`Worker::may_block`].
    pub fn may_block(&self) {
        self.worker.may_block();
    }

    /// See [`Worker::interrupted`]. A blocked system call also returns EINTR then.
    pub fn interrupted(&self) -> bool {
        self.worker.interrupted()
    }

    /// Answers a request without data later: no thread stays with it. The method returns, with
    /// anything. An interrupt then comes by [`Filesystem::interrupt`]. ENOSYS where that cannot be,
    /// ENOLCK if too many requests of the user wait already.
    pub fn defer(&self) -> Result<Deferred> {
        self.worker.defer()
    }

    /// Has the request carried out once more after this time or later, with no thread staying with
    /// it. The method returns, with anything. Interrupted meanwhile it ends with EINTR. False where
    /// that cannot be, or if the request came longer ago than `at_most`.
    pub fn again(&self, after: Duration, at_most: Duration) -> bool {
        self.worker.again(after, at_most)
    }
}

/// A request that took long, and where the time went. What is left of `whole` without the others is
/// the filesystem's own work.
#[derive(Clone, Copy, Debug)]
pub struct SlowRequest<'a> {
    /// What was asked for; none if this is not known here.
    pub opcode: Option<Opcode>,
    /// The node it was asked of.
    pub node: NodeId,
    /// The name in that node, where the request has one.
    pub name: Option<&'a OsStr>,
    /// As [`Context::pid`].
    pub pid: u32,
    /// As [`Context::uid`].
    pub uid: u32,
    /// From when it was read to when its thread was done with it.
    pub whole: Duration,
    /// Waiting for a thread.
    pub queued: Duration,
    /// In calls to what the filesystem stands on.
    pub below: Duration,
    /// Handing the answer to the kernel, where that is a call for each.
    pub answering: Duration,
    /// The error it was answered with.
    pub error: Option<Errno>,
}

/// Result of an operation; the error goes to the caller as is.
pub type Result<T> = std::result::Result<T, Errno>;

/// A filesystem as the kernel asks for it. Every method has a default that answers ENOSYS, which
/// the kernel remembers for some operations (it then stops asking; see each).
#[allow(unused_variables)]
pub trait Filesystem: Send + Sync + 'static {
    /// The kernel and the session have agreed on `negotiated`; called once, before any other
    /// request. `connection` stays valid for the life of the mount. An error ends the mount.
    fn init(&self, negotiated: &Negotiated, connection: &Connection) -> Result<()> {
        Ok(())
    }

    /// The kernel has the answer to INIT: backing files can be registered and notifications sent
    /// from now on. Called once, before any other request.
    fn ready(&self) {}

    /// The mount is gone; no request follows.
    fn destroy(&self) {}

    /// The caller of a deferred request got a signal: the request is to be answered with EINTR,
    /// from whatever thread. False if no such request waits here. May be called a moment before
    /// the method that deferred it returns, and on a thread that must not wait.
    fn interrupt(&self, unique: u64) -> bool {
        false
    }

    /// For how long this thread has been, in all its life, in calls to what the filesystem stands on: a
    /// disk, a server. The session looks before and after a request, and counts the difference as
    /// the request's ([`OperationLatency::below`](crate::OperationLatency::below)). Called often: to be
    /// told from memory. Stays at zero where nobody measures.
    fn time_below(&self) -> Duration {
        Duration::ZERO
    }

    /// A request that takes this long or longer is told of by [`Filesystem::slow`]; none where there is
    /// no such time. Asked after each request: to be told from memory.
    fn slow_after(&self) -> Option<Duration> {
        None
    }

    /// A request took long. It is over; over `/dev/fuse` its caller has the answer.
    fn slow(&self, request: &SlowRequest<'_>) {}

    /// Finds `name` in `parent`. `.` and `..` come only from file-handle look-ups (NFS export):
    /// `.` asks whether `parent` itself still exists (it may have been forgotten), `..` for its
    /// parent. ESTALE where such a node cannot be found again. ENOENT, or an entry with node 0
    /// for a cacheable "no".
    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Takes `lookups` from the node's lookup count. Never answered.
    fn forget(&self, node: NodeId, lookups: u64) {}

    /// Attributes; through `handle` when the caller has the file open.
    fn getattr(&self, cx: &Context<'_>, node: NodeId, handle: Option<Handle>) -> Result<AttrReply> {
        Err(Errno::NOSYS)
    }

    /// `statx(2)` with birth time. ENOSYS makes the kernel use `getattr` for good.
    fn statx(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Option<Handle>,
        mask: u32,
        sync_flags: u32,
    ) -> Result<StatxReply> {
        Err(Errno::NOSYS)
    }

    /// Changes attributes, all or (at the first error) none of what is left.
    fn setattr(&self, cx: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        Err(Errno::NOSYS)
    }

    /// The target of a symbolic link, written to `out`; returns its length.
    fn readlink(&self, cx: &Context<'_>, node: NodeId, out: &mut [u8]) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Makes a file, fifo, socket or device node.
    fn mknod(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Makes a directory (`rdev` unused).
    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Removes a name that is not a directory.
    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Renames. EINVAL for flags that are not served.
    fn rename(&self, cx: &Context<'_>, parent: NodeId, args: &Rename<'_>) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Gives `node` a further name.
    fn link(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Opens a file.
    fn open(&self, cx: &Context<'_>, node: NodeId, args: &Open) -> Result<OpenReply> {
        Err(Errno::NOSYS)
    }

    /// Makes and opens a file in one step. ENOSYS makes the kernel use `mknod` and `open`.
    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Result<(Entry, OpenReply)> {
        Err(Errno::NOSYS)
    }

    /// `O_TMPFILE`: makes and opens a file without a name. `args.name` is to be ignored.
    /// EOPNOTSUPP where it cannot be.
    fn tmpfile(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Result<(Entry, OpenReply)> {
        Err(Errno::OPNOTSUPP)
    }

    /// Reads into `out`; returns how much, less than `out` only at the end of the file.
    fn read(&self, cx: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// As [`read`](Self::read), if the bytes are at hand: without waiting for a device, another
    /// machine, or a lock that may be held for long. `None`: nothing was done (but `out` may hold
    /// anything), and `read` is to be called where it may block.
    fn read_nowait(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        args: &Read,
        out: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// As [`write`](Self::write), if it is done without waiting. `None`: what was written, if
    /// anything, is a part of the same bytes, and `write` is to be called where it may block.
    fn write_nowait(&self, cx: &Context<'_>, node: NodeId, args: &Write<'_>) -> Option<usize> {
        None
    }

    /// Writes; returns how much.
    fn write(&self, cx: &Context<'_>, node: NodeId, args: &Write<'_>) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// A descriptor was closed (others may remain): POSIX locks of `owner` end, and errors of
    /// earlier writes may be told. ENOSYS stops the kernel from asking.
    fn flush(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        owner: LockOwner,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// The last descriptor of an open file was closed; `handle` is gone. Errors are not seen.
    fn release(&self, cx: &Context<'_>, node: NodeId, args: &Release) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// `fsync(2)` or `fdatasync(2)`.
    fn fsync(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        scope: SyncScope,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Opens a directory. ENOSYS, where `NO_OPENDIR_SUPPORT` was negotiated: the kernel asks no
    /// more as long as the mount lives, nor calls `releasedir`; handles are 0, and it keeps every
    /// listing that was read to its end.
    fn opendir(&self, cx: &Context<'_>, node: NodeId, flags: i32) -> Result<OpenReply> {
        Err(Errno::NOSYS)
    }

    /// Lists from `offset` (0, or the offset of an entry given before: continue after it) until
    /// `sink` is full. Nothing pushed means the end.
    fn readdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Like `readdir`, with attributes and lookups.
    fn readdirplus(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut DirPlusSink<'_>,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// The open directory is gone.
    fn releasedir(&self, cx: &Context<'_>, node: NodeId, args: &Release) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// `fsync(2)` of a directory.
    fn fsyncdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        scope: SyncScope,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// `syncfs(2)`: everything written before reaches stable storage.
    fn syncfs(&self, cx: &Context<'_>, node: NodeId) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Space and limits.
    fn statfs(&self, cx: &Context<'_>, node: NodeId) -> Result<StatfsReply> {
        Err(Errno::NOSYS)
    }

    /// Sets an extended attribute. ENOSYS switches all xattrs off in the kernel (as for the
    /// three below).
    fn setxattr(&self, cx: &Context<'_>, node: NodeId, args: &SetXattr<'_>) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Reads an extended attribute into `out` and returns its length; with `None` only its
    /// length. ERANGE if `out` is too small, ENODATA if there is no such attribute.
    fn getxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &OsStr,
        out: Option<&mut [u8]>,
    ) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// Lists names, each ended by a NUL; sizes as for `getxattr`.
    fn listxattr(&self, cx: &Context<'_>, node: NodeId, out: Option<&mut [u8]>) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, cx: &Context<'_>, node: NodeId, name: &OsStr) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// `access(2)`; only asked without default_permissions. ENOSYS means "always yes".
    fn access(&self, cx: &Context<'_>, node: NodeId, mask: u32) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// The first lock that conflicts with `args.lock`, or one of kind `Unlock`.
    fn getlk(&self, cx: &Context<'_>, node: NodeId, args: &LockRequest) -> Result<Lock> {
        Err(Errno::NOSYS)
    }

    /// Takes or drops a lock. EAGAIN on a conflict, unless `args.wait`.
    fn setlk(&self, cx: &Context<'_>, node: NodeId, args: &LockRequest) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Maps a block of the file to one of the device; only for `blkdev` mounts.
    fn bmap(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        block: u64,
        block_size_bytes: u32,
    ) -> Result<u64> {
        Err(Errno::NOSYS)
    }

    /// An ioctl whose data the kernel could copy by its encoded size; output goes to `out`.
    /// ENOTTY for what is not served.
    fn ioctl(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        args: &Ioctl<'_>,
        out: &mut [u8],
    ) -> Result<IoctlReply> {
        Err(Errno::NOTTY)
    }

    /// Readiness (`POLL*`). ENOSYS means "always ready".
    fn poll(&self, cx: &Context<'_>, node: NodeId, handle: Handle, events: u32) -> Result<u32> {
        Err(Errno::NOSYS)
    }

    /// `fallocate(2)`.
    fn fallocate(&self, cx: &Context<'_>, node: NodeId, args: &Fallocate) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// `SEEK_DATA` and `SEEK_HOLE`: the offset found. ENXIO past the end.
    fn lseek(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset_bytes: u64,
        whence: u32,
    ) -> Result<u64> {
        Err(Errno::NOSYS)
    }

    /// `copy_file_range(2)`; EXDEV or ENOSYS makes the kernel copy by itself.
    fn copy_file_range(&self, cx: &Context<'_>, node: NodeId, args: &CopyFileRange) -> Result<u64> {
        Err(Errno::NOSYS)
    }
}
