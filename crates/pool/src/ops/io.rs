//! READ, WRITE and what else works on an open file's bytes.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use smallvec::SmallVec;
use strandfs_fuse::{
    Context, CopyFileRange, Fallocate, Handle, LockOwner, NodeId, Read, SyncScope, Write,
};
use strandfs_options::CacheFiles;

use crate::base::branch::{Branch, BranchId};
use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::holes;
use crate::base::open::reopen;
use crate::base::sys;
use crate::directory::{Directories, locate};
use crate::mover::{self, Mover, Refused, is_full};
use crate::ops::account::{self, Extent};
use crate::ops::{lost_answer, open, privilege};
use crate::state::State;
use crate::state::node::Node;
use crate::state::open_file::OpenFile;
use crate::state::range_locks::Answers;
use crate::state::view::View;

/// Requests from this size on may keep a disk busy long enough to let others go ahead.
const LARGE_BYTES: usize = 256 << 10;

/// READ.
pub(crate) fn read(pool: &State, cx: &Context<'_>, args: &Read, out: &mut [u8]) -> Result<usize> {
    let opened = open::opened(pool, args.handle)?;
    let view = pool.view();
    if view.settings.requests.nullrw {
        // What the buffer held belongs to someone else.
        out.fill(0);
        return Ok(out.len());
    }
    proxy_io_priority(cx, &view);
    let direct = args.flags & libc::O_DIRECT != 0;
    // The kernel reads ahead into its page cache while the caller goes on.
    let is_ahead = view.settings.caching.files != CacheFiles::Off;
    if out.len() >= LARGE_BYTES && (is_ahead || may_wait(&opened, direct)) {
        cx.may_block();
    }
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = args.offset_bytes + done as u64;
        let read = |file: &Arc<OwnedFd>| match rustix::io::pread(file, &mut *rest, at) {
            Err(errno @ Errno::INVAL) if !direct => {
                let plain = reopen_past_direct(file.as_fd(), errno)?;
                rustix::io::pread(plain, &mut *rest, at)
            }
            other => other,
        };
        match opened.call(Call::Read, read) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) if !cx.interrupted() => {}
            Err(errno) if done == 0 => return Err(errno.into()),
            Err(_) => break,
        }
    }
    opened.count(|calls| calls.moved(Call::Read, done));
    Ok(done)
}

/// Whether a request may wait for a device. Else its data are no more than copied, which takes less than to wake another
/// thread that goes on meanwhile.
fn may_wait(opened: &OpenFile, direct: bool) -> bool {
    let branch = opened.branch();
    branch.is_none_or(|branch| !branch.medium().latency.is_at_hand(direct))
}

/// WRITE.
pub(crate) fn write(pool: &Mover, cx: &Context<'_>, args: &Write<'_>) -> Result<usize> {
    let opened = open::opened(pool, args.handle)?;
    let view = pool.view();
    if view.settings.requests.nullrw {
        return Ok(args.data.len());
    }
    proxy_io_priority(cx, &view);
    let how = write_flags(args);
    let direct = args.flags & libc::O_DIRECT != 0 && !args.from_cache;
    if args.data.len() >= LARGE_BYTES && (args.from_cache || may_wait(&opened, direct)) {
        cx.may_block();
    }
    let mut done = 0;
    while let Some(rest) = args.data.get(done..).filter(|rest| !rest.is_empty()) {
        let range = (args.offset_bytes + done as u64, rest.len() as u64);
        let outcome = on_a_branch_with_room(pool, cx, &opened, Call::Write, range, |branch, fd| {
            sys::want_fsetid(!args.kill_suidgid)?;
            let at = args.offset_bytes + done as u64;
            let write = |payer| {
                let write =
                    |fd: BorrowedFd<'_>| sys::on_account_of(payer, || write_at(fd, rest, at, how));
                match write(fd) {
                    Err(errno @ Errno::INVAL) if !direct => {
                        let plain = reopen_past_direct(fd, errno)?;
                        Ok(write(plain.as_fd())?)
                    }
                    other => Ok(other?),
                }
            };
            let written = match args.from_cache {
                // The caller is not known.
                true => write(account::of_opener(&opened, branch, fd)),
                false => {
                    let payer = account::of_caller(cx, branch, Extent::Piece);
                    account::paid((cx, branch, payer), write)
                }
            };
            match written {
                Err(error) if how.contains(ReadWriteFlags::APPEND) => {
                    unless_appended(branch, fd, (rest, at), how, error)
                }
                written => written,
            }
        });
        match outcome {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Error {
                errno: Errno::INTR,
                took_effect: false,
                ..
            }) if !cx.interrupted() => {}
            // A branch that refuses may have taken part of it.
            Err(errno) if done == 0 => {
                return in_doubt_if_failed(pool, opened.node.id, Err(errno));
            }
            Err(_) => break,
        }
    }
    opened.count(|calls| calls.moved(Call::Write, done));
    Ok(done)
}

/// Changes the branch file of a handle; where its branch is full, the file moves to another
/// (`moveonenospc`) and the change is made there. It takes so many bytes at most, from an offset on.
fn on_a_branch_with_room<T>(
    pool: &Mover,
    cx: &Context<'_>,
    opened: &Arc<OpenFile>,
    call: Call,
    (offset_bytes, need_bytes): (u64, u64),
    mut change: impl FnMut(&Branch, BorrowedFd<'_>) -> Result<T>,
) -> Result<T> {
    let mut times = 0;
    let mut refused_by: SmallVec<[BranchId; 4]> = SmallVec::new();
    loop {
        let held = opened.node.share_move_lock(cx);
        let (branch, file) = match opened.opened_on() {
            Some(opened_on) => opened_on,
            None => return Err(opened.file().err().unwrap_or(Errno::BADF).into()),
        };
        let began = Instant::now();
        let outcome = change(&branch, file.as_fd());
        let (took, error) = (began.elapsed(), outcome.as_ref().err().copied());
        opened.count(|calls| calls.note(call, took, error));
        let refusal = match outcome {
            Err(error) if is_full(error.errno) && !error.took_effect => error,
            outcome => return outcome,
        };
        drop(held);
        if times > 0 && cx.interrupted() {
            return Err(refusal);
        }
        refused_by.push(branch.id);
        drop(branch);
        let left = Arc::downgrade(&file);
        drop(file);
        let moved = || {
            let now = opened.file().map(|now| Arc::downgrade(&now));
            now.is_ok_and(|now| !now.ptr_eq(&left))
        };
        let refused = Refused {
            file: Some(&left),
            offset_bytes,
            need_bytes,
            refusal,
            times,
            by: &refused_by,
        };
        mover::make_room(pool, cx, &opened.node, &refused, moved)?;
        times += 1;
    }
}

/// FLUSH: POSIX locks of the owner end; filesystems that report write errors only at close
/// (network ones) get to report them.
pub(crate) fn flush(pool: &State, id: NodeId, handle: Handle, owner: LockOwner) -> Result<()> {
    let opened = open::opened(pool, handle)?;
    let node = pool.node(id).unwrap_or_else(|_| opened.node.clone());
    if let Some(locks) = node.locks() {
        let mut answers = Answers::new();
        locks.release(owner, &mut answers);
        locks.close_told(opened.address());
        pool.lock_waits.settle(&locks, &mut answers);
    }
    if opened.writable && opened.branch().is_some_and(|on| on.reports_at_close()) {
        return Ok(sys::close_reporting(rustix::io::dup(&*opened.file()?)?)?);
    }
    Ok(())
}

/// FSYNC.
pub(crate) fn fsync(
    pool: &State,
    cx: &Context<'_>,
    handle: Handle,
    scope: SyncScope,
) -> Result<()> {
    let opened = open::opened(pool, handle)?;
    if pool.view().settings.requests.nullrw {
        return Ok(());
    }
    cx.may_block();
    let synced = opened.call(Call::Sync, |file| match scope {
        SyncScope::DataOnly => rustix::fs::fdatasync(file),
        SyncScope::All => rustix::fs::fsync(file),
    });
    Ok(opened.reported(synced)?)
}

/// FALLOCATE.
pub(crate) fn fallocate(pool: &Mover, cx: &Context<'_>, args: &Fallocate) -> Result<()> {
    let opened = open::opened(pool, args.handle)?;
    if pool.view().settings.requests.nullrw {
        return Ok(());
    }
    cx.may_block();
    let mode = FallocateFlags::from_bits_retain(args.mode);
    let range = (args.offset_bytes, args.len_bytes);
    let outcome = on_a_branch_with_room(pool, cx, &opened, Call::Change, range, |branch, fd| {
        let payer = account::of_caller(cx, branch, Extent::Any);
        privilege::with_unmarked_change(cx, fd, || {
            account::paid((cx, branch, payer), |by| {
                let is_kept_for = by == account::ROOT || by == branch.reserve_holders().uid;
                let allocate =
                    || allocate(fd, mode, args.offset_bytes, args.len_bytes, is_kept_for);
                sys::on_account_of(by, allocate)
            })
        })
    });
    in_doubt_if_failed(pool, opened.node.id, outcome)
}

/// LSEEK: `SEEK_DATA` and `SEEK_HOLE`. The branch file's own position serves nobody else. What the
/// kernel has in its cache and not written yet is a hole to the branch, and data to everybody else; nor is
/// every branch's word for holes taken (see [`holes`]).
///
/// # Errors
/// ENOSYS where the kernel collects writes, which is so for as long as the mount: it does not ask
/// again and takes every file for data.
pub(crate) fn lseek(pool: &State, handle: Handle, offset_bytes: u64, whence: u32) -> Result<u64> {
    if pool.view().settings.caching.writeback {
        return Err(Error::expected(Errno::NOSYS));
    }
    let opened = open::opened(pool, handle)?;
    let file = opened.file()?;
    if opened.node.may_be_unwritten() || !holes::are_told(file.as_fd()) {
        let size_bytes = rustix::fs::fstat(&*file)?.st_size.unsigned_abs();
        return match i32::try_from(whence) {
            _ if offset_bytes >= size_bytes => Err(Errno::NXIO.into()),
            Ok(libc::SEEK_DATA) => Ok(offset_bytes),
            Ok(libc::SEEK_HOLE) => Ok(size_bytes),
            _ => Err(Errno::INVAL.into()),
        };
    }
    let whence = match i32::try_from(whence) {
        Ok(libc::SEEK_DATA) => SeekFrom::Data(offset_bytes),
        Ok(libc::SEEK_HOLE) => SeekFrom::Hole(offset_bytes),
        _ => return Err(Errno::INVAL.into()),
    };
    Ok(rustix::fs::seek(&*file, whence)?)
}

/// COPY_FILE_RANGE: the branch shares or copies the bytes; EXDEV between filesystems that
/// cannot makes the kernel copy by reading and writing.
pub(crate) fn copy_file_range(pool: &Mover, cx: &Context<'_>, args: &CopyFileRange) -> Result<u64> {
    let from = open::opened(pool, args.handle_in)?;
    let to = open::opened(pool, args.handle_out)?;
    if pool.view().settings.requests.nullrw {
        return Err(Errno::OPNOTSUPP.into());
    }
    cx.may_block();
    let len = usize::try_from(args.len_bytes)
        .unwrap_or(usize::MAX)
        .min(0x7fff_f000);
    let rest = rustix::fs::fstat(&*from.file()?)?.st_size.unsigned_abs();
    let need_bytes = rest.saturating_sub(args.offset_in_bytes).min(len as u64);
    let range = (args.offset_out_bytes, need_bytes);
    let count = on_a_branch_with_room(pool, cx, &to, Call::Write, range, |branch, target| {
        let source = from.file()?;
        let payer = account::of_caller(cx, branch, Extent::Any);
        privilege::with_unmarked_change(cx, target, || {
            account::paid((cx, branch, payer), |by| {
                let (mut offset_in, mut offset_out) = (args.offset_in_bytes, args.offset_out_bytes);
                let (at_in, at_out) = (Some(&mut offset_in), Some(&mut offset_out));
                let copy = || rustix::fs::copy_file_range(&*source, at_in, target, at_out, len);
                match sys::on_account_of(by, copy)? {
                    // Programs would take this for the end: the kernel reads, which tells whether it is.
                    0 if need_bytes > 0 => Err(Errno::OPNOTSUPP.into()),
                    count => Ok(count),
                }
            })
        })
    });
    match count {
        // Nothing was tried.
        Err(
            error @ Error {
                errno: Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS,
                ..
            },
        ) => Err(error),
        other => in_doubt_if_failed(pool, to.node.id, other.map(|count| count as u64)),
    }
}

/// After a change of a file that failed, perhaps half way: the answer tells the kernel nothing of
/// what the file is like now, so that it has to ask.
pub(crate) fn in_doubt_if_failed<T>(pool: &State, node: NodeId, outcome: Result<T>) -> Result<T> {
    if outcome.is_err() {
        in_doubt(pool, node);
    }
    outcome
}

/// The kernel has to ask for a node's attributes. May be called while a request on it is
/// unanswered: pages, which that may have locked, are left alone.
pub(crate) fn in_doubt(pool: &State, node: NodeId) {
    if let Some(connection) = pool.connection.get()
        && let Err(errno) = connection.invalidate_inode(node, -1, 0)
    {
        tracing::debug!(%errno, "attributes could not be invalidated");
    }
}

/// The open descriptor of a handle, else a fresh one of the node.
pub(crate) fn writable_file(
    pool: &Directories,
    node: &std::sync::Arc<Node>,
    handle: Option<Handle>,
) -> Result<std::sync::Arc<std::os::fd::OwnedFd>> {
    if let Some(opened) = handle.and_then(|handle| pool.files.get(handle))
        && opened.writable
    {
        return Ok(opened.file()?);
    }
    let (_, file, _) = locate::open_inode(pool, node, OFlags::WRONLY)?;
    Ok(std::sync::Arc::new(file))
}

/// Allocates room. Where that makes the file longer the room is had first: a branch that runs out of
/// it on the way (ext4) would leave the file longer all the same, and the kernel's idea of its end,
/// where it puts what is appended to its page cache, would be wrong.
fn allocate(
    fd: BorrowedFd<'_>,
    mode: FallocateFlags,
    offset_bytes: u64,
    len_bytes: u64,
    root_pays: bool,
) -> Result<()> {
    let end = offset_bytes.saturating_add(len_bytes);
    let mut had = false;
    refuse_hopeless(fd, mode, len_bytes, root_pays)?;
    if !mode.contains(FallocateFlags::KEEP_SIZE)
        && end > rustix::fs::fstat(fd)?.st_size.unsigned_abs()
    {
        let beyond = mode | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(fd, beyond, offset_bytes, len_bytes) {
            Ok(()) => had = mode.is_empty(),
            // A branch without that (NFS, some FUSE servers) may have the whole in one.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    match rustix::fs::fallocate(fd, mode, offset_bytes, len_bytes) {
        // XFS wants as much free again, for what it has given by now.
        Err(Errno::NOSPC) if had => lengthen(fd, end),
        other => Ok(other?),
    }
}

/// Refuses what a branch cannot have room for. ext4 begins all the same, and keeps what it gave when it
/// ran out, so that the call that failed leaves the disk full.
///
/// # Errors
/// ENOSPC where the range is longer than all that is free and all that the file occupies already.
fn refuse_hopeless(
    fd: BorrowedFd<'_>,
    mode: FallocateFlags,
    len_bytes: u64,
    root_pays: bool,
) -> Result<()> {
    if !FallocateFlags::KEEP_SIZE.contains(mode) {
        return Ok(());
    }
    let stat = rustix::fs::fstatvfs(fd)?;
    let blocks = match root_pays {
        true => stat.f_bfree,
        false => stat.f_bavail,
    };
    let free = blocks.saturating_mul(stat.f_frsize);
    let occupied = sys::statx_fd(fd)?.stx_blocks.saturating_mul(512);
    // A filesystem that does not tell (0 blocks in all) has to try.
    match stat.f_blocks > 0 && len_bytes > free.saturating_add(occupied) {
        true => Err(Errno::NOSPC.into()),
        false => Ok(()),
    }
}

/// Has a file that has room up to there end there, if it ends before. Somebody who works on the branch may
/// have made it longer meanwhile, which `ftruncate` would undo.
fn lengthen(fd: BorrowedFd<'_>, end: u64) -> Result<()> {
    match end.checked_sub(1) {
        Some(last) => Ok(rustix::fs::fallocate(fd, FallocateFlags::empty(), last, 1)?),
        None => Ok(()),
    }
}

/// Carries the request out with its caller's I/O priority, if `proxy-ioprio` says so.
pub(super) fn proxy_io_priority(cx: &Context<'_>, view: &View) {
    let outcome = match view.settings.threads.proxy_ioprio {
        true => sys::adopt_io_priority(cx.pid).or_else(|_| sys::drop_io_priority()),
        false => sys::drop_io_priority(),
    };
    if let Err(errno) = outcome {
        tracing::debug!(%errno, "the I/O priority stays as it is");
    }
}

/// What an append is that failed. One that would be made once more, here or on another branch, may have taken
/// effect.
#[cold]
fn unless_appended(
    branch: &Branch,
    file: BorrowedFd<'_>,
    (data, end): (&[u8], u64),
    how: ReadWriteFlags,
    error: Error,
) -> Result<usize> {
    let is_to_last = how != ReadWriteFlags::APPEND;
    // A disk that has judged the write has not begun with it, but for what is to be written through.
    let may_have_begun = is_to_last || branch.medium().latency.may_hang();
    if !may_have_begun || error.errno != Errno::INTR && !is_full(error.errno) {
        return Err(error);
    }
    match lost_answer::of_appending(file, data, end, error) {
        // It is in the file, and perhaps not on the disk.
        Ok(_) if is_to_last => Err(error.after_effect()),
        found => found,
    }
}

/// How a write is to be carried out beyond its place. The flags are those of the open file now, and what the
/// write itself or the mount (`sync`) asks for besides.
fn write_flags(args: &Write<'_>) -> ReadWriteFlags {
    let mut how = ReadWriteFlags::empty();
    // The page cache writes where the pages belong, even through an O_APPEND handle.
    if args.flags & libc::O_APPEND != 0 && !args.from_cache {
        how |= ReadWriteFlags::APPEND;
    }
    // O_SYNC is O_DSYNC and one bit more.
    if args.flags & libc::O_SYNC == libc::O_SYNC {
        how |= ReadWriteFlags::SYNC;
    } else if args.flags & libc::O_DSYNC != 0 {
        how |= ReadWriteFlags::DSYNC;
    }
    how
}

fn write_at(
    fd: BorrowedFd<'_>,
    data: &[u8],
    offset: u64,
    how: ReadWriteFlags,
) -> sys::Result<usize> {
    match how.is_empty() {
        true => rustix::io::pwrite(fd, data, offset),
        false => rustix::io::pwritev2(fd, &[IoSlice::new(data)], offset, how),
    }
}

/// Opens a branch file anew that takes whole blocks only, for bytes that need not be such. A file that is no
/// longer open with `O_DIRECT` (`F_SETFL`) has the branch file that it was opened with. And the kernel writes
/// its pages back through any handle of the file, and the last page ends where the file ends.
///
/// # Errors
/// The refusal that was met, if it has another reason.
fn reopen_past_direct(fd: BorrowedFd<'_>, refusal: Errno) -> sys::Result<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    if !flags.contains(OFlags::DIRECT) {
        return Err(refusal);
    }
    // Not O_APPEND, with which pwrite(2) has no offset.
    let kept = OFlags::RWMODE | OFlags::SYNC | OFlags::DSYNC;
    reopen(fd, (flags & kept) | OFlags::LARGEFILE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    /// It was cut back to where `fallocate` had found its end.
    #[test]
    fn a_file_that_somebody_else_has_made_longer_keeps_what_is_beyond() {
        let file = tempfile::NamedTempFile::new().unwrap();
        lengthen(file.as_file().as_fd(), 5000).unwrap();
        assert_eq!(file.as_file().metadata().unwrap().len(), 5000);
        fs::write(file.path(), vec![b'x'; 9000]).unwrap();
        lengthen(file.as_file().as_fd(), 5000).unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), vec![b'x'; 9000]);
        lengthen(file.as_file().as_fd(), 0).unwrap();
    }
}
