//! Whether a user gets one more open file, before anything is done for it.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use serde_json::{Value, json};
use strandfs_fuse::Context;

use crate::faults::meant;
use crate::open_files::Refused;
use crate::pool::Pool;
use crate::shares::Share;
use crate::sys;

/// The user whom the kernel does not name.
const UNNAMED: u32 = u32::MAX;
/// A user who goes on asking does not fill the log.
const TELL_EVERY_MS: u64 = 60_000;
/// Descriptors that are opened once more requests come, by threads and queues.
const TO_COME: usize = 8;

/// When a refusal was logged last.
#[derive(Default)]
pub(crate) struct RefusalTold(AtomicU64);

impl RefusalTold {
    /// Whether it is time to log another one.
    fn again(&self, now_ms: u64) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        let due = last == 0 || now_ms.saturating_sub(last) >= TELL_EVERY_MS;
        due && self
            .0
            .compare_exchange(last, now_ms.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

impl Pool {
    /// One more open file for the caller.
    ///
    /// # Errors
    /// ENFILE: the caller's share of the pool's open files is used up, or nobody can have one now.
    pub(crate) fn admit(&self, cx: &Context<'_>) -> sys::Result<Share> {
        let uid = match cx.uid {
            UNNAMED => recent_user_of(cx.pid, sys::mono_coarse_ms()),
            uid => uid,
        };
        match self.files.admit(uid) {
            Ok(share) => Ok(share),
            Err(refused) => Err(self.refuse(uid, refused)),
        }
    }

    fn refuse(&self, uid: u32, refused: Refused) -> Errno {
        if self.refusal_told.again(sys::mono_coarse_ms()) {
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
        meant(Errno::NFILE)
    }

    /// Finds out what the server has open as long as it runs, and shares the rest of the limit out.
    pub(crate) fn count_descriptors(&self) {
        let Ok(open) = std::fs::read_dir("/proc/self/fd") else {
            return;
        };
        let (here, _) = self.files.counts();
        let fixed = open
            .count()
            .saturating_sub(here + self.dir_fds.open_count());
        let budget = self.files.budget();
        budget.note_fixed(fixed + TO_COME);
        self.dir_fds.set_limit(budget.directories());
    }

    /// What the server has of descriptors, for `strandfs status`.
    pub(crate) fn descriptors_status(&self) -> Value {
        let (here, away) = self.files.counts();
        let budget = self.files.budget();
        let largest = self.files.largest_share();
        json!({
            "limit": budget.limit(),
            "files": here,
            "files_limit": budget.files(),
            "files_in_other_tables": away,
            "other_tables": self.files.tables(),
            "other_tables_refused": self.files.stuck().map(|errno| errno.to_string()),
            "directories": self.dir_fds.open_count(),
            "directories_limit": budget.directories(),
            "open_files_limit": self.files.capacity(),
            "open_files_of_one_user_limit": self.files.share(),
            "most_open_files": largest.map(|(uid, files)| json!({ "uid": uid, "files": files })),
        })
    }
}

thread_local! {
    /// The process that this thread asked about last, its user, and when. Who opens many files in a
    /// row is asked about once in a while: to ask costs as much as a part of the open itself.
    static LAST_ASKED: Cell<Option<(u32, u32, u64)>> = const { Cell::new(None) };
}

/// As [`user_of`], as it was at most so long ago.
fn recent_user_of(pid: u32, now_ms: u64) -> u32 {
    const VALID_MS: u64 = 20;
    if let Some((asked, uid, at_ms)) = LAST_ASKED.get()
        && asked == pid
        && now_ms.saturating_sub(at_ms) < VALID_MS
    {
        return uid;
    }
    let uid = user_of(pid);
    LAST_ASKED.set(Some((pid, uid, now_ms)));
    uid
}

/// Who runs a process, as far as anybody can see: an idmapped mount does not say whose request it
/// is. One that hides is nobody in particular.
fn user_of(pid: u32) -> u32 {
    let uid = std::fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    uid.ok().filter(|uid| *uid != 0).unwrap_or(UNNAMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_goes_on_asking_is_told_of_once_a_minute() {
        let told = RefusalTold::default();
        assert!(told.again(0), "the clock begins at 0");
        assert!(!told.again(5) && !told.again(TELL_EVERY_MS));
        assert!(told.again(TELL_EVERY_MS + 1) && !told.again(TELL_EVERY_MS + 2));
    }

    #[test]
    fn a_process_is_asked_about_again_after_a_while_and_another_one_at_once() {
        let (me, own) = (std::process::id(), user_of(std::process::id()));
        LAST_ASKED.set(Some((me, 7, 100)));
        assert_eq!(recent_user_of(me, 119), 7);
        assert_eq!(recent_user_of(me, 120), own);
        LAST_ASKED.set(Some((me, 7, 100)));
        assert_eq!(recent_user_of(0, 101), UNNAMED);
        assert_eq!(recent_user_of(me, 102), own);
    }

    #[test]
    fn the_user_of_a_process_is_seen_and_root_counts_as_nobody() {
        let me = std::process::id();
        let uid = rustix::process::geteuid().as_raw();
        let expected = if uid == 0 { UNNAMED } else { uid };
        assert_eq!(user_of(me), expected);
        assert_eq!(user_of(0), UNNAMED);
    }
}
