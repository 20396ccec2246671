//! What a directory of several branches lets whom do: only what every copy of it does.
//!
//! The kernel checks by the one owner, group and mode it is shown, and keeps names that one caller
//! looked up for all others: so what is shown must be the strictest there is. Where copies have
//! different owners it is shown as root's, for an owner may do more than a mode says (change it,
//! delete in spite of the sticky bit), and nobody owns all copies.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::Statx;
use smallvec::SmallVec;

const ROOT: u32 = 0;
const READ_WRITE_SEARCH: u32 = 0o7;
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// Owner, group and mode of one copy, or of what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Permissions, set-id and sticky bits.
    pub mode: u32,
}

/// The copies of one directory.
pub(crate) type AllRights = SmallVec<[Rights; 8]>;

impl Rights {
    /// Those of an inode.
    pub fn of(stat: &Statx) -> Rights {
        Rights {
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            mode: u32::from(stat.stx_mode) & 0o7777,
        }
    }

    /// What the owner, the group and all others may.
    pub fn classes(&self) -> (u32, u32, u32) {
        let class = |shift: u32| self.mode >> shift & READ_WRITE_SEARCH;
        (class(6), class(3), class(0))
    }
}

/// The owner and group that copies are shown with.
pub(crate) fn shown_ids(copies: &[Rights]) -> Option<(u32, u32)> {
    let (first, rest) = copies.split_first()?;
    let uid = match rest.iter().all(|copy| copy.uid == first.uid) {
        true => first.uid,
        false => ROOT,
    };
    Some((uid, first.gid))
}

/// What all copies grant, whoever asks.
pub(crate) fn strictest(copies: &[Rights]) -> Option<Rights> {
    let (first, rest) = copies.split_first()?;
    if rest.iter().all(|copy| copy == first) {
        return Some(*first);
    }
    let (uid, gid) = shown_ids(copies)?;
    let (mut owner, mut group, mut others) =
        (READ_WRITE_SEARCH, READ_WRITE_SEARCH, READ_WRITE_SEARCH);
    let mut sticky = 0;
    for copy in copies {
        let (of_owner, of_group, of_others) = copy.classes();
        // Whoever is in one class by what is shown may be in any of these by the copy.
        let of_either = of_group & of_others;
        let owns = copy.uid == uid;
        let perhaps_owner = if owns { READ_WRITE_SEARCH } else { of_owner };
        let in_group = copy.gid == gid;
        owner &= if owns { of_owner } else { of_either };
        group &= perhaps_owner & if in_group { of_group } else { of_either };
        others &= perhaps_owner & if in_group { of_others } else { of_either };
        sticky |= copy.mode & libc::S_ISVTX;
    }
    // Without any permission for the group the kernel asks no access list, but lets those whom one
    // names have what others have.
    if group == 0 && copies.iter().any(|copy| copy.classes().1 != 0) {
        others = 0;
    }
    Some(Rights {
        uid,
        gid,
        mode: first.mode & SET_ID | sticky | owner << 6 | group << 3 | others,
    })
}

/// The rights of a copy when they were last seen: for a branch that is slow to tell.
#[derive(Default)]
pub(crate) struct LastSeen {
    ids: AtomicU64,
    /// With a mark that there are any.
    mode: AtomicU32,
}

impl LastSeen {
    const KNOWN: u32 = 1 << 31;

    /// Remembers them. Nearly always they are the same: no other CPU's cache is disturbed then.
    pub fn note(&self, rights: Rights) {
        let ids = u64::from(rights.uid) << 32 | u64::from(rights.gid);
        if self.ids.load(Ordering::Relaxed) != ids {
            self.ids.store(ids, Ordering::Relaxed);
        }
        let mode = rights.mode | LastSeen::KNOWN;
        if self.mode.load(Ordering::Relaxed) != mode {
            self.mode.store(mode, Ordering::Relaxed);
        }
    }

    /// Those remembered.
    pub fn get(&self) -> Option<Rights> {
        let mode = self.mode.load(Ordering::Relaxed);
        let ids = self.ids.load(Ordering::Relaxed);
        (mode & LastSeen::KNOWN != 0).then_some(Rights {
            uid: (ids >> 32) as u32,
            gid: ids as u32,
            mode: mode & !LastSeen::KNOWN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rights(uid: u32, gid: u32, mode: u32) -> Rights {
        Rights { uid, gid, mode }
    }

    /// What a caller without powers is granted, as the kernel decides it.
    fn granted(rights: &Rights, uid: u32, groups: &[u32]) -> u32 {
        let (owner, group, others) = rights.classes();
        match () {
            () if uid == rights.uid => owner,
            () if groups.contains(&rights.gid) => group,
            () => others,
        }
    }

    #[test]
    fn copies_that_agree_are_shown_as_they_are() {
        for mode in [0o755, 0o700, 0o2070, 0o1777, 0o705, 0] {
            let copy = rights(7, 8, mode);
            assert_eq!(strictest(&[copy, copy, copy]), Some(copy));
            assert_eq!(strictest(&[copy]), Some(copy));
        }
        assert_eq!(strictest(&[]), None);
    }

    #[test]
    fn the_usual_disagreements() {
        for (copies, shown) in [
            // An open copy beside a private one.
            (
                [rights(0, 0, 0o777), rights(0, 0, 0o700)],
                rights(0, 0, 0o700),
            ),
            // A user's and one that root made.
            (
                [rights(1000, 1000, 0o755), rights(0, 0, 0o755)],
                rights(0, 1000, 0o555),
            ),
            // Private to two different people: to root alone.
            ([rights(0, 0, 0o700), rights(6, 6, 0o700)], rights(0, 0, 0)),
            // Shared by a group, and not.
            (
                [rights(5, 100, 0o775), rights(5, 100, 0o755)],
                rights(5, 100, 0o755),
            ),
            // Deleting others' files is forbidden in one.
            (
                [rights(5, 5, 0o777), rights(5, 5, 0o1777)],
                rights(5, 5, 0o1777),
            ),
        ] {
            assert_eq!(strictest(&copies), Some(shown), "{copies:?}");
        }
    }

    #[test]
    fn what_was_last_seen_is_known_once_it_was() {
        let seen = LastSeen::default();
        assert_eq!(seen.get(), None);
        for one in [rights(0, 0, 0), rights(u32::MAX, 7, 0o7777)] {
            seen.note(one);
            assert_eq!(seen.get(), Some(one));
        }
    }

    fn any_rights() -> impl Strategy<Value = Rights> {
        (0..4u32, 0..4u32, 0..0o10000u32).prop_map(|(uid, gid, mode)| rights(uid, gid, mode))
    }

    proptest! {
        #[test]
        fn nobody_is_granted_what_one_copy_refuses(
            copies in prop::collection::vec(any_rights(), 1..5),
            uid in 0..5u32,
            groups in prop::collection::vec(0..5u32, 0..4),
        ) {
            let shown = strictest(&copies).unwrap();
            let all = copies
                .iter()
                .fold(READ_WRITE_SEARCH, |all, copy| all & granted(copy, uid, &groups));
            prop_assert_eq!(granted(&shown, uid, &groups) & !all, 0);
            // An owner may change the mode, and delete in spite of the sticky bit.
            if shown.uid == uid && uid != ROOT {
                prop_assert!(copies.iter().all(|copy| copy.uid == uid));
            }
            let sticky = copies.iter().any(|copy| copy.mode & libc::S_ISVTX != 0);
            prop_assert_eq!(shown.mode & libc::S_ISVTX != 0, sticky);
        }
    }
}
