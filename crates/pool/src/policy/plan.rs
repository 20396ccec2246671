//! What a policy means in a category: which branches are eligible, and which rule picks of them.

use rustix::io::Errno;
use strandfs_options::{Category, Policy};

use super::pick::{Rule, pick};
use super::{BranchFacts, Choice, Needs};

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
pub(super) struct Plan {
    rule: Rule,
    pub(super) reach: Reach,
    category: Category,
}

impl Plan {
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
            .map(|branch| self.refusal(branch).unwrap_or_else(|| self.unpicked()))
            .fold(Errno::NOENT, graver))
    }

    /// Why the branch may not be chosen; none if it may.
    fn refusal(self, branch: &BranchFacts) -> Option<Errno> {
        let absent = self.reach != Reach::Anywhere && !branch.exists;
        if !branch.usable || absent {
            return Some(Errno::NOENT);
        }
        if self.category == Category::Search {
            let unknown = self.rule.compares_space() && branch.space.is_none();
            return unknown.then_some(Errno::NOENT);
        }
        let create = self.category == Category::Create;
        if branch.read_only || (create && branch.no_create) {
            return Some(Errno::ROFS);
        }
        match branch.space {
            None => Some(Errno::NOENT),
            Some(space) if space.read_only_fs => Some(Errno::ROFS),
            Some(space) if create && space.available_bytes < space.min_free_bytes => {
                Some(Errno::NOSPC)
            }
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

/// The errno that says more. ENOSPC first: it names what the user can mend, while a read-only
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
