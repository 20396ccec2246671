//! Requests about attributes, plain and extended.

use super::{Dialect, Request};
use crate::kernel::{self, InitFlags, SetattrValid};
use crate::message::{DecodeError, Message};
use crate::types::*;

type Result<T> = std::result::Result<T, DecodeError>;

/// Nanoseconds a time stays below.
const SECOND_NS: u32 = 1_000_000_000;

pub(super) fn getattr<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::GetattrIn>()?;
    Ok(Request::Getattr {
        handle: handle(head.getattr_flags, head.fh),
    })
}

pub(super) fn statx<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::StatxIn>()?;
    Ok(Request::Statx {
        handle: handle(head.getattr_flags, head.fh),
        mask: head.sx_mask,
        sync_flags: head.sx_flags,
    })
}

fn handle(getattr_flags: u32, fh: u64) -> Option<Handle> {
    (getattr_flags & kernel::GETATTR_FH != 0).then_some(Handle(fh))
}

pub(super) fn setattr<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::SetattrIn>()?;
    let valid = SetattrValid::from_bits_retain(head.valid);
    let has = |flag| valid.contains(flag);
    Ok(Request::Setattr(SetAttr {
        mode: has(SetattrValid::MODE).then_some(head.mode),
        uid: has(SetattrValid::UID).then_some(head.uid),
        gid: has(SetattrValid::GID).then_some(head.gid),
        size_bytes: has(SetattrValid::SIZE).then_some(head.size),
        atime: set_time(
            has(SetattrValid::ATIME),
            has(SetattrValid::ATIME_NOW),
            head.atime,
            head.atimensec,
        )?,
        mtime: set_time(
            has(SetattrValid::MTIME),
            has(SetattrValid::MTIME_NOW),
            head.mtime,
            head.mtimensec,
        )?,
        ctime: has(SetattrValid::CTIME)
            .then(|| timestamp(head.ctime, head.ctimensec))
            .transpose()?,
        handle: has(SetattrValid::FH).then_some(Handle(head.fh)),
        lock_owner: has(SetattrValid::LOCKOWNER).then_some(LockOwner(head.lock_owner)),
        kill_suidgid: has(SetattrValid::KILL_SUIDGID),
    }))
}

/// With `now` the time sent beside it does not count and is not looked at.
fn set_time(set: bool, now: bool, seconds: u64, nanoseconds: u32) -> Result<Option<SetTime>> {
    if now {
        return Ok(Some(SetTime::Now));
    }
    set.then(|| timestamp(seconds, nanoseconds).map(SetTime::At))
        .transpose()
}

fn timestamp(seconds: u64, nanoseconds: u32) -> Result<Timestamp> {
    if nanoseconds >= SECOND_NS {
        return Err(DecodeError::Nanoseconds(nanoseconds));
    }
    Ok(Timestamp {
        seconds: seconds.cast_signed(),
        nanoseconds,
    })
}

pub(super) fn setxattr<'a>(message: &Message<'a>, dialect: &Dialect) -> Result<Request<'a>> {
    let (size, flags, setxattr_flags, mut rest) = if dialect.flags.contains(InitFlags::SETXATTR_EXT)
    {
        let (head, rest) = message.argument::<kernel::SetxattrIn>()?;
        (head.size, head.flags, head.setxattr_flags, rest)
    } else {
        let (head, rest) = message.argument::<kernel::SetxattrInCompat>()?;
        (head.size, head.flags, 0, rest)
    };
    Ok(Request::Setxattr(SetXattr {
        name: rest.nonempty()?,
        value: rest.bytes(size as usize)?,
        flags: flags.cast_signed(),
        kill_sgid: setxattr_flags & kernel::SETXATTR_ACL_KILL_SGID != 0,
    }))
}

pub(super) fn getxattr<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::GetxattrIn { size, .. }, mut rest) = message.argument()?;
    Ok(Request::Getxattr {
        name: rest.nonempty()?,
        size_bytes: size,
    })
}

pub(super) fn listxattr<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::GetxattrIn { size, .. }, _) = message.argument()?;
    Ok(Request::Listxattr { size_bytes: size })
}

pub(super) fn access<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::AccessIn { mask, .. }, _) = message.argument()?;
    Ok(Request::Access { mask })
}
