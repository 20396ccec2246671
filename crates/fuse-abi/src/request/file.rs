//! Requests that open a file or go through an open one.

use super::Request;
use crate::kernel;
use crate::message::{DecodeError, Message};
use crate::types::*;

type Result<T> = std::result::Result<T, DecodeError>;

pub(super) fn open<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::OpenIn { flags, open_flags }, _) = message.argument()?;
    Ok(Request::Open(Open {
        flags: flags.cast_signed() & !(libc::O_CREAT | libc::O_EXCL),
        kill_suidgid: open_flags & kernel::OPEN_KILL_SUIDGID != 0,
    }))
}

pub(super) fn opendir<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::OpenIn { flags, .. }, _) = message.argument()?;
    Ok(Request::Opendir {
        flags: flags.cast_signed(),
    })
}

pub(super) fn read<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::ReadIn>()?;
    let owned = head.read_flags & kernel::READ_LOCKOWNER != 0;
    let args = Read {
        handle: Handle(head.fh),
        offset_bytes: head.offset,
        flags: head.flags.cast_signed(),
        lock_owner: owned.then_some(LockOwner(head.lock_owner)),
    };
    Ok(Request::Read {
        args,
        size_bytes: head.size,
    })
}

pub(super) fn write<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, mut rest) = message.argument::<kernel::WriteIn>()?;
    let has = |flag| head.write_flags & flag != 0;
    Ok(Request::Write(Write {
        handle: Handle(head.fh),
        offset_bytes: head.offset,
        data: rest.bytes(head.size as usize)?,
        flags: head.flags.cast_signed(),
        from_cache: has(kernel::WRITE_CACHE),
        kill_suidgid: has(kernel::WRITE_KILL_SUIDGID),
        lock_owner: has(kernel::WRITE_LOCKOWNER).then_some(LockOwner(head.lock_owner)),
    }))
}

pub(super) fn flush<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::FlushIn>()?;
    Ok(Request::Flush {
        handle: Handle(head.fh),
        owner: LockOwner(head.lock_owner),
    })
}

pub(super) fn release(message: &Message<'_>) -> Result<Release> {
    let (head, _) = message.argument::<kernel::ReleaseIn>()?;
    let has = |flag| head.release_flags & flag != 0;
    Ok(Release {
        handle: Handle(head.fh),
        flags: head.flags.cast_signed(),
        flock_owner: has(kernel::RELEASE_FLOCK_UNLOCK).then_some(LockOwner(head.lock_owner)),
        flush: has(kernel::RELEASE_FLUSH),
    })
}

pub(super) fn fsync(message: &Message<'_>) -> Result<(Handle, SyncScope)> {
    let (head, _) = message.argument::<kernel::FsyncIn>()?;
    let scope = match head.fsync_flags & kernel::FSYNC_FDATASYNC {
        0 => SyncScope::All,
        _ => SyncScope::DataOnly,
    };
    Ok((Handle(head.fh), scope))
}

/// Handle, offset and size of READDIR and READDIRPLUS, which share READ's structure.
pub(super) fn listing(message: &Message<'_>) -> Result<(Handle, u64, u32)> {
    let (head, _) = message.argument::<kernel::ReadIn>()?;
    Ok((Handle(head.fh), head.offset, head.size))
}

pub(super) fn fallocate<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::FallocateIn>()?;
    Ok(Request::Fallocate(Fallocate {
        handle: Handle(head.fh),
        offset_bytes: head.offset,
        len_bytes: head.length,
        mode: head.mode,
    }))
}

pub(super) fn lseek<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::LseekIn>()?;
    Ok(Request::Lseek {
        handle: Handle(head.fh),
        offset_bytes: head.offset,
        whence: head.whence,
    })
}

pub(super) fn copy_file_range<'a>(message: &Message<'a>, wide: bool) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::CopyFileRangeIn>()?;
    let args = CopyFileRange {
        handle_in: Handle(head.fh_in),
        offset_in_bytes: head.off_in,
        node_out: NodeId(head.nodeid_out),
        handle_out: Handle(head.fh_out),
        offset_out_bytes: head.off_out,
        len_bytes: head.len,
        flags: head.flags,
    };
    Ok(Request::CopyFileRange { args, wide })
}
