//! To whom a new name would be exposed on a branch: where its directory, or one above it, is in other
//! hands there than the directory that users see, or lets others do more. Whoever may write a directory can
//! take the file for their own, past the pool; whoever may search it look at the file.

use smallvec::SmallVec;

use crate::base::rights::Rights;

const ROOT: u32 = 0;
const WRITE: u32 = 0o2;
const READ_SEARCH: u32 = 0o5;

/// What others than the directory that is shown lets in may do to a new name on one branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exposure {
    /// A directory there is this user's.
    owner: Option<u32>,
    /// More may look at it.
    to_readers: bool,
    /// More may take it away, or put something else in its place.
    to_writers: bool,
}

/// By the branches of the view.
pub(crate) type Exposures = SmallVec<[Exposure; 4]>;

/// How much exposure is borne: more only where no copy of the directory has less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tolerance {
    /// None.
    Nothing,
    /// That more may look at it.
    Readers,
    /// Any, on the branch with the first copy.
    FirstCopy,
}

impl Exposure {
    /// What has to be reckoned with on a branch of which it is not known.
    pub(crate) const UNKNOWN: Exposure = Exposure {
        owner: None,
        to_readers: true,
        to_writers: true,
    };

    /// Of two directories on the way to the name.
    pub(crate) fn with(self, other: Exposure) -> Exposure {
        let owners = [self.owner, other.owner];
        let several = matches!(owners, [Some(one), Some(another)] if one != another);
        Exposure {
            owner: self.owner.or(other.owner),
            to_readers: self.to_readers || other.to_readers,
            to_writers: self.to_writers || other.to_writers || several,
        }
    }

    /// Whether it does for what `maker` makes, who may have it.
    pub(crate) fn is_borne(self, maker: u32, tolerance: Tolerance) -> bool {
        let is_others = self.to_writers || self.owner.is_some_and(|owner| owner != maker);
        match tolerance {
            Tolerance::Nothing => !is_others && !self.to_readers,
            Tolerance::Readers | Tolerance::FirstCopy => !is_others,
        }
    }

    /// By a directory's copy with these rights; `has_own_list`: with an access list that not all copies have.
    pub(crate) fn of(copy: &Rights, shown: &Rights, has_own_list: bool) -> Exposure {
        let (_, group, others) = copy.classes();
        let (_, shown_group, shown_others) = shown.classes();
        let as_shown = match copy.gid == shown.gid {
            true => shown_group,
            false => shown_others,
        };
        let mut more = group & !as_shown | others & !shown_others;
        if has_own_list {
            more |= group & !others;
        }
        let lacks_sticky = shown.mode & !copy.mode & libc::S_ISVTX != 0;
        let is_shared = (group | others) & WRITE != 0;
        Exposure {
            owner: Some(copy.uid).filter(|owner| ![ROOT, shown.uid].contains(owner)),
            to_readers: more & READ_SEARCH != 0,
            to_writers: more & WRITE != 0 || lacks_sticky && is_shared,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rights::strictest;

    fn rights(uid: u32, gid: u32, mode: u32) -> Rights {
        Rights { uid, gid, mode }
    }

    fn of_each(copies: &[Rights]) -> Vec<Exposure> {
        let shown = strictest(copies).unwrap();
        let of = |copy| Exposure::of(copy, &shown, false);
        copies.iter().map(of).collect()
    }

    #[test]
    fn copies_that_agree_expose_nothing() {
        for mode in [0o755, 0o700, 0o2775, 0o1777, 0o711] {
            let copy = rights(7, 8, mode);
            assert_eq!(of_each(&[copy, copy]), [Exposure::default(); 2]);
        }
    }

    #[test]
    fn who_gets_what_others_should_not_have() {
        let (to_nobody, nothing) = (Exposure::default(), Tolerance::Nothing);
        let exposed = |owner, to_readers, to_writers| Exposure {
            owner,
            to_readers,
            to_writers,
        };
        for (copies, expected) in [
            // Another's.
            (
                [rights(0, 0, 0o755), rights(6, 6, 0o755)],
                [to_nobody, exposed(Some(6), false, false)],
            ),
            // More may write it, or take others' files away.
            (
                [rights(5, 5, 0o755), rights(5, 5, 0o777)],
                [to_nobody, exposed(None, false, true)],
            ),
            (
                [rights(5, 5, 0o1777), rights(5, 5, 0o777)],
                [to_nobody, exposed(None, false, true)],
            ),
            // More may look in.
            (
                [rights(5, 5, 0o700), rights(5, 5, 0o711)],
                [to_nobody, exposed(None, true, false)],
            ),
            // Each is a group's of its own.
            (
                [rights(0, 5, 0o775), rights(0, 6, 0o775)],
                [exposed(None, false, true); 2],
            ),
        ] {
            assert_eq!(of_each(&copies), expected, "{copies:?}");
        }
        let of_alice = exposed(Some(6), false, false);
        assert!(of_alice.is_borne(6, nothing) && !of_alice.is_borne(0, nothing));
        assert!(
            !of_alice
                .with(exposed(Some(7), false, false))
                .is_borne(6, nothing)
        );
        let to_readers = exposed(None, true, false);
        assert!(!to_readers.is_borne(6, nothing) && to_readers.is_borne(6, Tolerance::Readers));
    }

    #[test]
    fn a_list_of_its_own_counts_for_all_that_its_mask_lets_through() {
        let copy = rights(0, 0, 0o775);
        assert!(Exposure::of(&copy, &copy, true).to_writers);
        assert_eq!(Exposure::of(&copy, &copy, false), Exposure::default());
    }
}
