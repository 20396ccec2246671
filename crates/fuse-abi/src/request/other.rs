//! Locks, device control, readiness, and what the session answers itself.

use super::Request;
use crate::kernel;
use crate::message::{DecodeError, Message};
use crate::types::*;

type Result<T> = std::result::Result<T, DecodeError>;

pub(super) fn lock(message: &Message<'_>, wait: bool) -> Result<LockRequest> {
    let (head, _) = message.argument::<kernel::LkIn>()?;
    let kernel::FileLock {
        start,
        end,
        kind,
        pid,
    } = head.lk;
    let refused = DecodeError::Lock { kind, start, end };
    if start > end || end > i64::MAX.cast_unsigned() {
        return Err(refused);
    }
    let kind = match kind.cast_signed() {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(refused),
    };
    Ok(LockRequest {
        handle: Handle(head.fh),
        owner: LockOwner(head.owner),
        lock: Lock {
            kind,
            start_bytes: start,
            end_bytes: end,
            pid,
        },
        flock: head.lk_flags & kernel::LK_FLOCK != 0,
        wait,
    })
}

pub(super) fn bmap<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::BmapIn>()?;
    Ok(Request::Bmap {
        block: head.block,
        block_size_bytes: head.blocksize,
    })
}

/// The flags for 32-bit callers say how to read the data, which is the filesystem's business;
/// only the unrestricted mode changes the protocol.
pub(super) fn ioctl<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, mut rest) = message.argument::<kernel::IoctlIn>()?;
    if head.flags & kernel::IOCTL_UNRESTRICTED != 0 {
        return Err(DecodeError::UnrestrictedIoctl);
    }
    Ok(Request::Ioctl(Ioctl {
        handle: Handle(head.fh),
        command: head.cmd,
        argument: head.arg,
        input: rest.bytes(head.in_size as usize)?,
        directory: head.flags & kernel::IOCTL_DIR != 0,
        words_of_32_bits: head.flags & kernel::IOCTL_32BIT != 0,
        output_max_bytes: head.out_size,
    }))
}

pub(super) fn poll<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, _) = message.argument::<kernel::PollIn>()?;
    Ok(Request::Poll {
        handle: Handle(head.fh),
        waiter: head.kh,
        notify: head.flags & kernel::POLL_SCHEDULE_NOTIFY != 0,
        events: head.events,
    })
}

pub(super) fn interrupt<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::InterruptIn { unique }, _) = message.argument()?;
    Ok(Request::Interrupt { unique })
}

pub(super) fn notify_reply<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, mut rest) = message.notify_argument::<kernel::NotifyRetrieveIn>()?;
    Ok(Request::NotifyReply {
        offset_bytes: head.offset,
        data: rest.bytes(head.size as usize)?,
    })
}
