//! POSIX locks of a node: for each owner an open file description of its own on the branch file,
//! so that the branch itself decides between owners, and between the pool and everyone else.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::{Lock, LockKind, LockOwner};

use crate::locate::reopen;
use crate::sys::{self, RangeLock};

/// One owner's description and the process that locked last.
struct Owned {
    owner: LockOwner,
    file: Arc<OwnedFd>,
    /// The open files it locked through, by address. A lock of an open file description
    /// (`F_OFD_SETLK`) goes with the last use of the one it was taken through; the locks of a
    /// process go at its first close, which is reported or, failing that, at the same time.
    through: SmallVec<[usize; 1]>,
    pid: u32,
    /// The process itself is the owner, and locked through a handle whose closes are not reported:
    /// when it began.
    unseen_since: Option<u64>,
    /// What was locked, roughly: only to tell whose lock conflicts.
    ranges: SmallVec<[(u64, u64); 2]>,
}

/// All owners of a node.
#[derive(Default)]
pub struct RangeLocks {
    owners: Vec<Owned>,
    /// A lock was taken since the file was opened: closes must be reported from now on.
    pub used: bool,
}

/// A lock as the branch wants it.
pub(crate) fn to_range(lock: &Lock) -> RangeLock {
    let kind = match lock.kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let start = i64::try_from(lock.start_bytes).unwrap_or(i64::MAX);
    // An end beyond the largest offset means "to the end of the file", length 0.
    let len = match i64::try_from(lock.end_bytes) {
        Ok(end) if end < i64::MAX => end.saturating_sub(start).saturating_add(1),
        _ => 0,
    };
    RangeLock {
        kind,
        start_bytes: start,
        len_bytes: len,
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

impl RangeLocks {
    /// The description of the owner, who is using an open file at the address `through`; made from
    /// `model` on first use.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub(crate) fn file_of(
        &mut self,
        owner: LockOwner,
        through: usize,
        model: &OwnedFd,
    ) -> sys::Result<Arc<OwnedFd>> {
        self.used = true;
        if let Some(owned) = self.owners.iter_mut().find(|owned| owned.owner == owner) {
            if !owned.through.contains(&through) {
                owned.through.push(through);
            }
            return Ok(Arc::clone(&owned.file));
        }
        let file = Arc::new(open_for_locks(model)?);
        self.owners.push(Owned {
            owner,
            file: Arc::clone(&file),
            through: smallvec![through],
            pid: 0,
            unseen_since: None,
            ranges: SmallVec::new(),
        });
        Ok(file)
    }

    /// An open file is used no more: ends the locks of owners who used no other. Those of a process
    /// that has locked through another one since may be new.
    pub(crate) fn end_of(&mut self, through: usize) {
        let mut ended: SmallVec<[LockOwner; 1]> = SmallVec::new();
        for owned in &mut self.owners {
            owned.through.retain(|known| *known != through);
            if owned.through.is_empty() {
                ended.push(owned.owner);
            }
        }
        ended.iter().for_each(|owner| self.release(*owner));
    }

    /// Notes a lock that was granted; `unseen` if it is a process's own, through a handle whose
    /// closes are not reported.
    pub(crate) fn note(&mut self, owner: LockOwner, lock: &Lock, unseen: bool) {
        const RANGES_MAX: usize = 64;
        let Some(owned) = self.owners.iter_mut().find(|owned| owned.owner == owner) else {
            return;
        };
        if unseen {
            // It waits for the answer, so it is there; where `/proc` does not show it, its number
            // is one of another pid namespace, and says nothing of its death.
            owned.unseen_since = began(lock.pid).ok().flatten();
        }
        let range = (lock.start_bytes, lock.end_bytes);
        match lock.kind {
            LockKind::Unlock => owned
                .ranges
                .retain(|held| held.0 < range.0 || held.1 > range.1),
            _ if owned.ranges.len() < RANGES_MAX => {
                owned.pid = lock.pid;
                owned.ranges.push(range);
            }
            _ => owned.pid = lock.pid,
        }
    }

    /// The process of another owner that holds something overlapping `lock`; 0 if none is known.
    pub(crate) fn holder(&self, asking: LockOwner, lock: &Lock) -> u32 {
        let overlaps = |held: &(u64, u64)| held.0 <= lock.end_bytes && lock.start_bytes <= held.1;
        self.owners
            .iter()
            .find(|owned| owned.owner != asking && owned.ranges.iter().any(overlaps))
            .map_or(0, |owned| owned.pid)
    }

    /// Ends all locks of an owner: closing the description drops them.
    pub fn release(&mut self, owner: LockOwner) {
        if let Some(index) = self.owners.iter().position(|owned| owned.owner == owner) {
            let owned = self.owners.swap_remove(index);
            // A waiting request may still hold the description: unlock besides closing.
            let all = RangeLock {
                kind: libc::F_UNLCK,
                start_bytes: 0,
                len_bytes: 0,
            };
            let _ = sys::set_range_lock(owned.file.as_fd(), all, false);
        }
    }

    /// Ends the locks of other owners whose process is gone, if its closes were not reported; true
    /// if there were any. A process that may not be asked about counts as alive.
    pub(crate) fn drop_dead(&mut self, asking: LockOwner) -> bool {
        let is_dead = |owned: &Owned| {
            owned.owner != asking
                && owned.unseen_since.is_some_and(|since| {
                    // Its number may be another process's by now.
                    began(owned.pid).is_ok_and(|now| now != Some(since))
                })
        };
        let dead: SmallVec<[LockOwner; 2]> = self
            .owners
            .iter()
            .filter(|owned| is_dead(owned))
            .map(|owned| owned.owner)
            .collect();
        dead.iter().for_each(|owner| self.release(*owner));
        !dead.is_empty()
    }

    /// Every owner and its description.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (LockOwner, Arc<OwnedFd>)> {
        self.owners
            .iter()
            .map(|owned| (owned.owner, Arc::clone(&owned.file)))
    }

    /// Gives owners new descriptions, which hold their locks already; the old ones close.
    pub(crate) fn replace(&mut self, files: Vec<(LockOwner, Arc<OwnedFd>)>) {
        for (owner, file) in files {
            if let Some(owned) = self.owners.iter_mut().find(|owned| owned.owner == owner) {
                owned.file = file;
            }
        }
    }

    /// Whether `file` is the owner's description.
    pub(crate) fn is_of(&self, owner: LockOwner, file: &Arc<OwnedFd>) -> bool {
        let mut owners = self.owners.iter();
        owners.any(|owned| owned.owner == owner && Arc::ptr_eq(&owned.file, file))
    }

    /// Whether no owner is known.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }
}

/// When a process began, in the kernel's ticks, which tells it from a later one of the same number;
/// none if there is none in the pid namespace of `/proc`.
///
/// # Errors
/// What keeps `/proc` from telling.
fn began(pid: u32) -> std::io::Result<Option<u64>> {
    let stat = match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) => {
            let gone = matches!(
                Errno::from_io_error(&error),
                Some(Errno::NOENT | Errno::SRCH)
            );
            return if gone { Ok(None) } else { Err(error) };
        }
    };
    // The second field is a name, in which anything may stand; the 22nd is meant.
    let after_name = stat.iter().rposition(|byte| *byte == b')');
    let fields = String::from_utf8_lossy(stat.get(after_name.unwrap_or(0)..).unwrap_or_default());
    let ticks = fields.split_ascii_whitespace().nth(20);
    match ticks.and_then(|ticks| ticks.parse().ok()) {
        Some(ticks) => Ok(Some(ticks)),
        None => Err(std::io::ErrorKind::InvalidData.into()),
    }
}

/// A description of the same file that can hold locks of either kind, if that is allowed.
///
/// # Errors
/// Those of `open(2)`.
pub(crate) fn open_for_locks(model: &OwnedFd) -> sys::Result<OwnedFd> {
    match reopen(model.as_fd(), OFlags::RDWR) {
        Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => reopen(model.as_fd(), OFlags::RDONLY),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_survive_the_round_trip() {
        for (start, end) in [
            (0, i64::MAX as u64),
            (5, 5),
            (10, 99),
            (1 << 40, i64::MAX as u64),
        ] {
            let lock = Lock {
                kind: LockKind::Exclusive,
                start_bytes: start,
                end_bytes: end,
                pid: 7,
            };
            assert_eq!(from_range(to_range(&lock), 7), lock);
        }
    }

    /// An owner of this process number, with an exclusive lock through a handle whose closes are
    /// not reported.
    fn unseen_locks(pid: u32) -> RangeLocks {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let mut locks = RangeLocks::default();
        locks.file_of(LockOwner(1), 1, &file).unwrap();
        let lock = Lock {
            kind: LockKind::Exclusive,
            start_bytes: 0,
            end_bytes: 9,
            pid,
        };
        locks.note(LockOwner(1), &lock, true);
        locks
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_not_taken_for_dead() {
        let in_no_namespace_of_ours = i32::MAX as u32;
        let mut locks = unseen_locks(in_no_namespace_of_ours);
        assert!(!locks.drop_dead(LockOwner(2)));
        assert!(!locks.is_empty());
    }

    #[test]
    fn the_locks_of_a_process_end_when_it_has_ended() {
        let mut sleeper = std::process::Command::new("sleep");
        let mut sleeper = sleeper.arg("600").spawn().unwrap();
        let mut locks = unseen_locks(sleeper.id());
        let while_alive = locks.drop_dead(LockOwner(2));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(!while_alive);
        assert!(locks.drop_dead(LockOwner(2)));
        assert!(locks.is_empty());
    }
}
