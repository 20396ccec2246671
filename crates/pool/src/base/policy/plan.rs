//! What a policy means in a category: which branches are eligible, and which rule picks of them.

use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_options::{Category, Policy};

use crate::base::policy::pick::{Rule, chances, pick};
use crate::base::policy::policy_trace::{BranchDecision, Refusal};
use crate::base::policy::{BranchFacts, Choice, Needs};

/// Where something may be put or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// On any branch; directories that lack are made.
    Anywhere,
    /// Where the path (for create: the parent) exists.
    Existing,
    /// Where the nearest ancestor exists for which a branch can be chosen.
    NearestExisting,
}

/// A policy used in a category.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyPlan {
    rule: Rule,
    pub(super) reach: Reach,
    category: Category,
}

impl PolicyPlan {
    /// None for the policy that always refuses.
    pub(super) fn of(policy: Policy, category: Category) -> Option<Self> {
        let (rule, create_reach) = meaning(policy)?;
        // What is not there can be neither changed nor read, whatever the policy's name says.
        let reach = match category {
            Category::Create => create_reach,
            Category::Action | Category::Search => Reach::Existing,
        };
        Some(Self {
            rule,
            reach,
            category,
        })
    }

    pub(super) fn needs(self) -> Needs {
        Needs {
            exists: self.reach != Reach::Anywhere,
            // Other than for search, to know a filesystem that is read-only or full.
            space: self.category != Category::Search || self.rule.compares_space(),
            mtime: self.rule == Rule::Newest,
        }
    }

    /// The rule's choice among the eligible branches.
    ///
    /// # Errors
    /// The gravest refusal, if nothing is chosen.
    pub(super) fn choose(
        self,
        branches: &[BranchFacts],
        random: &mut dyn FnMut() -> u64,
    ) -> Result<Choice, Errno> {
        let eligible = branches
            .iter()
            .enumerate()
            .filter(|(_, branch)| self.refusal(branch).is_none());
        let mut choice = pick(self.rule, eligible.clone(), random);
        if choice.is_empty() && self.category != Category::Create {
            // Weighed by free space and none has any: what is there must still be readable and,
            // above all on full branches, removable.
            choice = pick(Rule::Random, eligible, random);
        }
        if !choice.is_empty() {
            return Ok(choice);
        }
        Err(branches
            .iter()
            .map(|branch| self.refusal(branch).map_or(self.unpicked(), Refusal::errno))
            .fold(Errno::NOENT, graver))
    }

    /// How many levels a choice may climb, of at most `most`.
    pub(super) fn levels(self, most: usize) -> usize {
        if self.reach == Reach::NearestExisting {
            most
        } else {
            1
        }
    }

    /// What holds of each branch, and the refusal if none is used.
    pub(super) fn prospects(
        self,
        branches: &[BranchFacts],
    ) -> (SmallVec<[BranchDecision; 8]>, Option<Errno>) {
        // Which one a random rule draws is of no matter here: its chances are told instead.
        let (choice, errno) = match self.choose(branches, &mut || 0) {
            Ok(choice) => (choice, None),
            Err(errno) => (Choice::new(), Some(errno)),
        };
        let eligible = branches
            .iter()
            .enumerate()
            .filter(|(_, branch)| self.refusal(branch).is_none());
        let mut drawn = chances(self.rule, eligible.clone());
        if errno.is_none() && self.rule.is_random() && drawn.is_empty() {
            drawn = chances(Rule::Random, eligible);
        }
        let told = branches.iter().enumerate().map(|(index, branch)| {
            let chance = drawn.iter().find(|(drawn, _)| *drawn == index);
            match (self.refusal(branch), chance) {
                (Some(refusal), _) => BranchDecision::Refused(refusal),
                (None, Some((_, share))) if *share < 1.0 => BranchDecision::Chance(*share),
                (None, Some(_)) => BranchDecision::Chosen,
                (None, None) if choice.contains(&index) && drawn.is_empty() => {
                    BranchDecision::Chosen
                }
                (None, None) => BranchDecision::PassedOver(self.rule.preference()),
            }
        });
        (told.collect(), errno)
    }

    /// Why the branch may not be chosen; none if it may.
    fn refusal(self, branch: &BranchFacts) -> Option<Refusal> {
        if !branch.usable {
            return Some(Refusal::Unusable);
        }
        if self.reach != Reach::Anywhere && !branch.exists {
            return Some(Refusal::Absent);
        }
        if self.category == Category::Search {
            let unknown = self.rule.compares_space() && branch.space.is_none();
            return unknown.then_some(Refusal::SpaceUnknown);
        }
        let create = self.category == Category::Create;
        if create && branch.exposes {
            return Some(Refusal::Exposes);
        }
        if branch.read_only {
            return Some(Refusal::ReadOnlyMode);
        }
        if create && branch.no_create {
            return Some(Refusal::NoCreateMode);
        }
        match branch.space {
            None => Some(Refusal::SpaceUnknown),
            Some(space) if space.read_only_fs => Some(Refusal::ReadOnlyFilesystem),
            Some(space) if create && space.available_bytes < space.min_free_bytes => {
                Some(Refusal::BelowMinimum)
            }
            Some(space) if create && space.no_inodes => Some(Refusal::NoInodes),
            Some(_) => None,
        }
    }

    /// Why eligible branches were passed over: the rule weighs by free space and found none.
    fn unpicked(self) -> Errno {
        match self.category {
            Category::Create => Errno::NOSPC,
            Category::Action | Category::Search => Errno::NOENT,
        }
    }
}

/// The one table of policies: how each picks, and where it creates.
fn meaning(policy: Policy) -> Option<(Rule, Reach)> {
    use Reach::{Anywhere, Existing, NearestExisting};
    Some(match policy {
        Policy::ErofsAlways => return None,
        Policy::All => (Rule::All, Anywhere),
        Policy::EpAll => (Rule::All, Existing),
        Policy::Ff => (Rule::First, Anywhere),
        Policy::EpFf => (Rule::First, Existing),
        Policy::Lfs => (Rule::LeastFree, Anywhere),
        Policy::EpLfs => (Rule::LeastFree, Existing),
        Policy::MspLfs => (Rule::LeastFree, NearestExisting),
        Policy::Lus => (Rule::LeastUsed, Anywhere),
        Policy::EpLus => (Rule::LeastUsed, Existing),
        Policy::MspLus => (Rule::LeastUsed, NearestExisting),
        Policy::Mfs => (Rule::MostFree, Anywhere),
        Policy::EpMfs => (Rule::MostFree, Existing),
        Policy::MspMfs => (Rule::MostFree, NearestExisting),
        Policy::Pfrd => (Rule::RandomByFree, Anywhere),
        Policy::EpPfrd => (Rule::RandomByFree, Existing),
        Policy::MspPfrd => (Rule::RandomByFree, NearestExisting),
        Policy::Rand => (Rule::Random, Anywhere),
        Policy::EpRand => (Rule::Random, Existing),
        Policy::Lup => (Rule::LeastUsedShare, Anywhere),
        Policy::Newest => (Rule::Newest, Existing),
    })
}

/// The errno that says more. ENOSPC first: it names what the user can recover, while a read-only
/// branch is there on purpose.
pub(super) fn graver(one: Errno, other: Errno) -> Errno {
    let weight = |errno| match errno {
        Errno::NOSPC => 2,
        Errno::ROFS => 1,
        _ => 0,
    };
    if weight(other) > weight(one) {
        other
    } else {
        one
    }
}
