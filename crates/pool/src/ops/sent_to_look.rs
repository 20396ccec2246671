//! Threads that came for what is gone, and were told to look again (ESTALE).
//!
//! The kernel does that once for each system call, and looks up every name anew. What it finds then may be
//! replaced, too, before it comes to open that: others rename over a name all the time. So what such a thread
//! looks up is held for it (`directory/removed_files.rs`), and no program sees ESTALE.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Context, Entry, FileKind, NodeId};

use crate::base::error::{Error, Result};
use crate::base::rank::{self, Mutex};
use crate::base::sys;
use crate::directory::{forget, locate, lookup, removed_files};
use crate::ops::{Ops, account};
use crate::state::identity::kind_of_mode;

/// A name that changes hands this often while it is looked at is given up.
const TRIES: usize = 64;

/// The threads that were told to look again.
#[derive(Default)]
pub(crate) struct SentToLook {
    since_ms: Mutex<HashMap<u32, u64>, { rank::SENT_TO_LOOK }>,
    /// When the last one was, so that as a rule nobody has to look for a thread.
    last_ms: AtomicU64,
}

impl SentToLook {
    /// By then the kernel has come back, or has found the file.
    const AWAITED_MS: u64 = 10_000;
    /// So many threads at once are no accident: the oldest are forgotten, and looked at as new.
    const THREADS_MAX: usize = 4096;

    /// Notes a thread; one whose number is not known is always new.
    pub(super) fn send(&self, thread: u32) {
        if thread == 0 {
            return;
        }
        let now_ms = sys::mono_coarse_ms();
        let mut since_ms = self.since_ms.lock();
        if since_ms.len() >= SentToLook::THREADS_MAX {
            since_ms.retain(|_, since| now_ms.saturating_sub(*since) < SentToLook::AWAITED_MS);
            // Else whoever has that many threads would have all others see ESTALE.
            let oldest = since_ms.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(thread, _)| *thread)
                && since_ms.len() >= SentToLook::THREADS_MAX
            {
                since_ms.remove(&oldest);
            }
        }
        since_ms.insert(thread, now_ms);
        self.last_ms.store(now_ms, Ordering::Release);
    }

    /// Whether a thread is back from that, or on its way.
    fn is_awaited(&self, thread: u32) -> bool {
        self.are_awaited() && self.since_ms.lock().get(&thread).is_some_and(is_recent)
    }

    /// Whether a thread is back from that; told once.
    pub(super) fn was_sent(&self, thread: u32) -> bool {
        self.are_awaited()
            && self
                .since_ms
                .lock()
                .remove(&thread)
                .as_ref()
                .is_some_and(is_recent)
    }

    fn are_awaited(&self) -> bool {
        let last_ms = self.last_ms.load(Ordering::Acquire);
        last_ms != 0 && is_recent(&last_ms)
    }
}

fn is_recent(since_ms: &u64) -> bool {
    sys::mono_coarse_ms().saturating_sub(*since_ms) < SentToLook::AWAITED_MS
}

/// Sends a thread to look again whose file is gone. A question of its attributes may come between two looks.
///
/// # Errors
/// That of the request; the first time ESTALE is no failure that anybody has to be told of, unless the kernel,
/// which was given a descriptor, has nothing to look for.
pub(crate) fn unless_gone<T>(pool: &Ops, cx: &Context<'_>, asked: Result<T>) -> Result<T> {
    match asked {
        Err(error) if error.errno == Errno::STALE && !error.took_effect => {
            if cx.pid == 0 || pool.sent_to_look.is_awaited(cx.pid) || comes_by_descriptor(cx) {
                return Err(error);
            }
            pool.sent_to_look.send(cx.pid);
            Err(Error::expected(Errno::STALE))
        }
        other => other,
    }
}

/// Whether the caller has named the file by a descriptor, as far as its system call tells. Of that the request
/// says nothing where nothing is open (`O_PATH`).
fn comes_by_descriptor(cx: &Context<'_>) -> bool {
    // Waits for whoever has the process become another program.
    cx.may_block();
    let call = strandfs_fuse::read_lossy(format!("/proc/{}/syscall", cx.pid));
    call.is_ok_and(|call| is_by_descriptor(&call))
}

/// fchmodat2(2), which has one number on all architectures; the library does not know it on each of them.
const FCHMODAT2: libc::c_long = 452;

/// Of a line of `/proc/PID/syscall`: `262 0x5 0x7ffd... 0x7ffd... 0x1000 0x0 0x0 0x7ffd... 0x7f...`.
fn is_by_descriptor(call: &str) -> bool {
    let mut fields = call.split_whitespace();
    let number = fields.next().and_then(|number| number.parse().ok());
    let arguments: SmallVec<[u64; 6]> = fields
        .map_while(|field| u64::from_str_radix(field.strip_prefix("0x")?, 16).ok())
        .collect();
    let argument = |at: usize| arguments.get(at).copied().unwrap_or_default();
    let has_no_path = |flags: u64| flags & libc::AT_EMPTY_PATH as u64 != 0;
    match number.unwrap_or(-1) {
        libc::SYS_fstat | libc::SYS_ftruncate | libc::SYS_fchmod | libc::SYS_fchown => true,
        libc::SYS_newfstatat | FCHMODAT2 => has_no_path(argument(3)),
        libc::SYS_statx => has_no_path(argument(2)),
        libc::SYS_fchownat => has_no_path(argument(4)),
        libc::SYS_utimensat => argument(1) == 0 || has_no_path(argument(3)),
        _ => false,
    }
}

/// The same of what the thread came for: it looks no more.
///
/// # Errors
/// The same.
pub(crate) fn unless_gone_at_last<T>(pool: &Ops, cx: &Context<'_>, done: Result<T>) -> Result<T> {
    let outcome = unless_gone(pool, cx, done);
    let looks_again =
        matches!(&outcome, Err(error) if error.expected && error.errno == Errno::STALE);
    if !looks_again {
        pool.sent_to_look.was_sent(cx.pid);
    }
    outcome
}

/// As [`lookup::lookup`]; what a thread finds that was sent to look again is held for it.
///
/// # Errors
/// The same.
pub(crate) fn look_up(pool: &Ops, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
    if !pool.sent_to_look.is_awaited(cx.pid) {
        return lookup::lookup(pool, parent, name);
    }
    for _ in 0..TRIES {
        let entry = lookup::lookup(pool, parent, name)?;
        match hold(pool, cx, &entry) {
            // Replaced meanwhile.
            Err(error) if error.errno == Errno::STALE => forget::take_back(pool, &entry),
            // What cannot be held is done without.
            _ => return Ok(entry),
        }
    }
    lookup::lookup(pool, parent, name)
}

fn hold(pool: &Ops, cx: &Context<'_>, entry: &Entry) -> Result<()> {
    if entry.node == NodeId(0) || kind_of_mode(entry.attr.mode) != FileKind::Regular {
        return Ok(());
    }
    let node = pool.node(entry.node)?;
    let found = locate::locate_shown(pool, &node)?;
    removed_files::hold_awaited(pool, &node, found.fd, account::user(cx));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_once_when_it_is_back_however_many_others_were_sent() {
        let sent = SentToLook::default();
        assert!(!sent.is_awaited(1));
        let others = u32::try_from(SentToLook::THREADS_MAX).unwrap() + 10;
        (1..=others).for_each(|thread| sent.send(thread));
        sent.send(others + 1);
        assert!(sent.is_awaited(others + 1) && sent.is_awaited(others + 1));
        assert!(sent.was_sent(others + 1) && !sent.was_sent(others + 1));
        assert!(!sent.is_awaited(others + 1));
        assert!(sent.since_ms.lock().len() < SentToLook::THREADS_MAX);
        sent.send(0);
        assert!(!sent.was_sent(0));
    }

    #[test]
    fn a_call_tells_whether_the_file_was_named_by_a_descriptor() {
        const EMPTY: &str = "0x1000";
        let call = |number: libc::c_long, arguments: &str| {
            is_by_descriptor(&format!("{number} {arguments} 0x0 0x0 0x7ffd1 0x7f2\n"))
        };
        assert!(call(libc::SYS_fstat, "0x5 0x7ffd0"));
        assert!(call(
            libc::SYS_newfstatat,
            &format!("0x5 0x7f 0x7f {EMPTY}")
        ));
        assert!(!call(libc::SYS_newfstatat, "0xffffff9c 0x7f 0x7f 0x0"));
        assert!(call(libc::SYS_statx, &format!("0x5 0x7f {EMPTY} 0xfff")));
        assert!(!call(
            libc::SYS_statx,
            &format!("0xffffff9c 0x7f 0x0 {EMPTY}")
        ));
        assert!(call(libc::SYS_utimensat, "0x5 0x0 0x7f 0x0"));
        assert!(!call(libc::SYS_openat, &format!("0x5 0x0 0x0 {EMPTY}")));
        assert!(
            !is_by_descriptor("running\n")
                && !is_by_descriptor("-1 0x7f 0x7f\n")
                && !is_by_descriptor("")
        );
    }
}
