//! GETLK, SETLK, SETLKW and flock, taken on the branch file itself.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use strandfs_fuse::{Context, Lock, LockKind, LockRequest};

use crate::open_file::OpenFile;
use crate::pool::Pool;
use crate::range_locks::{from_range, to_range};
use crate::sys;

impl Pool {
    /// GETLK.
    pub(crate) fn do_getlk(&self, args: &LockRequest) -> sys::Result<Lock> {
        let opened = self.opened(args.handle)?;
        let file = self.lock_file(&opened, args)?;
        let free = Lock {
            kind: LockKind::Unlock,
            start_bytes: 0,
            end_bytes: 0,
            pid: 0,
        };
        let range = to_range(&args.lock);
        let mut held = sys::get_range_lock(file.as_fd(), range)?;
        if held.is_some() && self.drop_locks_of_the_dead(&opened, args) {
            held = sys::get_range_lock(file.as_fd(), range)?;
        }
        let Some((range, pid)) = held else {
            return Ok(free);
        };
        let pid = u32::try_from(pid).unwrap_or_else(|_| {
            // Held by an open file description: perhaps one of ours, whose process we know.
            let open = opened.node.open.lock();
            open.as_ref()
                .map_or(0, |state| state.locks.holder(args.owner, &args.lock))
        });
        Ok(from_range(range, pid))
    }

    /// SETLK, SETLKW and flock. Waiting ends with EINTR when the caller is interrupted.
    pub(crate) fn do_setlk(&self, cx: &Context<'_>, args: &LockRequest) -> sys::Result<()> {
        let opened = self.opened(args.handle)?;
        if args.flock {
            return set_flock(cx, &opened, args);
        }
        let range = to_range(&args.lock);
        let wait = args.wait && args.lock.kind != LockKind::Unlock;
        let unseen = opened.no_flush && is_lock_of_process(cx);
        loop {
            let held = opened.node.hold(cx);
            let file = self.lock_file(&opened, args)?;
            // Most locks are free: only one that is not lets another thread read on.
            let mut outcome = sys::set_range_lock(file.as_fd(), range, false);
            drop(held);
            if outcome == Err(Errno::AGAIN) && self.drop_locks_of_the_dead(&opened, args) {
                outcome = sys::set_range_lock(file.as_fd(), range, false);
            }
            if wait && outcome == Err(Errno::AGAIN) {
                cx.may_block();
                if cx.interrupted() {
                    return Err(Errno::INTR);
                }
                outcome = sys::set_range_lock(file.as_fd(), range, true);
            }
            let _held = opened.node.hold(cx);
            let mut open = opened.node.open.lock();
            let Some(state) = open.as_mut() else {
                return outcome;
            };
            // The file may have moved meanwhile, and its locks with it.
            if state.locks.is_of(args.owner, &file) || outcome == Err(Errno::INTR) {
                outcome?;
                state.locks.note(args.owner, &args.lock, unseen);
                return Ok(());
            }
        }
    }

    /// A process may end while a handle whose closes are not reported lives on in its children:
    /// POSIX ends its locks all the same. True if there were any.
    fn drop_locks_of_the_dead(&self, opened: &OpenFile, args: &LockRequest) -> bool {
        let mut open = opened.node.open.lock();
        open.as_mut()
            .is_some_and(|state| state.locks.drop_dead(args.owner))
    }

    fn lock_file(
        &self,
        opened: &Arc<OpenFile>,
        args: &LockRequest,
    ) -> sys::Result<Arc<std::os::fd::OwnedFd>> {
        let mut open = opened.node.open.lock();
        let state = open.as_mut().ok_or(Errno::BADF)?;
        let file = opened.file()?;
        state.locks.file_of(args.owner, opened.address(), &file)
    }
}

/// Whether the caller, who waits for the answer, asked for a lock of its process (`F_SETLK`) and not
/// of the open file description (`F_OFD_SETLK`), which the processes that inherit it keep. The
/// request does not tell, but the kernel shows the call; no if it does not.
fn is_lock_of_process(cx: &Context<'_>) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{}/syscall", cx.pid)).unwrap_or_default();
    let mut words = call.split_ascii_whitespace();
    let number = words.next().and_then(|word| word.parse().ok());
    // The descriptor comes first.
    let command = words.nth(1).and_then(|word| word.strip_prefix("0x"));
    let command = command.and_then(|digits| i32::from_str_radix(digits, 16).ok());
    number == Some(libc::SYS_fcntl) && matches!(command, Some(libc::F_SETLK | libc::F_SETLKW))
}

fn set_flock(cx: &Context<'_>, opened: &OpenFile, args: &LockRequest) -> sys::Result<()> {
    let operation = match args.lock.kind {
        LockKind::Shared => libc::LOCK_SH,
        LockKind::Exclusive => libc::LOCK_EX,
        LockKind::Unlock => libc::LOCK_UN,
    };
    loop {
        let held = opened.node.hold(cx);
        let file = opened.file()?;
        let mut outcome = sys::flock(file.as_fd(), operation | libc::LOCK_NB);
        drop(held);
        if args.wait && outcome == Err(Errno::AGAIN) {
            cx.may_block();
            if cx.interrupted() {
                return Err(Errno::INTR);
            }
            outcome = sys::flock(file.as_fd(), operation);
        }
        let _held = opened.node.hold(cx);
        // The file may have moved meanwhile, and its locks with it.
        if outcome == Err(Errno::INTR) || Arc::ptr_eq(&opened.file()?, &file) {
            return outcome;
        }
    }
}
