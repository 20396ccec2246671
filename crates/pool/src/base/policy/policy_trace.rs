//! What a policy would do, told branch by branch with the reasons: the same plan that chooses,
//! asked for its grounds.

use std::fmt;

use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_options::{Category, Policy};

use crate::base::policy::plan::{PolicyPlan, graver};
use crate::base::policy::{BranchFacts, MAX_LEVELS};

/// Why a branch may not be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Fenced, missing or tried already.
    Unusable,
    /// The path (for create: the directory) is not there.
    Absent,
    /// The directory there, or one above it, is in other hands or lets others in.
    Exposes,
    /// The branch's mode is RO.
    ReadOnlyMode,
    /// The branch's mode is NC, and something is to be made.
    NoCreateMode,
    /// The filesystem does not tell its free space.
    SpaceUnknown,
    /// The filesystem is mounted read-only.
    ReadOnlyFilesystem,
    /// Less is available than `minfreespace` of the branch.
    BelowMinimum,
    /// The filesystem has no inode left.
    NoInodes,
}

impl Refusal {
    /// What the operation would fail with, were there only branches like this one.
    pub fn errno(self) -> Errno {
        match self {
            Self::Unusable | Self::Absent | Self::SpaceUnknown => Errno::NOENT,
            Self::Exposes | Self::ReadOnlyMode | Self::NoCreateMode | Self::ReadOnlyFilesystem => {
                Errno::ROFS
            }
            Self::BelowMinimum | Self::NoInodes => Errno::NOSPC,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unusable => "the branch is out of use",
            Self::Absent => "it is not on this branch",
            Self::Exposes => {
                "the directory there, or one above it, has another owner or lets others in"
            }
            Self::ReadOnlyMode => "the branch's mode is RO",
            Self::NoCreateMode => "the branch's mode is NC: nothing new goes there",
            Self::SpaceUnknown => "its filesystem does not tell its free space",
            Self::ReadOnlyFilesystem => "its filesystem is mounted read-only",
            Self::BelowMinimum => "less space is available than minfreespace asks for",
            Self::NoInodes => "its filesystem has no inode left: it holds as many files as it can",
        })
    }
}

/// What a policy holds of one branch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BranchDecision {
    /// It is used.
    Chosen,
    /// It is used with this probability, more than 0 and at most 1.
    Chance(f64),
    /// It would do, but another is used; the reason, for people.
    PassedOver(&'static str),
    /// It may not be used.
    Refused(Refusal),
}

/// What a policy would do.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyTrace {
    /// For each branch, in the order of the facts. Empty for the policy `erofs`, which looks at
    /// none.
    pub branches: SmallVec<[BranchDecision; 8]>,
    /// What the operation fails with if no branch is used.
    pub errno: Option<Errno>,
    /// How many directories above the one asked for the branches were judged (msp* policies);
    /// where all fail, the first was.
    pub level: usize,
}

/// What `policy` would do in `category`; `levels` as for [`super::create`], of which action and
/// search ask for level 0 only.
pub fn policy_trace<Facts: AsRef<[BranchFacts]>>(
    policy: Policy,
    category: Category,
    mut levels: impl FnMut(usize) -> Option<Facts>,
) -> PolicyTrace {
    let mut failed = PolicyTrace {
        branches: SmallVec::new(),
        errno: Some(Errno::ROFS),
        level: 0,
    };
    let Some(plan) = PolicyPlan::of(policy, category) else {
        return failed;
    };
    let mut errno = Errno::NOENT;
    for level in 0..plan.levels(MAX_LEVELS) {
        let Some(facts) = levels(level) else { break };
        let (branches, refusal) = plan.prospects(facts.as_ref());
        match refusal {
            None => {
                return PolicyTrace {
                    branches,
                    errno: None,
                    level,
                };
            }
            Some(refusal) => errno = graver(errno, refusal),
        }
        if level == 0 {
            failed.branches = branches;
        }
    }
    failed.errno = Some(errno);
    failed
}

#[cfg(test)]
mod tests {
    use super::super::Space;
    use super::*;

    fn branch(available_bytes: u64) -> BranchFacts {
        BranchFacts {
            read_only: false,
            no_create: false,
            usable: true,
            exposes: false,
            exists: true,
            space: Some(Space {
                available_bytes,
                used_bytes: 10,
                read_only_fs: false,
                min_free_bytes: 5,
                no_inodes: false,
            }),
            mtime_ns: 0,
        }
    }

    fn create(policy: Policy, facts: &[BranchFacts]) -> PolicyTrace {
        policy_trace(policy, Category::Create, |_| Some(facts.to_vec()))
    }

    #[test]
    fn every_reason_is_told_and_agrees_with_the_choice() {
        let full = branch(1);
        let no_create = BranchFacts {
            no_create: true,
            ..branch(90)
        };
        let read_only = BranchFacts {
            read_only: true,
            ..branch(90)
        };
        let facts = [full, no_create, read_only, branch(30), branch(10)];
        let told = create(Policy::Mfs, &facts);
        assert_eq!(
            told.branches[..4],
            [
                BranchDecision::Refused(Refusal::BelowMinimum),
                BranchDecision::Refused(Refusal::NoCreateMode),
                BranchDecision::Refused(Refusal::ReadOnlyMode),
                BranchDecision::Chosen
            ]
        );
        assert!(matches!(told.branches[4], BranchDecision::PassedOver(_)));
        assert_eq!(told.errno, None);
        let failed = create(Policy::Mfs, &facts[..3]);
        assert_eq!(failed.errno, Some(Errno::NOSPC));
        assert_eq!(failed.branches.len(), 3);
        assert_eq!(create(Policy::ErofsAlways, &facts).errno, Some(Errno::ROFS));
    }

    #[test]
    fn a_branch_without_an_inode_gets_nothing_new_and_may_be_changed() {
        let mut used_up = branch(90);
        used_up.space.as_mut().unwrap().no_inodes = true;
        let told = create(Policy::Mfs, &[used_up, branch(30)]);
        let refused = BranchDecision::Refused(Refusal::NoInodes);
        assert_eq!(told.branches[..], [refused, BranchDecision::Chosen]);
        assert_eq!(create(Policy::Ff, &[used_up]).errno, Some(Errno::NOSPC));
        let changed = policy_trace(Policy::EpAll, Category::Action, |_| Some([used_up]));
        assert_eq!(changed.branches[..], [BranchDecision::Chosen]);
    }

    #[test]
    fn random_policies_tell_their_chances() {
        let facts = [branch(30), branch(10), branch(1)];
        let told = create(Policy::Pfrd, &facts);
        assert_eq!(
            told.branches[..],
            [
                BranchDecision::Chance(0.75),
                BranchDecision::Chance(0.25),
                BranchDecision::Refused(Refusal::BelowMinimum)
            ]
        );
        let told = create(Policy::Rand, &facts);
        assert_eq!(told.branches[1], BranchDecision::Chance(0.5));
        assert_eq!(
            create(Policy::Rand, &facts[..1]).branches[0],
            BranchDecision::Chosen
        );
        // Nothing free: what is there must still be readable.
        let empty = [branch(0), branch(0)];
        let told = policy_trace(Policy::Pfrd, Category::Search, |_| Some(empty));
        assert_eq!(told.branches[..], [BranchDecision::Chance(0.5); 2]);
    }

    #[test]
    fn climbing_policies_tell_how_far_they_climbed() {
        let absent = BranchFacts {
            exists: false,
            ..branch(50)
        };
        let levels = [[absent, branch(1)], [branch(50), branch(1)]];
        let told = policy_trace(Policy::MspMfs, Category::Create, |level| levels.get(level));
        assert_eq!((told.level, told.errno), (1, None));
        assert_eq!(told.branches[0], BranchDecision::Chosen);
        let told = policy_trace(Policy::EpMfs, Category::Create, |level| levels.get(level));
        assert_eq!((told.level, told.errno), (0, Some(Errno::NOSPC)));
        assert_eq!(told.branches[0], BranchDecision::Refused(Refusal::Absent));
    }
}
