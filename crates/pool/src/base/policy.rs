//! Which branches an operation goes to.
//!
//! A policy is a pure function: from facts about the branches to a choice or an errno. It makes
//! no system calls and keeps no state, so the caller decides what to gather ([`needs`] says what
//! is looked at) and how old it may be.
//!
//! # What a branch must be
//!
//! The first reason that holds is the branch's refusal:
//!
//! | reason | create | action | search |
//! |---|---|---|---|
//! | not usable | ENOENT | ENOENT | ENOENT |
//! | path absent (create: the parent, and only for ep*, msp*, `newest`) | ENOENT | ENOENT | ENOENT |
//! | another owner, or more lets in, than the directory that is shown | EROFS | – | – |
//! | mode RO; for create also NC | EROFS | EROFS | – |
//! | space unknown (search: only where the policy compares space) | ENOENT | ENOENT | ENOENT |
//! | filesystem read-only | EROFS | EROFS | – |
//! | less available than the branch's minimum | ENOSPC | – | – |
//! | no inode left | ENOSPC | – | – |
//!
//! When no branch is left the gravest refusal is the answer: ENOSPC before EROFS before ENOENT,
//! and ENOENT for no branches at all. A full pool thus says so although a read-only branch is in
//! it, which mergerfs does not. Absence is asked before the mode, also unlike mergerfs: a branch
//! without the path has no say, so a path that is nowhere is ENOENT even with read-only branches
//! about, and a path-preserving create answers for the branches that have the parent.
//!
//! # What is chosen among the branches left
//!
//! | policy | choice | ties |
//! |---|---|---|
//! | `all`, `epall` | all, in branch order | |
//! | `ff`, `epff` | the first | |
//! | `lfs`, `eplfs`, `msplfs` | least available | last |
//! | `mfs`, `epmfs`, `mspmfs` | most available | last |
//! | `lus`, `eplus`, `msplus` | least used | first |
//! | `lup` | least used share of used and available; an empty size counts as unused | first |
//! | `pfrd`, `eppfrd`, `msppfrd` | random, in proportion to the bytes available | |
//! | `rand`, `eprand` | random, all alike | |
//! | `newest` | latest change time of the content, to the nanosecond | last |
//! | `erofs` | none, always EROFS | |
//!
//! Where nothing at all is available the proportional ones choose none: ENOSPC for create.

use rustix::io::Errno;
use smallvec::SmallVec;
pub use strandfs_options::{Category, Policy};

use plan::{PolicyPlan, graver};
pub use policy_trace::{BranchDecision, PolicyTrace, Refusal, policy_trace};
pub use random::random;

mod pick;
mod plan;
mod policy_trace;
mod random;

/// Whether two search policies pick the same copy: the first in branch order.
pub(crate) fn same_search(a: Policy, b: Policy) -> bool {
    let first = |rule| {
        matches!(
            rule,
            Policy::Ff | Policy::EpFf | Policy::All | Policy::EpAll
        )
    };
    a == b || (first(a) && first(b))
}

#[cfg(test)]
mod tests;

/// Indexes into the facts given, never empty. Of several, an operation that makes or changes one
/// object takes the first; mkdir, mknod, symlink and actions take all, in this order.
pub type Choice = SmallVec<[usize; 4]>;

/// How many directories the msp* policies climb at most. The climb ends at the root; this ends it
/// too should a caller never get there, and no path the kernel resolves in one call is deeper.
const MAX_LEVELS: usize = 4096;

/// What a policy may need to know about one branch.
///
/// What [`needs`] does not ask for is not looked at and may hold anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchFacts {
    /// The branch's mode is RO.
    pub read_only: bool,
    /// The branch's mode is NC.
    pub no_create: bool,
    /// False for a branch that is fenced, missing or otherwise out of the question.
    pub usable: bool,
    /// For create: a new name there would be exposed to others than the directory that users see lets in.
    pub exposes: bool,
    /// The path is there; for create, the directory that is to hold the new object.
    pub exists: bool,
    /// Space of the branch; none if the filesystem would not tell.
    pub space: Option<Space>,
    /// When the content of the path (for create: the directory) last changed, in nanoseconds
    /// since 1970.
    pub mtime_ns: i128,
}

/// The space on a branch's filesystem, taken at the branch's root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes an ordinary user may still write.
    pub available_bytes: u64,
    /// Bytes not available: in use or reserved.
    pub used_bytes: u64,
    /// The filesystem is mounted read-only.
    pub read_only_fs: bool,
    /// Below this many available bytes nothing is created on the branch.
    pub min_free_bytes: u64,
    /// It has a limited number of inodes, and none is left.
    pub no_inodes: bool,
}

/// Which facts a policy looks at, so that no others need gathering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// [`BranchFacts::exists`].
    pub exists: bool,
    /// [`BranchFacts::space`].
    pub space: bool,
    /// [`BranchFacts::mtime_ns`].
    pub mtime: bool,
}

/// The facts `policy` looks at when used in `category`. Mode and usability are always looked at.
pub fn needs(policy: Policy, category: Category) -> Needs {
    PolicyPlan::of(policy, category).map_or(
        Needs {
            exists: false,
            space: false,
            mtime: false,
        },
        |plan| plan.needs(),
    )
}

/// Which branches a change to something that exists goes to.
///
/// # Errors
/// EROFS if the path is on read-only branches only, or the policy is `erofs`; else ENOENT.
pub fn action(
    policy: Policy,
    branches: &[BranchFacts],
    random: &mut dyn FnMut() -> u64,
) -> Result<Choice, Errno> {
    PolicyPlan::of(policy, Category::Action)
        .ok_or(Errno::ROFS)?
        .choose(branches, random)
}

/// Which branches to read something from; only `epall` and `all` answer with more than one.
///
/// # Errors
/// ENOENT if no usable branch has the path; EROFS if the policy is `erofs`.
pub fn search(
    policy: Policy,
    branches: &[BranchFacts],
    random: &mut dyn FnMut() -> u64,
) -> Result<Choice, Errno> {
    PolicyPlan::of(policy, Category::Search)
        .ok_or(Errno::ROFS)?
        .choose(branches, random)
}

/// Which branches something new goes to.
///
/// `levels(0)` gives the facts with `exists` for the directory that is to hold it. The msp*
/// policies then ask for its parent as level 1 and so on, each level once and in order, until a
/// level has a branch for them or there is none (`None`: past the root). Others ask for level 0
/// only. The caller makes on the branch chosen whichever directories lack there.
///
/// # Errors
/// The gravest refusal of all branches on all levels asked for: ENOSPC if a branch would have done
/// but for its free space, EROFS if all were read-only, not for creating, or the policy is
/// `erofs`, else ENOENT.
pub fn create<Facts: AsRef<[BranchFacts]>>(
    policy: Policy,
    mut levels: impl FnMut(usize) -> Option<Facts>,
    random: &mut dyn FnMut() -> u64,
) -> Result<Choice, Errno> {
    let plan = PolicyPlan::of(policy, Category::Create).ok_or(Errno::ROFS)?;
    let mut refusal = Errno::NOENT;
    for level in 0..plan.levels(MAX_LEVELS) {
        let Some(branches) = levels(level) else { break };
        match plan.choose(branches.as_ref(), random) {
            Ok(choice) => return Ok(choice),
            Err(errno) => refusal = graver(refusal, errno),
        }
    }
    Err(refusal)
}
