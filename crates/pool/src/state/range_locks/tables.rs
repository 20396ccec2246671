//! Who holds what of a node and who waits for it. A branch is never asked here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fstat, fstatfs};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use smallvec::SmallVec;
use strandfs_fuse::LockOwner;

use crate::base::magic;
use crate::state::lock_table::{LockMode, LockTable};
use crate::state::range_locks::asked::{Asked, Sort};
use crate::state::range_locks::closing::Closing;
use crate::state::range_locks::counts::{FREE_OF_OWNER, RangeCounts};
use crate::state::range_locks::waiting::Waiting;

/// Open files that hold a lock against one who asks, of which it is asked whether they are closed.
const MOST_CLOSING: usize = 16;
/// No open file, which nothing is known of.
const UNKNOWN: usize = 0;

/// One owner of byte ranges and the process that locked last.
pub(super) struct Owned {
    through: SmallVec<[usize; 1]>,
    pub(super) pid: u32,
    unseen_since: Option<u64>,
}

/// One sort of locks.
#[derive(Default)]
pub struct Table {
    /// What is held.
    pub held: LockTable,
    /// Who waits.
    pub waiting: Waiting,
}

/// Both sorts.
#[derive(Default)]
pub struct Tables {
    pub(super) range: Table,
    pub(super) whole: Table,
    pub(super) owners: HashMap<LockOwner, Owned>,
    /// Owners of byte ranges by the open files they locked through.
    pub(super) through: HashMap<usize, SmallVec<[LockOwner; 1]>>,
    /// Which open files may be closed already.
    pub(super) closing: Closing,
    /// Owners with so many ranges that these are counted, and for which user.
    counted: HashMap<LockOwner, (u32, usize)>,
    counts: Arc<RangeCounts>,
    /// Somebody outside stands against one who waits: to be looked at again.
    pub outside: bool,
    /// It is on its way to be looked at again.
    pub due: bool,
    /// How long before that.
    pub pause: Duration,
}

impl Tables {
    /// Nothing is held; what each user holds is counted in `counts`.
    pub(super) fn new(counts: Arc<RangeCounts>) -> Tables {
        let mut tables = Tables::default();
        tables.counts = counts;
        tables
    }

    /// Whether this may make one range more than the user may have: a lock anywhere, an unlock in the
    /// middle of a range.
    pub(super) fn is_full_for(&self, asked: &Asked) -> bool {
        let held = &self.range.held;
        asked.sort == Sort::Range
            && held.count(asked.owner) >= FREE_OF_OWNER
            && (asked.kind.is_some() || held.is_within(asked.owner, asked.span))
            && self.counts.is_full(asked.uid)
    }

    /// Counts the ranges of an owner, which this user has changed.
    pub(super) fn count(&mut self, owner: LockOwner, uid: u32) {
        let (uid, before) = self.counted.get(&owner).copied().unwrap_or((uid, 0));
        let after = self.range.held.count(owner).saturating_sub(FREE_OF_OWNER);
        if before == after {
            return;
        }
        self.counts.change(uid, before, after);
        match after {
            0 => self.counted.remove(&owner),
            _ => self.counted.insert(owner, (uid, after)),
        };
    }

    /// Counts the ranges of an owner again, of which some may have gone.
    pub(super) fn recount(&mut self, owner: LockOwner) {
        if let Some((uid, _)) = self.counted.get(&owner) {
            self.count(owner, *uid);
        }
    }

    /// One sort.
    pub fn of(&mut self, sort: Sort) -> &mut Table {
        match sort {
            Sort::Range => &mut self.range,
            Sort::Whole => &mut self.whole,
        }
    }

    /// Notes who was granted a lock.
    pub(super) fn note(&mut self, asked: &Asked) {
        if asked.kind.is_some() {
            self.closing.locks(asked.through, asked.untold);
        }
        if asked.sort == Sort::Whole {
            return;
        }
        if !self.range.held.holds(asked.owner) {
            return self.forget(asked.owner);
        }
        let owned = self.owners.entry(asked.owner).or_insert_with(|| Owned {
            through: SmallVec::new(),
            pid: asked.pid,
            unseen_since: None,
        });
        if asked.kind.is_some() {
            owned.pid = asked.pid;
            owned.unseen_since = asked.unseen_since.or(owned.unseen_since);
        }
        if !owned.through.contains(&asked.through) {
            owned.through.push(asked.through);
            let owners = self.through.entry(asked.through).or_default();
            owners.push(asked.owner);
        }
    }

    /// Whether the owner holds ranges through other open files only. An open file description has but
    /// one, so that they are those of one that is closed, whose word for itself the kernel has given
    /// to the next before telling of the close.
    pub fn is_of_another_file(&self, asked: &Asked) -> bool {
        let owned = match asked.sort {
            Sort::Range => self.owners.get(&asked.owner),
            Sort::Whole => None,
        };
        owned.is_some_and(|owned| !owned.through.contains(&asked.through))
    }

    /// An owner holds no range any more.
    pub(super) fn forget(&mut self, owner: LockOwner) {
        let Some(owned) = self.owners.remove(&owner) else {
            return;
        };
        for through in owned.through {
            let Some(owners) = self.through.get_mut(&through) else {
                continue;
            };
            owners.retain(|known| *known != owner);
            if owners.is_empty() {
                self.through.remove(&through);
            }
        }
    }

    /// An open file is used no more, if no byte range was locked through it: then it ends nothing.
    pub(super) fn ends_nothing(&mut self, through: usize) -> bool {
        let ends_nothing = !self.through.contains_key(&through);
        if ends_nothing {
            self.closing.over(through);
        }
        ends_nothing
    }

    /// An open file is used no more: the owners who used no other. Those of a process that has
    /// locked through another one since may be new.
    pub(super) fn end_of(&mut self, through: usize) -> SmallVec<[LockOwner; 1]> {
        self.closing.over(through);
        let mut owners = self.through.remove(&through).unwrap_or_default();
        owners.retain(|owner| {
            let Some(owned) = self.owners.get_mut(owner) else {
                return false;
            };
            owned.through.retain(|known| *known != through);
            owned.through.is_empty()
        });
        owners
    }

    /// The open files of all who stand against this; of many, one that nothing is known of.
    fn files_against(&self, asked: &Asked, kind: LockMode) -> SmallVec<[usize; 2]> {
        let held = match asked.sort {
            Sort::Range => &self.range.held,
            Sort::Whole => &self.whole.held,
        };
        let mut files = SmallVec::new();
        for owner in held.against(asked.owner, asked.span, kind) {
            match asked.sort {
                Sort::Range => match self.owners.get(&owner) {
                    Some(owned) if !owned.through.is_empty() => {
                        files.extend_from_slice(&owned.through);
                    }
                    _ => files.push(UNKNOWN),
                },
                // It is the owner.
                Sort::Whole => files.push(usize::try_from(owner.0).unwrap_or(UNKNOWN)),
            }
            if files.len() > MOST_CLOSING {
                return SmallVec::from_slice(&[UNKNOWN]);
            }
        }
        files
    }

    /// How long it may take until all who stand against this are known to have closed their files, or
    /// not to have; `None` if nobody does any more.
    pub(super) fn patience(&self, asked: &Asked, kind: LockMode, now_ms: u64) -> Option<Duration> {
        let files = self.files_against(asked, kind);
        let each = files
            .iter()
            .map(|through| self.closing.patience(*through, now_ms));
        each.min()
    }

    /// They have not.
    pub(super) fn waited_in_vain(&mut self, asked: &Asked, kind: LockMode, now_ms: u64) {
        for through in self.files_against(asked, kind) {
            self.closing.in_vain(through, now_ms);
        }
    }

    /// Of those who stand against this, the owners whose process is gone, if its closes were not
    /// reported. A process that may not be asked about counts as alive.
    pub(super) fn dead_against(
        &mut self,
        asked: &Asked,
        kind: LockMode,
    ) -> SmallVec<[LockOwner; 2]> {
        let Self { range, owners, .. } = self;
        let against = range.held.against(asked.owner, asked.span, kind);
        let is_dead = |owner: &LockOwner| {
            owners.get(owner).is_some_and(|owned| {
                owned.unseen_since.is_some_and(|since| {
                    // Its number may be another process's by now.
                    began(owned.pid).is_ok_and(|now| now != Some(since))
                })
            })
        };
        against.filter(is_dead).collect()
    }

    fn is_unseen(&self, owner: LockOwner) -> bool {
        let owned = self.owners.get(&owner);
        owned.is_some_and(|owned| owned.unseen_since.is_some())
    }

    /// Whether one who stands against this may die without anybody being told.
    pub fn may_die_unseen(&self, asked: &Asked) -> bool {
        let Some(kind) = asked.kind.filter(|_| asked.sort == Sort::Range) else {
            return false;
        };
        let mut against = self.range.held.against(asked.owner, asked.span, kind);
        against.any(|owner| self.is_unseen(owner))
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        for (uid, count) in self.counted.values() {
            self.counts.change(*uid, *count, 0);
        }
    }
}

/// What tells a process from a later one of the same number: its number among all that ever were, or,
/// before Linux 6.9, when it began. None if there is none in this pid namespace.
///
/// `/proc/PID/stat` waits while the process becomes another program, which its user may make last for
/// ever (`exec_update_lock` in fs/exec.c): it is read only where there is nothing else.
///
/// # Errors
/// What keeps the kernel from telling.
pub(super) fn began(pid: u32) -> std::io::Result<Option<u64>> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(number) = number else {
        return Ok(None);
    };
    // The flag is PIDFD_THREAD: a lock's holder may be any thread of its process.
    let of_thread = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    match pidfd_open(number, of_thread) {
        Ok(process) if fstatfs(&process)?.f_type as u64 == magic::PIDFS => {
            Ok(Some(fstat(&process)?.st_ino))
        }
        Err(Errno::SRCH) => Ok(None),
        // Unknown to the kernel, or forbidden.
        Ok(_) | Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => began_at(pid),
        Err(errno) => Err(errno.into()),
    }
}

/// When a process began, in the kernel's ticks.
fn began_at(pid: u32) -> std::io::Result<Option<u64>> {
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
