//! A second, plain telling of what the policies do, branch by branch in the manner of mergerfs:
//! slow, allocating and exact. Deliberately shares nothing with the code it checks.

use std::cmp::Ordering;

use rustix::io::Errno;
use strandfs_options::{Category, Policy};

use crate::base::policy::{BranchFacts, Space};

/// What the model says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Exactly these.
    All(Vec<usize>),
    /// Any one of these.
    OneOf(Vec<usize>),
    Refused(Errno),
}

pub(super) fn answer(category: Category, policy: Policy, branches: &[BranchFacts]) -> Answer {
    if policy == Policy::ErofsAlways {
        return Answer::Refused(Errno::ROFS);
    }
    let mut eligible = Vec::new();
    let (mut full, mut read_only) = (false, false);
    for (index, facts) in branches.iter().enumerate() {
        match refusal(category, policy, facts) {
            None => eligible.push(index),
            Some(Errno::NOSPC) => full = true,
            Some(Errno::ROFS) => read_only = true,
            Some(_) => {}
        }
    }
    let name = policy.name();
    if name.ends_with("pfrd") {
        let before = eligible.len();
        let any = eligible
            .iter()
            .any(|index| space(&branches[*index]).available_bytes > 0);
        if any || category == Category::Create {
            eligible.retain(|index| space(&branches[*index]).available_bytes > 0);
        }
        full |= eligible.is_empty() && before > 0 && category == Category::Create;
    }
    if eligible.is_empty() {
        return Answer::Refused(match (full, read_only) {
            (true, _) => Errno::NOSPC,
            (false, true) => Errno::ROFS,
            (false, false) => Errno::NOENT,
        });
    }
    if name.ends_with("rand") || name.ends_with("pfrd") {
        return Answer::OneOf(eligible);
    }
    if name.ends_with("all") {
        return Answer::All(eligible);
    }
    let mut best = eligible[0];
    for &index in &eligible[1..] {
        if replaces(name, &branches[best], &branches[index]) {
            best = index;
        }
    }
    Answer::All(vec![best])
}

fn refusal(category: Category, policy: Policy, facts: &BranchFacts) -> Option<Errno> {
    let name = policy.name();
    let bound_to_path = category != Category::Create
        || name == "newest"
        || name.starts_with("ep")
        || name.starts_with("msp");
    let by_space = ["lfs", "mfs", "lus", "lup", "pfrd"]
        .iter()
        .any(|end| name.ends_with(end));
    if !facts.usable {
        return Some(Errno::NOENT);
    }
    if bound_to_path && !facts.exists {
        return Some(Errno::NOENT);
    }
    if category == Category::Search {
        return if by_space && facts.space.is_none() {
            Some(Errno::NOENT)
        } else {
            None
        };
    }
    if facts.read_only || (facts.no_create && category == Category::Create) {
        return Some(Errno::ROFS);
    }
    let Some(space) = facts.space else {
        return Some(Errno::NOENT);
    };
    if space.read_only_fs {
        return Some(Errno::ROFS);
    }
    let lacks = space.available_bytes < space.min_free_bytes || space.no_inodes;
    if category == Category::Create && lacks {
        return Some(Errno::NOSPC);
    }
    None
}

/// Whether `next`, which comes later, is preferred to `best`.
fn replaces(name: &str, best: &BranchFacts, next: &BranchFacts) -> bool {
    if name.ends_with("ff") {
        return false;
    }
    if name == "newest" {
        return next.mtime_ns >= best.mtime_ns;
    }
    let (best, next) = (space(best), space(next));
    match &name[name.len() - 3..] {
        "lfs" => next.available_bytes <= best.available_bytes,
        "mfs" => next.available_bytes >= best.available_bytes,
        "lus" => next.used_bytes < best.used_bytes,
        "lup" => {
            let (next, best) = (share(&next), share(&best));
            compare_fractions(next, best) == Ordering::Less
        }
        other => panic!("no rule for {other}"),
    }
}

fn space(facts: &BranchFacts) -> Space {
    facts.space.expect("eligible branches have known space")
}

fn share(space: &Space) -> (u128, u128) {
    let total = u128::from(space.used_bytes) + u128::from(space.available_bytes);
    (u128::from(space.used_bytes), total.max(1))
}

/// By continued fractions, which cannot overflow.
fn compare_fractions((a, b): (u128, u128), (c, d): (u128, u128)) -> Ordering {
    let by_whole = (a / b).cmp(&(c / d));
    if by_whole != Ordering::Equal {
        return by_whole;
    }
    match (a % b, c % d) {
        (0, 0) => Ordering::Equal,
        (0, _) => Ordering::Less,
        (_, 0) => Ordering::Greater,
        (left, right) => compare_fractions((d, right), (b, left)),
    }
}
