//! fanotify: accesses to files of a branch that wait until somebody lets them go on (Linux 6.14).
//!
//! An open file can be held if its inode was marked while it was opened; that ability lasts as long as
//! the open file. Its accesses wait while the inode is marked so.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::base::sys::Result;
use crate::base::sys::raw::last_errno;

/// `FAN_PRE_ACCESS`; not in `libc`.
const FAN_PRE_ACCESS: u64 = 0x0010_0000;
/// `FAN_EVENT_INFO_TYPE_RANGE`.
const RANGE: u8 = 6;
/// Head and range of one event: the buffer has room for no second one, whose descriptor would be
/// opened, too.
const EVENT_BYTES: usize = HEAD_BYTES + RANGE_BYTES;
const HEAD_BYTES: usize = std::mem::size_of::<libc::fanotify_event_metadata>();
const RANGE_BYTES: usize = 24;

/// A new group of accesses that wait, and end to wait when its last descriptor is closed. Reading it
/// never blocks.
///
/// # Errors
/// EINVAL on a kernel without such groups, EPERM without CAP_SYS_ADMIN, EMFILE.
pub fn hold_group() -> Result<OwnedFd> {
    let flags = libc::FAN_CLASS_PRE_CONTENT
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_UNLIMITED_QUEUE
        | libc::FAN_UNLIMITED_MARKS
        | libc::FAN_REPORT_TID;
    // A file that another program has a lease on is opened at once or not at all.
    let event_flags =
        libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NOATIME | libc::O_NONBLOCK;
    // SAFETY: no pointers are passed.
    let result = unsafe { libc::fanotify_init(flags, event_flags.cast_unsigned()) };
    if result < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel just returned this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// A group like [`hold_group`]'s in which accesses are to wait, with a descriptor of a higher number than any other
/// group has.
///
/// When the process is killed with accesses in it, its descriptors are let go one after the other, the highest number
/// first (`fput` leaves that to task works, which run last in, first out: kernel/task_work.c). A group that has a mark
/// on what is accessed is not let go while the access waits (`user_waits` in fs/notify/mark.c), and the access
/// waits until this one is let go: were it not the first, the process could never end, nor would anybody who waits.
///
/// # Errors
/// As of [`hold_group`].
pub fn arming_group() -> Result<OwnedFd> {
    /// Tables of descriptors are as long as the highest number: there are systems that allow a thousand million.
    const NUMBERS: u64 = 1 << 16;
    let group = hold_group()?;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let numbers = limit.unwrap_or(NUMBERS).min(NUMBERS);
    let highest_eighth = numbers - numbers / 8;
    rustix::io::fcntl_dupfd_cloexec(&group, highest_eighth as RawFd)
}

/// Marks the inode of `file` (not `O_PATH`): what is opened from now on can be held. Nothing waits for the
/// sake of this mark; each open is told, see [`next_opened`]. The kernel forgets a mark when it drops the
/// inode from memory.
///
/// # Errors
/// EINVAL on a kernel without `FAN_PRE_ACCESS`, EOPNOTSUPP where the filesystem does not let its files
/// be held, ENOMEM.
pub fn mark_able(group: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<()> {
    // A mark that ignores the event is a mark all the same.
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_EVICTABLE;
    let ignore = flags | libc::FAN_MARK_IGNORE_SURV;
    change_mark(group, ignore, FAN_PRE_ACCESS, file.as_raw_fd())?;
    change_mark(group, flags, libc::FAN_OPEN, file.as_raw_fd())
}

/// What is opened from now on cannot be held for the sake of [`mark_able`].
///
/// # Errors
/// ENOENT if there is no mark.
pub fn unmark_able(group: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<()> {
    let flags = libc::FAN_MARK_REMOVE | libc::FAN_MARK_IGNORE_SURV;
    change_mark(group, flags, FAN_PRE_ACCESS, file.as_raw_fd())
}

/// Has all accesses to the inode of `file` wait that can.
///
/// # Errors
/// As of [`mark_able`].
pub fn mark_armed(group: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<()> {
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_EVICTABLE;
    change_mark(group, flags, FAN_PRE_ACCESS, file.as_raw_fd())
}

/// Takes the mark of [`mark_armed`] away.
///
/// # Errors
/// ENOENT if there is none.
pub fn unmark_armed(group: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<()> {
    let flags = libc::FAN_MARK_REMOVE;
    change_mark(group, flags, FAN_PRE_ACCESS, file.as_raw_fd())
}

/// Takes all marks of the group away. What waits goes on waiting.
///
/// # Errors
/// Those of `fanotify_mark(2)`.
pub fn hold_unmark_all(group: BorrowedFd<'_>) -> Result<()> {
    change_mark(group, libc::FAN_MARK_FLUSH, 0, libc::AT_FDCWD)
}

fn change_mark(group: BorrowedFd<'_>, flags: libc::c_uint, mask: u64, file: RawFd) -> Result<()> {
    // SAFETY: without a path the call is about `file` itself.
    let result =
        unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, file, std::ptr::null()) };
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// An access that waits.
#[derive(Debug)]
pub struct HeldAccess {
    /// The file, open for reading. Its number is how the kernel knows the access: it must be open
    /// until [`let_go`].
    pub file: OwnedFd,
    /// The thread that waits, 0 if that is out of sight.
    pub thread: i32,
    /// Where it begins, and how long it is; in whole pages. None if the kernel does not say.
    pub range: Option<(u64, u64)>,
}

/// The next access that waits, if there is one.
///
/// # Errors
/// EMFILE: the access was refused; others of `read(2)`.
pub fn next_access(group: BorrowedFd<'_>) -> Result<Option<HeldAccess>> {
    let mut buffer = [0_u8; EVENT_BYTES];
    let read = match rustix::io::read(group, &mut buffer) {
        Ok(0) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        other => other?,
    };
    let event = buffer.get(..read).unwrap_or_default();
    let (Some(number), Some(thread)) = (i32_at(event, 16), i32_at(event, 20)) else {
        return Err(rustix::io::Errno::BADMSG);
    };
    if number < 0 {
        // Nothing that could be answered: the queue has overflown.
        return Ok(None);
    }
    // SAFETY: the kernel just opened this descriptor for the event, and nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    let info = event.get(HEAD_BYTES..).unwrap_or_default();
    let range = match info.first() {
        Some(&RANGE) => u64_at(info, 8).zip(u64_at(info, 16)),
        _ => None,
    };
    Ok(Some(HeldAccess {
        file,
        thread,
        range,
    }))
}

/// The next file that was opened under the mark of [`mark_able`], if there is one, and the thread that did.
///
/// # Errors
/// Those of `read(2)`; EMFILE.
pub fn next_opened(group: BorrowedFd<'_>) -> Result<Option<(OwnedFd, i32)>> {
    let mut buffer = [0_u8; HEAD_BYTES];
    match rustix::io::read(group, &mut buffer) {
        Ok(0) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
        other => other?,
    };
    let (Some(number), Some(thread)) = (i32_at(&buffer, 16), i32_at(&buffer, 20)) else {
        return Ok(None);
    };
    if number < 0 {
        return Ok(None);
    }
    // SAFETY: the kernel just opened this descriptor for the event, and nothing else owns it.
    Ok(Some((unsafe { OwnedFd::from_raw_fd(number) }, thread)))
}

/// Lets an access go on; its descriptor is to be closed then. Of one that was killed meanwhile the
/// kernel knows nothing more.
pub fn let_go(group: BorrowedFd<'_>, file: BorrowedFd<'_>) {
    let mut response = [0_u8; 8];
    response[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
    response[4..].copy_from_slice(&libc::FAN_ALLOW.to_ne_bytes());
    // ENOENT says that it does not wait any more, which is what is wanted.
    let _ = rustix::io::write(group, &response);
}

/// Whether a thread is one of this process.
pub fn is_own_thread(thread: i32) -> bool {
    if thread <= 0 {
        return false;
    }
    // SAFETY: signal 0 is not sent; no pointers are passed.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, 0) };
    result == 0
}

/// Whether there is a thread of this number at all.
pub fn thread_lives(thread: i32) -> bool {
    if thread <= 0 {
        return true;
    }
    // SAFETY: signal 0 is not sent; no pointers are passed.
    let result = unsafe { libc::syscall(libc::SYS_tkill, thread, 0) };
    result == 0 || last_errno() != rustix::io::Errno::SRCH
}

/// Whether a thread waits in the kernel for what a signal does not end, a disk as a rule.
pub fn thread_is_blocked(thread: i32) -> bool {
    // Of the thread by itself: the other file is as long to make as its process has threads.
    let stat = std::fs::read(format!("/proc/{thread}/task/{thread}/stat"));
    stat.is_ok_and(|stat| says_blocked(&stat))
}

fn says_blocked(stat: &[u8]) -> bool {
    // Behind the name, which may contain anything.
    let after = stat.rsplit(|byte| *byte == b')').next();
    after.is_some_and(|rest| rest.starts_with(b" D"))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(i32::from_ne_bytes(*field))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*field))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn own_threads_are_told_from_others_and_the_dead_from_the_living() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(is_own_thread(own) && thread_lives(own));
        assert!(!is_own_thread(1) && thread_lives(1));
        assert!(!is_own_thread(0) && thread_lives(0));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id().cast_signed();
        child.wait().unwrap();
        assert!(!thread_lives(id));
        assert!(!thread_is_blocked(id) && !thread_is_blocked(own));
    }

    #[test]
    fn a_thread_may_have_any_name_and_be_blocked() {
        assert!(says_blocked(b"12 (dd) D 1 12"));
        assert!(!says_blocked(b"12 (dd) R 1 12") && !says_blocked(b""));
        assert!(!says_blocked(b"12 (a) D (b) S 1 12") && says_blocked(b"12 (\xff) S) D 1 12"));
    }

    /// On the disk of the temporary directory, where the kernel and that can.
    #[test]
    fn a_file_opened_under_a_mark_waits_when_it_is_armed_and_no_other() {
        let Ok(group) = hold_group() else { return };
        let file = tempfile::NamedTempFile::new().unwrap();
        let plain = file.reopen().unwrap();
        if mark_able(group.as_fd(), plain.as_fd()).is_err() {
            return;
        }
        let able = std::fs::File::options().write(true).open(file.path());
        let able = able.unwrap();
        let (opened, thread) = next_opened(group.as_fd()).unwrap().unwrap();
        assert!(is_own_thread(thread));
        unmark_able(group.as_fd(), opened.as_fd()).unwrap();
        assert!(next_opened(group.as_fd()).unwrap().is_none());
        // What the file is opened under by then does not matter.
        std::fs::File::open(file.path()).unwrap();
        assert!(next_opened(group.as_fd()).unwrap().is_some());
        hold_unmark_all(group.as_fd()).unwrap();
        able.write_all_at(b"goes on", 0).unwrap();
        mark_armed(group.as_fd(), plain.as_fd()).unwrap();
        plain.read_at(&mut [0; 4], 0).unwrap();
        assert!(next_access(group.as_fd()).unwrap().is_none());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                able.write_all_at(b"waits", 5000).unwrap();
                rustix::thread::gettid().as_raw_nonzero().get()
            });
            let access = loop {
                match next_access(group.as_fd()).unwrap() {
                    Some(access) => break access,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(access.range, Some((4096, 4096)));
            assert!(is_own_thread(access.thread));
            assert!(!writer.is_finished());
            let_go(group.as_fd(), access.file.as_fd());
            assert_eq!(writer.join().unwrap(), access.thread);
        });
        unmark_armed(group.as_fd(), plain.as_fd()).unwrap();
        able.write_all_at(b"goes on", 0).unwrap();
    }
}
