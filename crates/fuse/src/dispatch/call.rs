//! One call of the filesystem for each request, and how its answer gets into the reply.

use zerocopy::{Immutable, IntoBytes};

use crate::abi;
use crate::filesystem::{Context, Filesystem, Result};
use crate::reply;
use crate::request::{ForgetList, Request};
use crate::types::*;

/// Room that `out` must have for the fixed part of every reply; every transport has more.
const SMALLEST_OUT_BYTES: usize = 4096;

/// What every operation needs.
pub(super) struct Call<'c, F: ?Sized> {
    pub(super) fs: &'c F,
    pub(super) cx: &'c Context<'c>,
    pub(super) node: NodeId,
}

/// How a request ended that did not fail.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// With so many bytes at the start of the reply.
    Bytes(usize),
    /// Without a reply, as the kernel wants it.
    Nothing,
    /// Not here: the session answers it.
    Session,
}

impl Answer {
    /// Bytes at the start of the reply.
    pub(super) fn len_bytes(self) -> usize {
        match self {
            Answer::Bytes(len) => len,
            Answer::Nothing | Answer::Session => 0,
        }
    }
}

impl<F: Filesystem + ?Sized> Call<'_, F> {
    /// Calls the method for `request` and encodes the answer into `out`.
    pub(super) fn run(&self, request: &Request<'_>, out: &mut [u8]) -> Result<Answer> {
        let &Call { fs, cx, node } = self;
        let bytes = match *request {
            Request::Forget { lookups } => return self.forget(lookups),
            Request::BatchForget(list) => return self.forget_all(list),
            Request::Init(_)
            | Request::Destroy
            | Request::Interrupt { .. }
            | Request::NotifyReply { .. } => return Ok(Answer::Session),
            // What follows is answered.
            _ if out.len() < SMALLEST_OUT_BYTES => Err(no_room(out.len())),
            Request::Lookup { name } => entry(out, fs.lookup(cx, node, name)),
            Request::Getattr { handle } => attributes(out, fs.getattr(cx, node, handle)),
            Request::Setattr(ref change) => attributes(out, fs.setattr(cx, node, change)),
            Request::Statx {
                handle,
                mask,
                sync_flags: flags,
            } => self.statx(handle, mask, flags, out),
            Request::Readlink => self.readlink(out),
            Request::Access { mask } => done(fs.access(cx, node, mask)),
            Request::Statfs => put(out, &reply::statfs(&fs.statfs(cx, node)?)),
            Request::Setxattr(ref args) => done(fs.setxattr(cx, node, args)),
            Request::Getxattr { name, size_bytes } => self.getxattr(name, size_bytes, out),
            Request::Listxattr { size_bytes } => self.listxattr(size_bytes, out),
            Request::Removexattr { name } => done(fs.removexattr(cx, node, name)),
            Request::Open(ref args) => opened(out, fs.open(cx, node, args)),
            Request::Read {
                ref args,
                size_bytes,
            } => self.read(args, size_bytes, out),
            Request::Write(ref args) => self.write(args, out),
            Request::Flush { handle, owner } => done(fs.flush(cx, node, handle, owner)),
            Request::Release(ref args) => done(fs.release(cx, node, args)),
            Request::Fsync { handle, scope } => done(fs.fsync(cx, node, handle, scope)),
            Request::Opendir { flags } => opened(out, fs.opendir(cx, node, flags)),
            Request::Readdir {
                handle,
                offset,
                size_bytes,
            } => self.readdir(handle, offset, size_bytes, out),
            Request::Readdirplus {
                handle,
                offset,
                size_bytes,
            } => self.readdirplus(handle, offset, size_bytes, out),
            Request::Releasedir(ref args) => done(fs.releasedir(cx, node, args)),
            Request::Fsyncdir { handle, scope } => done(fs.fsyncdir(cx, node, handle, scope)),
            Request::Create(ref args) => made_and_opened(out, fs.create(cx, node, args)),
            Request::Tmpfile(ref args) => made_and_opened(out, fs.tmpfile(cx, node, args)),
            Request::Mkdir(ref args) => entry(out, fs.mkdir(cx, node, args)),
            Request::Mknod(ref args) => entry(out, fs.mknod(cx, node, args)),
            Request::Symlink { name, target } => entry(out, fs.symlink(cx, node, name, target)),
            Request::Link {
                node: old,
                new_name,
            } => entry(out, fs.link(cx, old, node, new_name)),
            Request::Unlink { name } => done(fs.unlink(cx, node, name)),
            Request::Rmdir { name } => done(fs.rmdir(cx, node, name)),
            Request::Rename(ref args) => done(fs.rename(cx, node, args)),
            Request::Getlk(ref args) => put(out, &reply::lock(&fs.getlk(cx, node, args)?)),
            Request::Setlk(ref args) => done(fs.setlk(cx, node, args)),
            Request::Fallocate(ref args) => done(fs.fallocate(cx, node, args)),
            Request::Lseek {
                handle,
                offset_bytes,
                whence,
            } => self.lseek(handle, offset_bytes, whence, out),
            Request::CopyFileRange {
                ref args,
                wide: true,
            } => self.copy_wide(args, out),
            Request::CopyFileRange {
                ref args,
                wide: false,
            } => self.copy_narrow(args, out),
            Request::Syncfs => done(fs.syncfs(cx, node)),
            Request::Poll { handle, events, .. } => self.poll(handle, events, out),
            Request::Bmap {
                block,
                block_size_bytes,
            } => self.bmap(block, block_size_bytes, out),
            Request::Ioctl(ref args) => self.ioctl(args, out),
            Request::Setupmapping | Request::Removemapping => Err(Errno::NOSYS),
        };
        bytes.map(Answer::Bytes)
    }

    fn forget(&self, lookups: u64) -> Result<Answer> {
        self.fs.forget(self.node, lookups);
        Ok(Answer::Nothing)
    }

    fn forget_all(&self, list: ForgetList<'_>) -> Result<Answer> {
        list.for_each(|forget| self.fs.forget(forget.node, forget.lookups));
        Ok(Answer::Nothing)
    }
}

fn no_room(bytes: usize) -> Errno {
    tracing::error!(bytes, "no room for replies");
    Errno::IO
}

/// An answer without data.
fn done(result: Result<()>) -> Result<usize> {
    result.map(|()| 0)
}

fn entry(out: &mut [u8], result: Result<Entry>) -> Result<usize> {
    put(out, &reply::entry(&result?))
}

fn attributes(out: &mut [u8], result: Result<AttrReply>) -> Result<usize> {
    put(out, &reply::attributes(&result?))
}

fn opened(out: &mut [u8], result: Result<OpenReply>) -> Result<usize> {
    put(out, &open_out(&result?))
}

fn made_and_opened(out: &mut [u8], result: Result<(Entry, OpenReply)>) -> Result<usize> {
    let (entry, open) = result?;
    let len = put(out, &reply::entry(&entry))?;
    let rest = out.get_mut(len..).ok_or(Errno::IO)?;
    Ok(len + put(rest, &open_out(&open))?)
}

/// A passthrough reply without a backing file goes out as it is: the kernel then fails the open
/// with EIO and releases the handle, which an error reply would leak.
fn open_out(open: &OpenReply) -> abi::OpenOut {
    if open.backing.is_none() && open.flags.contains(OpenFlags::PASSTHROUGH) {
        let handle = open.handle.0;
        tracing::error!(handle, "passthrough without a backing file");
    }
    reply::open(open)
}

/// Puts a structure at the start of `out`.
pub(super) fn put<T: IntoBytes + Immutable>(out: &mut [u8], reply: &T) -> Result<usize> {
    reply.write_to_prefix(out).map_err(|_| Errno::IO)?;
    Ok(size_of::<T>())
}

/// At most `size` bytes of `out`, for answers that may be shorter than asked for.
pub(super) fn at_most(out: &mut [u8], size: u32) -> &mut [u8] {
    let len = out.len().min(size as usize);
    out.get_mut(..len).unwrap_or_default()
}

/// Passes a length the filesystem returned; EIO for one beyond what it was given, which would
/// send the caller bytes nobody wrote.
pub(super) fn within(len: usize, max: usize) -> Result<usize> {
    if len > max {
        tracing::error!(len, max, "the filesystem claims more than it was given");
        return Err(Errno::IO);
    }
    Ok(len)
}
