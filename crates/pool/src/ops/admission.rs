//! Whether a user gets one more open file, before anything is done for it.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use strandfs_fuse::Context;

use crate::base::error::{Error, Result};
use crate::base::shares::Share;
use crate::base::status::{Descriptors, UserShare, count};
use crate::base::sys;
use crate::directory::Directories;
use crate::directory::fds::ASKED_MAX;
use crate::ops::Ops;
use crate::state::open_files::Refused;

/// The user whom the kernel does not name.
pub(super) const UNNAMED: u32 = u32::MAX;
/// Whose files are not counted, as root's are not.
const UNCOUNTED: u32 = 0;
/// How many processes' directories the threads keep open, see [`Asked`].
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// One more open file for the caller.
///
/// # Errors
/// ENFILE: the caller's share of the pool's open files is used up, or nobody can have one now.
pub(crate) fn admit(pool: &Ops, cx: &Context<'_>) -> Result<Share> {
    let uid = match cx.uid {
        // To ask /proc costs a thirtieth of an open. Nor are these files held against those of whom
        // /proc says nothing either.
        UNNAMED if pool.files.has_plenty() => UNCOUNTED,
        UNNAMED => user_of(cx.pid, sys::mono_coarse_ms()),
        uid => uid,
    };
    match pool.files.admit(uid) {
        Ok(share) => Ok(share),
        Err(refused) => Err(refuse(pool, uid, refused)),
    }
}

fn refuse(pool: &Ops, uid: u32, refused: Refused) -> Error {
    if pool.refusal_told.again(sys::mono_coarse_ms()) {
        match refused {
            Refused::Share { has } => tracing::warn!(
                uid,
                open_files = has,
                "a user has the share of the pool's open files that one user may have: further \
                 opens fail with ENFILE; raise LimitNOFILE if the user needs more"
            ),
            Refused::NoRoom => tracing::error!(
                uid,
                "no file can be opened (ENFILE): the pool has as many open files as it may; \
                 raise LimitNOFILE"
            ),
        }
    }
    Error::expected(Errno::NFILE)
}

/// What the server has of descriptors, for `strandfs status`.
pub(crate) fn descriptors_status(pool: &Directories) -> Descriptors {
    let (here, away) = pool.files.counts();
    let budget = pool.files.budget();
    let largest = pool.files.largest_share();
    Descriptors {
        limit: count(budget.limit()),
        files: count(here),
        files_limit: count(budget.files()),
        files_in_other_tables: count(away),
        other_tables: count(pool.files.tables()),
        other_tables_refused: pool.files.stuck().map(|errno| errno.to_string()),
        directories: count(pool.dir_fds.open_count()),
        directories_limit: count(budget.directories()),
        open_files_limit: count(pool.files.capacity()),
        open_files_of_one_user_limit: count(pool.files.share()),
        most_open_files: largest.map(|(uid, files)| UserShare {
            uid,
            files: count(files),
        }),
    }
}

thread_local! {
    /// The process that this thread asked about last. Most opens in a row are of one process, and to
    /// find a process in /proc costs a tenth of an open; its open directory there tells the user of
    /// this moment for much less (Samba changes the user of a thread from request to request).
    static LAST_ASKED: RefCell<Option<Asked>> = const { RefCell::new(None) };
}

/// The directory of a process in /proc.
struct Asked {
    pid: u32,
    dir: File,
    since_ms: u64,
}

impl Asked {
    /// A process number given anew is taken for the process of before no longer than this.
    const VALID_MS: u64 = 1000;

    /// None if the process hides, or enough threads keep one.
    fn open(pid: u32, now_ms: u64) -> Option<Self> {
        let one_more = |kept: usize| (kept < ASKED_MAX).then_some(kept + 1);
        KEPT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .ok()?;
        let Ok(dir) = File::open(format!("/proc/{pid}")) else {
            KEPT.fetch_sub(1, Ordering::Relaxed);
            return None;
        };
        Some(Self {
            pid,
            dir,
            since_ms: now_ms,
        })
    }

    fn is_about(&self, pid: u32, now_ms: u64) -> bool {
        self.pid == pid && now_ms.saturating_sub(self.since_ms) < Self::VALID_MS
    }

    /// The user of the process now.
    fn user(&self) -> u32 {
        named(self.dir.metadata())
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A process that has ended is shown as root's (fs/proc/base.c, `pid_getattr`), and root is nobody
/// in particular.
fn named(process: std::io::Result<std::fs::Metadata>) -> u32 {
    let uid = process.map(|process| process.uid());
    uid.ok().filter(|uid| *uid != 0).unwrap_or(UNNAMED)
}

/// Who runs a process, as far as anybody can see: an idmapped mount does not say whose request it
/// is. One that hides is nobody in particular.
fn user_of(pid: u32, now_ms: u64) -> u32 {
    LAST_ASKED.with_borrow_mut(|last| {
        if !last.as_ref().is_some_and(|last| last.is_about(pid, now_ms)) {
            // Given back before another one is wanted.
            *last = None;
            *last = Asked::open(pid, now_ms);
        }
        match last {
            Some(last) => last.user(),
            None => named(std::fs::metadata(format!("/proc/{pid}"))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whom opens of a process are counted for.
    fn expected(uid: u32) -> u32 {
        if uid == 0 { UNNAMED } else { uid }
    }

    #[test]
    fn a_process_is_found_anew_after_a_while_and_another_one_at_once() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let (me, other) = (std::process::id(), child.id());
        let asked = |now_ms| {
            user_of(me, now_ms);
            LAST_ASKED.with_borrow(|last| last.as_ref().map(|last| (last.pid, last.since_ms)))
        };
        assert_eq!(asked(100), Some((me, 100)));
        assert_eq!(asked(100 + Asked::VALID_MS - 1), Some((me, 100)));
        assert_eq!(
            asked(100 + Asked::VALID_MS),
            Some((me, 100 + Asked::VALID_MS))
        );
        user_of(other, 1200);
        assert_eq!(asked(1201), Some((me, 1201)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(user_of(other, 1202), UNNAMED);
    }

    #[test]
    fn of_very_many_threads_each_knows_the_user_and_few_keep_a_descriptor() {
        let own = rustix::process::geteuid().as_raw();
        let me = std::process::id();
        let barrier = std::sync::Barrier::new(3 * ASKED_MAX);
        std::thread::scope(|scope| {
            for _ in 0..3 * ASKED_MAX {
                scope.spawn(|| {
                    assert_eq!(user_of(me, 1), expected(own));
                    barrier.wait();
                    assert!(KEPT.load(Ordering::Relaxed) <= ASKED_MAX);
                    barrier.wait();
                });
            }
        });
    }

    #[test]
    fn the_user_of_a_thread_is_that_of_this_moment_and_root_counts_as_nobody() {
        let own = rustix::process::geteuid().as_raw();
        let me = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        assert_eq!(user_of(me, 1), expected(own));
        assert_eq!(user_of(0, 1), UNNAMED);
        if own != 0 {
            return;
        }
        assert_eq!(user_of(me, 2), UNNAMED);
        let user = |uid| rustix::fs::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(user(0), user(1234), user(0)).unwrap();
        assert_eq!(user_of(me, 3), 1234);
    }
}
