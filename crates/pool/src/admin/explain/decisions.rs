//! What each function would do with a path, and on the grounds of what.

use std::sync::Arc;

use rustix::fs::Statx;
use rustix::io::Errno;
use strandfs_fuse::{FileKind, NodeId};
use strandfs_options::{Category, Function, Policy};

use crate::admin::explain::{self, OnBranch};
use crate::base::error::Result;
use crate::base::policy::{self, BranchDecision, BranchFacts, PolicyTrace, Refusal, Space};
use crate::base::status::{self, Prospect, count};
use crate::directory::exposed::{self, Barred};
use crate::directory::{Directories, choose, set};
use crate::state::node::Node;
use crate::state::view::View;
use crate::state::{State, paths};

/// A function's policy at work; equal ones are told together.
struct Decision {
    functions: Vec<Function>,
    policy: Policy,
    category: Category,
    policy_trace: PolicyTrace,
    note: Option<&'static str>,
}

/// Why nothing is changed although a policy that means all found something to change.
const ALL_OR_NONE: &str = "a copy on a branch that may not be changed would show again";
const SHOWN_KEPT: &str = "the copy that users see may not be changed";

/// The decisions of every function that applies to the node.
pub(super) fn decisions(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    here: &[OnBranch],
    shown: Option<usize>,
) -> Result<Vec<status::Decision>> {
    let mut told: Vec<Decision> = Vec::new();
    // Each policy is asked once: free space changes, and equal policies should agree.
    let mut asked: Vec<(Policy, Category, PolicyTrace)> = Vec::new();
    let root = node.id == NodeId::ROOT;
    for function in Function::ALL {
        if !applies(function, node.kind, root) {
            continue;
        }
        let policy = view.policy(function);
        let category = function.category();
        let known = asked
            .iter()
            .find(|(of, within, _)| (*of, *within) == (policy, category))
            .map(|(_, _, policy_trace)| policy_trace.clone());
        let policy_trace = match (known, category) {
            (Some(policy_trace), _) => policy_trace,
            (None, Category::Create) => outlook_of_create(pool, view, policy, node)?,
            _ => outlook_of_existing(pool, view, policy, category, node.kind, here),
        };
        asked.push((policy, category, policy_trace.clone()));
        let decision = settle(
            function,
            policy,
            category,
            policy_trace,
            shown,
            here,
            node.kind,
        );
        let same = told.iter_mut().find(|other| {
            other.policy == policy
                && other.category == category
                && other.policy_trace == decision.policy_trace
                && other.note == decision.note
        });
        match same {
            Some(same) => same.functions.push(function),
            None => told.push(decision),
        }
    }
    Ok(told
        .iter()
        .map(|decision| decision.told(view, here, node.kind))
        .collect())
}

fn outlook_of_existing(
    pool: &State,
    view: &View,
    policy: Policy,
    category: Category,
    kind: FileKind,
    here: &[OnBranch],
) -> PolicyTrace {
    let holders = here.iter().filter(|on| on.holds(kind).is_some()).count();
    let facts: Vec<BranchFacts> = here
        .iter()
        .map(|on| {
            let stat = on.holds(kind);
            let mut facts = choose::facts(pool, view, &on.branch, stat.is_some(), true, stat);
            // A single copy is changed without asking for space.
            if holders == 1 && facts.exists {
                facts.space = facts.space.or(Some(Space::default()));
            }
            facts
        })
        .collect();
    policy::policy_trace(policy, category, |_| Some(&facts))
}

fn outlook_of_create(
    pool: &Directories,
    view: &View,
    policy: Policy,
    node: &Arc<Node>,
) -> Result<PolicyTrace> {
    let (dir, set) = explain::place_for_new(pool, node)?;
    let needs = policy::Needs {
        exists: true,
        space: true,
        mtime: true,
    };
    let told = |barred: &Barred| {
        let mut level_node = Some(Arc::clone(&dir));
        policy::policy_trace(policy, Category::Create, |level| {
            let at = level_node.take()?;
            let upper = match level {
                0 => Arc::clone(&set),
                _ => set::dir_set(pool, &at).ok()?,
            };
            level_node = paths::parent_of(pool, &at);
            let facts = choose::create_facts(pool, view, &upper, needs, (&[], barred));
            Some(facts)
        })
    };
    // What root makes is nobody else's.
    const MAKER: u32 = 0;
    let is_done = |trace: &PolicyTrace| trace.errno.is_none();
    Ok(exposed::with_least(
        pool,
        view,
        (&dir, &set),
        MAKER,
        told,
        is_done,
    ))
}

/// Whether the kernel ever sends this function for such a file.
fn applies(function: Function, kind: FileKind, root: bool) -> bool {
    match function {
        Function::Readlink => kind == FileKind::Symlink,
        Function::Open | Function::Truncate => kind == FileKind::Regular,
        Function::Rmdir => kind == FileKind::Directory && !root,
        Function::Rename => !root,
        Function::Unlink | Function::Link => kind != FileKind::Directory,
        Function::Chmod => kind != FileKind::Symlink,
        _ => true,
    }
}

/// What becomes of the policy's choice: some functions use its first branch only, and those that
/// must reach every copy do nothing where they cannot.
fn settle(
    function: Function,
    policy: Policy,
    category: Category,
    mut policy_trace: PolicyTrace,
    shown: Option<usize>,
    here: &[OnBranch],
    kind: FileKind,
) -> Decision {
    let mut note = None;
    let uses_first = category == Category::Search || function == Function::Create;
    if uses_first {
        let chosen = |prospect: &&mut BranchDecision| **prospect == BranchDecision::Chosen;
        for prospect in policy_trace.branches.iter_mut().filter(chosen).skip(1) {
            *prospect = BranchDecision::PassedOver("an earlier branch is used");
        }
    }
    if category == Category::Action
        && matches!(policy, Policy::All | Policy::EpAll)
        && policy_trace.errno.is_none()
    {
        let kept = |index: usize| policy_trace.branches.get(index) != Some(&BranchDecision::Chosen);
        let held = |index: &usize| here.get(*index).is_some_and(|on| on.holds(kind).is_some());
        let removes = matches!(
            function,
            Function::Unlink | Function::Rmdir | Function::Rename
        );
        let each_must = removes && (0..here.len()).filter(held).any(kept);
        let shown_must = !removes && function != Function::Link && shown.is_some_and(kept);
        if each_must || shown_must {
            policy_trace.errno = Some(Errno::ROFS);
            note = Some(if each_must { ALL_OR_NONE } else { SHOWN_KEPT });
        }
    }
    Decision {
        functions: vec![function],
        policy,
        category,
        policy_trace,
        note,
    }
}

impl Decision {
    fn told(&self, view: &View, here: &[OnBranch], kind: FileKind) -> status::Decision {
        let branches = self
            .policy_trace
            .branches
            .iter()
            .enumerate()
            .map(|(index, prospect)| {
                let branch = view.branches.get(index);
                let (verdict, chance, reason) = self.verdict(prospect, here.get(index), kind);
                Prospect {
                    branch: count(index),
                    path: branch.map(|branch| branch.path.to_string_lossy().into_owned()),
                    verdict: verdict.to_owned(),
                    chance,
                    reason,
                }
            })
            .collect();
        let category = match self.category {
            Category::Action => "action",
            Category::Create => "create",
            Category::Search => "search",
        };
        let errno = self.policy_trace.errno;
        let functions = self.functions.iter();
        status::Decision {
            functions: functions.map(|f| f.name().to_owned()).collect(),
            category: category.to_owned(),
            policy: self.policy.name().to_owned(),
            error: errno.map(|errno| errno_name(errno).to_owned()),
            note: self.note.map(str::to_owned),
            directories_up: count(self.policy_trace.level),
            branches,
        }
    }

    fn verdict(
        &self,
        prospect: &BranchDecision,
        on: Option<&OnBranch>,
        kind: FileKind,
    ) -> (&'static str, Option<f64>, Option<String>) {
        match prospect {
            BranchDecision::Chosen if self.policy_trace.errno.is_some() => {
                ("passed over", None, self.note.map(str::to_owned))
            }
            BranchDecision::Chosen => ("used", Some(1.0), None),
            BranchDecision::Chance(share) => ("possible", Some(*share), None),
            BranchDecision::PassedOver(reason) => {
                ("passed over", Some(0.0), Some((*reason).to_owned()))
            }
            BranchDecision::Refused(Refusal::Absent) => {
                ("refused", Some(0.0), Some(self.absence(on, kind)))
            }
            BranchDecision::Refused(refusal) => ("refused", Some(0.0), Some(refusal.to_string())),
        }
    }

    /// Why the branch counts as one that has nothing there.
    fn absence(&self, on: Option<&OnBranch>, kind: FileKind) -> String {
        if self.category == Category::Create {
            return "the directory is not on this branch".to_owned();
        }
        let hidden = |stat: &Statx| crate::state::identity::kind_of(stat) != kind;
        match on.map(|on| (&on.found, on.parent)) {
            Some((Ok(stat), _)) if hidden(stat) => {
                "something of another kind has this name here and is hidden".to_owned()
            }
            Some((Err(Errno::NOENT), false)) => {
                "the directory that holds it is not on this branch".to_owned()
            }
            Some((Err(Errno::NOENT), true)) | None | Some((Ok(_), _)) => {
                Refusal::Absent.to_string()
            }
            Some((Err(errno), _)) => format!("the branch cannot be asked: {errno}"),
        }
    }
}

fn errno_name(errno: Errno) -> &'static str {
    match errno {
        Errno::ROFS => "EROFS",
        Errno::NOSPC => "ENOSPC",
        _ => "ENOENT",
    }
}
