//! What somebody wants of the locks, in the words of the kernel's client, of the table and of a
//! branch.

use strandfs_fuse::{Context, Lock, LockKind, LockOwner, LockRequest};

use crate::base::sys::RangeLock;
use crate::state::lock_table::{LockMode, Span};
use crate::state::range_locks::tables::began;

/// Which of the two sorts of locks, which know nothing of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// `fcntl(2)`: of a process, or of an open file description.
    Range,
    /// `flock(2)`.
    Whole,
}

/// What somebody wants.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Who.
    pub owner: LockOwner,
    /// Of which sort.
    pub sort: Sort,
    /// Which bytes.
    pub span: Span,
    /// How; `None` to unlock.
    pub kind: Option<LockMode>,
    /// The process.
    pub pid: u32,
    /// The user.
    pub uid: u32,
    /// The open file it locks through, by address. A lock of an open file description
    /// (`F_OFD_SETLK`) goes with the last use of the one it was taken through; the locks of a
    /// process go at its first close, which is reported or, failing that, at the same time.
    pub through: usize,
    /// The process itself is the owner, and locks through a handle whose closes are not reported:
    /// when it began.
    pub unseen_since: Option<u64>,
    /// The closes of that open file are not reported.
    pub untold: bool,
    /// The open file description is the owner, for certain.
    pub of_description: bool,
}

impl Asked {
    /// What a request asks for, through the open file at this address.
    pub fn new(
        cx: &Context<'_>,
        args: &LockRequest,
        (through, untold): (usize, bool),
        unseen: bool,
    ) -> Asked {
        // It waits for the answer, so it is there; where `/proc` does not show it, its number is one
        // of another pid namespace, and says nothing of its death.
        let since = unseen.then(|| began(args.lock.pid).ok().flatten());
        let sort = if args.flock { Sort::Whole } else { Sort::Range };
        Asked {
            owner: match sort {
                Sort::Whole => flock_owner(through),
                Sort::Range => args.owner,
            },
            sort,
            span: match sort {
                Sort::Whole => Span::ALL,
                Sort::Range => span_of(&args.lock),
            },
            kind: kind_of(args.lock.kind),
            pid: args.lock.pid,
            uid: cx.uid,
            through,
            unseen_since: since.flatten(),
            untold,
            of_description: false,
        }
    }
}

/// Who has the `flock` that is held through the open file at this address. The kernel's own word for
/// it is made of an address of its own, which the next open file may have while the close of the one
/// before is still being told.
pub(super) fn flock_owner(through: usize) -> LockOwner {
    LockOwner(through as u64)
}

/// The bytes of a lock.
pub(crate) fn span_of(lock: &Lock) -> Span {
    let start = lock.start_bytes.min(Span::ALL.end);
    // An end beyond the largest offset means "to the end of the file".
    let end = lock.end_bytes.min(Span::ALL.end).max(start);
    Span { start, end }
}

/// How it locks; `None` to unlock.
pub(crate) fn kind_of(kind: LockKind) -> Option<LockMode> {
    match kind {
        LockKind::Shared => Some(LockMode::Shared),
        LockKind::Exclusive => Some(LockMode::Exclusive),
        LockKind::Unlock => None,
    }
}

/// A lock as the branch wants it.
pub(crate) fn to_range(span: Span, kind: Option<LockMode>) -> RangeLock {
    let kind = match kind {
        Some(LockMode::Shared) => libc::F_RDLCK,
        Some(LockMode::Exclusive) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    };
    let len = match span.end == Span::ALL.end {
        true => 0,
        false => span.end - span.start + 1,
    };
    RangeLock {
        kind,
        start_bytes: span.start.cast_signed(),
        len_bytes: len.cast_signed(),
    }
}

/// A lock as the kernel's client wants it.
pub(crate) fn from_range(range: RangeLock, pid: u32) -> Lock {
    let kind = match range.kind {
        kind if kind == libc::F_RDLCK => LockKind::Shared,
        kind if kind == libc::F_WRLCK => LockKind::Exclusive,
        _ => LockKind::Unlock,
    };
    let start = range.start_bytes.unsigned_abs();
    let end = match range.len_bytes {
        0 => i64::MAX as u64,
        len => start.saturating_add(len.unsigned_abs()).saturating_sub(1),
    };
    Lock {
        kind,
        start_bytes: start,
        end_bytes: end,
        pid,
    }
}
