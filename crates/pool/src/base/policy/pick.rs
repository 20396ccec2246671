//! Picking among eligible branches.

use std::cmp::{Ordering, Reverse};

use crate::base::policy::random::below;
use crate::base::policy::{BranchFacts, Choice, Space};

/// How a policy picks among eligible branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    All,
    First,
    LeastFree,
    MostFree,
    LeastUsed,
    LeastUsedShare,
    RandomByFree,
    Random,
    Newest,
}

impl Rule {
    /// Whether branches of unknown space cannot be compared.
    pub(super) fn compares_space(self) -> bool {
        match self {
            Self::LeastFree
            | Self::MostFree
            | Self::LeastUsed
            | Self::LeastUsedShare
            | Self::RandomByFree => true,
            Self::All | Self::First | Self::Random | Self::Newest => false,
        }
    }

    /// Whether chance decides.
    pub(super) fn is_random(self) -> bool {
        matches!(self, Self::RandomByFree | Self::Random)
    }

    /// Which branch the rule prefers, for people.
    pub(super) fn preference(self) -> &'static str {
        match self {
            Self::All => "every branch that may be used is used",
            Self::First => "an earlier branch is used",
            Self::LeastFree => "the branch with the least space available is used",
            Self::MostFree => "the branch with the most space available is used",
            Self::LeastUsed => "the branch with the least space in use is used",
            Self::LeastUsedShare => "the branch with the smallest share in use is used",
            Self::RandomByFree => "no space is available on it to weigh it by",
            Self::Random => "chance decides",
            Self::Newest => "the branch with the newest copy is used",
        }
    }
}

/// How likely a rule that draws is to pick each branch; empty for other rules, or where there is
/// nothing to weigh by.
pub(super) fn chances<'a>(
    rule: Rule,
    eligible: impl Iterator<Item = (usize, &'a BranchFacts)> + Clone,
) -> Vec<(usize, f64)> {
    let weights: Vec<(usize, u64)> = match rule {
        Rule::Random => eligible.map(|(index, _)| (index, 1)).collect(),
        Rule::RandomByFree => eligible
            .filter_map(|(index, branch)| Some((index, branch.space?.available_bytes)))
            .filter(|(_, weight)| *weight > 0)
            .collect(),
        _ => return Vec::new(),
    };
    let total: f64 = weights.iter().map(|(_, weight)| *weight as f64).sum();
    weights
        .into_iter()
        .map(|(index, weight)| (index, weight as f64 / total))
        .collect()
}

/// The rule's choice; empty if nothing is eligible, or nothing available for a weighted choice.
pub(super) fn pick<'a>(
    rule: Rule,
    eligible: impl Iterator<Item = (usize, &'a BranchFacts)> + Clone,
    random: &mut dyn FnMut() -> u64,
) -> Choice {
    let mut indexes = eligible.clone().map(|(index, _)| index);
    let spaces = eligible
        .clone()
        .filter_map(|(index, branch)| Some((index, branch.space?)));
    // `max_by` takes the last of equals and `min_by` the first: which one is used is what makes
    // the documented ties.
    let one = match rule {
        Rule::All => return indexes.collect(),
        Rule::First => indexes.next(),
        Rule::LeastFree => index_of(spaces.max_by_key(|(_, space)| Reverse(space.available_bytes))),
        Rule::MostFree => index_of(spaces.max_by_key(|(_, space)| space.available_bytes)),
        Rule::LeastUsed => index_of(spaces.min_by_key(|(_, space)| space.used_bytes)),
        Rule::LeastUsedShare => index_of(spaces.min_by(|(_, a), (_, b)| by_used_share(a, b))),
        Rule::RandomByFree => by_weight(spaces, random),
        Rule::Random => one_of(indexes, random),
        Rule::Newest => index_of(eligible.max_by_key(|(_, branch)| branch.mtime_ns)),
    };
    one.into_iter().collect()
}

fn index_of<Of>(found: Option<(usize, Of)>) -> Option<usize> {
    found.map(|(index, _)| index)
}

/// Orders by used / (used + available) without rounding.
fn by_used_share(one: &Space, other: &Space) -> Ordering {
    // Cross multiplication of the shares, with used·used dropped from both sides: what is left
    // fits 128 bits for all values. A size of nothing would equal every share; it counts as unused.
    let parts = |space: &Space| match (space.used_bytes, space.available_bytes) {
        (0, 0) => (0, 1),
        (used, available) => (u128::from(used), u128::from(available)),
    };
    let (one_used, one_available) = parts(one);
    let (other_used, other_available) = parts(other);
    (one_used * other_available).cmp(&(other_used * one_available))
}

/// One branch, in proportion to its available bytes; none if there are none anywhere.
fn by_weight(
    spaces: impl Iterator<Item = (usize, Space)> + Clone,
    random: &mut dyn FnMut() -> u64,
) -> Option<usize> {
    let weight = |space: Space| u128::from(space.available_bytes);
    let total: u128 = spaces.clone().map(|(_, space)| weight(space)).sum();
    let mut left = below(total, random)?;
    for (index, space) in spaces {
        if left < weight(space) {
            return Some(index);
        }
        left -= weight(space);
    }
    None
}

/// One index, all alike.
fn one_of(
    mut indexes: impl Iterator<Item = usize> + Clone,
    random: &mut dyn FnMut() -> u64,
) -> Option<usize> {
    let nth = below(indexes.clone().count() as u128, random)?;
    indexes.nth(usize::try_from(nth).ok()?)
}
