//! Whether moving files off a branch makes room there: what somebody else holds on to (a program that
//! has a removed file open, a snapshot that nothing tells of) stays where it is.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::base::branch::{Branch, BranchId, open_to_ask};
use crate::base::magic;
use crate::base::sys::{self, RawHandle};
use crate::state::State;

/// So many files in a row whose room did not come back, and so many bytes, are no accident.
const FILES: u32 = 3;
const BYTES: u64 = 64 << 20;
/// On a small branch this part of it, 1 / …
const PART: u64 = 32;
/// This many times as many, where nothing but the free space speaks for it: somebody may be filling the
/// branch as fast as files leave it.
const DOUBT: u32 = 16;
/// After that nothing is moved for so long, and twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(900);
/// Less than this part of what was moved, 1 / …, is noise.
const NOISE: u64 = 4;

/// What is free on a branch, and what its writers have, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub available_bytes: u64,
    /// What files that the pool has open for writing there occupy.
    pub written_bytes: u64,
}

impl Room {
    /// What was freed up to `now`, with what writers took meanwhile.
    fn freed(&self, now: &Room) -> u64 {
        let written = now.written_bytes.saturating_sub(self.written_bytes);
        let available = now.available_bytes.saturating_add(written);
        available.saturating_sub(self.available_bytes)
    }
}

/// What has become of the file that was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remains {
    /// It is gone, and nobody else has its room.
    Nothing,
    /// Somebody has it open.
    File,
    /// It cannot be told.
    Unknown,
}

/// A file that is about to move, to find what remains of it.
pub(super) struct Trace {
    handle: Option<RawHandle>,
    /// Its filesystem would have said that others share its room, or has no such thing.
    tells_sharing: bool,
}

impl Trace {
    /// Of an open file, and whether most of its room is shared with copies or snapshots.
    pub(super) fn of(file: BorrowedFd<'_>) -> (Trace, bool) {
        let told = sys::shared_bytes(file);
        let is_shared = told.is_ok_and(|(shared, all)| shared > all / 2);
        let in_memory = || {
            let kind = rustix::fs::fstatfs(file).map(|fs| fs.f_type as u64);
            kind == Ok(magic::TMPFS)
        };
        let trace = Trace {
            handle: sys::name_to_handle_fd(file).ok(),
            tells_sharing: told.is_ok() || in_memory(),
        };
        (trace, is_shared)
    }

    /// What is left of it on its branch, which it has left.
    pub(super) fn remains(&self, branch: &Branch) -> Remains {
        let (Some(handle), Some(root)) = (&self.handle, open_to_ask(branch.root())) else {
            return Remains::Unknown;
        };
        match sys::open_by_handle(root.as_fd(), handle, OFlags::PATH) {
            Ok(_) => Remains::File,
            Err(Errno::STALE) if self.tells_sharing => Remains::Nothing,
            Err(_) => Remains::Unknown,
        }
    }
}

/// What moves off one branch have come to.
#[derive(Debug, Default)]
pub(super) struct Gain {
    files: u32,
    moved_bytes: u64,
    /// What there was before the first of them.
    since: Option<Room>,
    /// How often it was found that nothing is gained.
    found: u32,
    until: Option<Instant>,
}

/// Nothing is gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InVain {
    files: u32,
    moved_bytes: u64,
    /// Until something is moved again.
    pub pause: Duration,
    /// It was not known before.
    pub is_news: bool,
}

impl fmt::Display for InVain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (files, mib) = (self.files, self.moved_bytes >> 20);
        write!(
            f,
            "moving files frees nothing: {files} with {mib} MiB have moved, and what they occupied is not \
             free (a program has them open on the branch, or a snapshot keeps them); tried again after {} s",
            self.pause.as_secs()
        )
    }
}

impl Gain {
    /// Notes a move of so many bytes off a branch of so many in all; `remains` finds what is left.
    pub(super) fn note(
        &mut self,
        bytes: u64,
        (before, after): (&Room, &Room),
        total_bytes: u64,
        now: Instant,
        remains: impl FnOnce() -> Remains,
    ) -> Option<InVain> {
        if bytes == 0 {
            return None;
        }
        // What earlier moves have freed may show only now.
        let since = *self.since.get_or_insert(*before);
        let moved_bytes = self.moved_bytes.saturating_add(bytes);
        let frees =
            before.freed(after) >= bytes / NOISE || since.freed(after) >= moved_bytes / NOISE;
        let times = match frees {
            true => None,
            false => match remains() {
                Remains::Nothing => None,
                Remains::File => Some(1),
                Remains::Unknown => Some(DOUBT),
            },
        };
        let Some(times) = times else {
            *self = Gain::default();
            return None;
        };
        self.files = self.files.saturating_add(1);
        self.moved_bytes = moved_bytes;
        let enough = BYTES.min(total_bytes / PART).saturating_mul(times.into());
        if self.files < FILES * times || self.moved_bytes < enough {
            return None;
        }
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.found.min(6));
        let pause = doubled.min(LONGEST_PAUSE);
        self.until = Some(now + pause);
        self.found = self.found.saturating_add(1);
        Some(self.in_vain(pause))
    }

    /// Why nothing is to be moved now.
    pub(super) fn holds(&self, now: Instant) -> Option<InVain> {
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then(|| self.in_vain(left))
    }

    fn in_vain(&self, pause: Duration) -> InVain {
        InVain {
            files: self.files,
            moved_bytes: self.moved_bytes,
            pause,
            is_news: self.found == 1,
        }
    }
}

/// What files occupy that the pool has open for writing on a branch, as far as it is known at once.
pub(super) fn written_bytes(pool: &State, branch: BranchId) -> u64 {
    let mut sum = 0_u64;
    pool.files.each(|opened| {
        if opened.writable
            && opened.branch_id() == Some(branch)
            && let Some(file) = opened.file_here()
            && let Ok(stat) = rustix::fs::fstat(&*file)
        {
            let bytes = stat.st_blocks.unsigned_abs().saturating_mul(512);
            sum = sum.saturating_add(bytes);
        }
    });
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(available: u64, written: u64) -> Room {
        Room {
            available_bytes: available * MIB,
            written_bytes: written * MIB,
        }
    }

    fn note(gain: &mut Gain, mib: u64, rooms: (Room, Room), now: Instant) -> Option<InVain> {
        let file = || Remains::File;
        gain.note(mib * MIB, (&rooms.0, &rooms.1), 1 << 40, now, file)
    }

    #[test]
    fn moves_that_free_nothing_are_found_and_tried_again_ever_later() {
        let (mut gain, mut now) = (Gain::default(), Instant::now());
        let same = (room(10, 0), room(10, 0));
        assert_eq!(note(&mut gain, 30, same, now), None);
        assert_eq!(note(&mut gain, 30, same, now), None);
        let first = note(&mut gain, 30, same, now).unwrap();
        assert!(first.is_news && first.pause == FIRST_PAUSE);
        now += first.pause;
        let held = gain.holds(now - Duration::from_secs(1));
        assert_eq!(held.map(|it| it.files), Some(3));
        assert_eq!(gain.holds(now), None);
        let mut longest = Duration::ZERO;
        for _ in 0..100 {
            let again = note(&mut gain, 1, same, now).unwrap();
            assert!(!again.is_news && again.pause >= longest);
            longest = again.pause;
            now += again.pause;
        }
        assert_eq!(longest, LONGEST_PAUSE);
        // One that frees something, and all is forgotten.
        assert_eq!(note(&mut gain, 1, (room(10, 0), room(11, 0)), now), None);
        assert_eq!(gain.holds(now), None);
    }

    #[test]
    fn what_writers_take_meanwhile_was_free() {
        let (mut gain, now) = (Gain::default(), Instant::now());
        for _ in 0..100 {
            let rooms = (room(50, 100), room(20, 160));
            assert_eq!(note(&mut gain, 30, rooms, now), None);
        }
        // A file that is closed meanwhile says nothing.
        assert_eq!(room(50, 100).freed(&room(50, 0)), 0);
        assert_eq!(room(50, 100).freed(&room(80, 0)), 30 * MIB);
    }

    #[test]
    fn what_is_freed_late_was_not_moved_in_vain() {
        let (mut gain, now) = (Gain::default(), Instant::now());
        for round in 0..100 {
            let (before, after) = (room(30 * round, 0), room(30 * round, 0));
            assert_eq!(note(&mut gain, 30, (before, after), now), None, "{round}");
        }
    }

    #[test]
    fn a_file_that_is_gone_is_gain_and_one_of_which_nothing_is_known_is_doubtful() {
        let (now, same) = (Instant::now(), (&room(9, 0), &room(9, 0)));
        let vain_after = |remains| {
            let mut gain = Gain::default();
            let mut moved = || {
                gain.note(30 * MIB, same, 1 << 40, now, || remains)
                    .is_some()
            };
            (1..100).find(|_| moved())
        };
        assert_eq!(vain_after(Remains::Nothing), None);
        assert_eq!(vain_after(Remains::File), Some(3));
        assert_eq!(vain_after(Remains::Unknown), Some(48));
    }

    #[test]
    fn on_a_small_branch_little_is_enough() {
        let (mut gain, now) = (Gain::default(), Instant::now());
        let same = (&room(9, 0), &room(9, 0));
        let mut moved = || gain.note(2 * MIB, same, 128 * MIB, now, || Remains::File);
        assert_eq!((moved(), moved()), (None, None));
        assert!(moved().is_some());
    }
}
