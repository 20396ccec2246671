//! Gathering what a policy needs to know, and asking it.

use std::sync::Arc;

use rustix::fs::{StatVfs, Statx};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_options::Policy;

use crate::base::branch::{Branch, BranchId};
use crate::base::error::{Error, Result};
use crate::base::policy::{self, BranchFacts, Category};
use crate::base::sys;
use crate::directory::exposed::{self, Barred};
use crate::directory::{Directories, deadline, set};
use crate::state::node::{DirSet, Node};
use crate::state::view::View;
use crate::state::{State, paths};

/// Branches picked for an operation, the first to be used first.
pub(crate) type Picked = SmallVec<[Arc<Branch>; 2]>;

/// What is known of one branch; `exists` says whether the path (for create: its parent) is
/// there.
pub(crate) fn facts(
    pool: &State,
    view: &View,
    branch: &Branch,
    exists: bool,
    with_space: bool,
    stat: Option<&Statx>,
) -> BranchFacts {
    let space = if with_space {
        self::space(pool, view, branch).ok()
    } else {
        None
    };
    BranchFacts {
        read_only: branch.read_only(),
        no_create: branch.no_create(),
        usable: true,
        exposes: false,
        exists,
        space,
        mtime_ns: stat.map_or(i128::MIN, mtime_ns),
    }
}

/// What a filesystem has just said of its space, less what it has promised of that. Read only where it was
/// asked, for every file that is made chooses by space; where it cannot be read any more the branch says so.
fn unpromised(branch: &Branch, mut stat: StatVfs) -> StatVfs {
    let promised = branch.promised_bytes().unwrap_or(0) / stat.f_frsize.max(1);
    stat.f_bavail = stat.f_bavail.saturating_sub(promised);
    stat.f_bfree = stat.f_bfree.saturating_sub(promised);
    stat
}

/// A branch's free space.
pub(crate) fn space(pool: &State, view: &View, branch: &Branch) -> Result<policy::Space> {
    let settings = &view.settings;
    let min_free = branch
        .min_free_space
        .as_ref()
        .unwrap_or(&settings.pool.minfreespace);
    let min_free = |total| min_free.bytes(total);
    let ask = || deadline::statvfs(pool, view, branch).map(|stat| unpromised(branch, stat));
    let mut space = branch.space().get(settings.caching.statfs, min_free, ask)?;
    space.read_only_fs |= branch.health().is_read_only();
    // Servers may put anything there.
    space.no_inodes &= !branch.medium().latency.may_hang();
    Ok(space)
}

/// Asks a create policy where something new of `maker` goes in the directory of `node`: where it is exposed to
/// nobody whom the directory that users see keeps out, as long as that has such a copy. Branches in `tried`
/// have refused already.
///
/// # Errors
/// ENOSPC, EROFS or ENOENT: why no branch will have it.
pub(crate) fn pick_for_create(
    pool: &Directories,
    view: &View,
    rule: Policy,
    (node, set): (&Arc<Node>, &DirSet),
    maker: u32,
    tried: &[BranchId],
) -> Result<Picked> {
    let pick = |barred: &Barred| pick_unexposed(pool, view, rule, (node, set), tried, barred);
    let picked = exposed::with_least(pool, view, (node, set), maker, pick, Result::is_ok);
    if let Err(error) = &picked
        && error.errno == Errno::ROFS
    {
        exposed::tell_refusal(pool, view, node, || pick(&Barred::new()));
    }
    picked
}

/// As [`pick_for_create`], for what a move brings, which looks at the directories itself.
///
/// # Errors
/// The same.
pub(crate) fn pick_for_move(
    pool: &Directories,
    view: &View,
    rule: Policy,
    (node, set): (&Arc<Node>, &DirSet),
    tried: &[BranchId],
) -> Result<Picked> {
    pick_unexposed(pool, view, rule, (node, set), tried, &Barred::new())
}

/// Slow branches come last.
fn pick_unexposed(
    pool: &Directories,
    view: &View,
    rule: Policy,
    (node, set): (&Arc<Node>, &DirSet),
    tried: &[BranchId],
    barred: &Barred,
) -> Result<Picked> {
    let among = |tried: &[BranchId]| pick_among(pool, view, rule, (node, set), (tried, barred));
    let slow = |branch: &Arc<Branch>| branch.health().is_slow();
    if view.branches.iter().any(slow) {
        let mut passed_over: SmallVec<[BranchId; 4]> = SmallVec::from_slice(tried);
        let ids = view.branches.iter().filter(|b| slow(b)).map(|b| b.id);
        passed_over.extend(ids);
        let picked = among(&passed_over);
        if picked.is_ok() {
            return picked;
        }
    }
    among(tried)
}

/// Slow branches like others.
fn pick_among(
    pool: &Directories,
    view: &View,
    rule: Policy,
    (node, set): (&Arc<Node>, &DirSet),
    (tried, barred): (&[BranchId], &Barred),
) -> Result<Picked> {
    let needs = policy::needs(rule, Category::Create);
    let mut level_node = Some(Arc::clone(node));
    let mut first = true;
    let choice = policy::create(
        rule,
        |_level| {
            let at = level_node.take()?;
            let upper;
            let here = if std::mem::take(&mut first) {
                set
            } else {
                upper = set::dir_set(pool, &at).ok()?;
                &*upper
            };
            level_node = paths::parent_of(pool, &at);
            Some(create_facts(pool, view, here, needs, (tried, barred)))
        },
        &mut policy::random(),
    )?;
    Ok(choice
        .iter()
        .filter_map(|index| view.branches.get(*index).cloned())
        .collect())
}

pub(crate) fn create_facts(
    pool: &State,
    view: &View,
    set: &DirSet,
    needs: policy::Needs,
    (tried, barred): (&[BranchId], &Barred),
) -> SmallVec<[BranchFacts; 8]> {
    let branches = view.branches.iter().enumerate();
    branches
        .map(|(index, branch)| {
            let entry = set.on(branch.id);
            let stat = if needs.mtime {
                entry.and_then(dir_stat)
            } else {
                None
            };
            let mut facts = self::facts(
                pool,
                view,
                branch,
                entry.is_some(),
                needs.space,
                stat.as_ref(),
            );
            facts.usable = !tried.contains(&branch.id);
            facts.exposes = barred.contains(&index);
            facts
        })
        .collect()
}

/// Asks an action policy which of the branches holding something are to be changed:
/// indexes into `holders`.
///
/// # Errors
/// EROFS or ENOENT if none may be; where all are meant, why a branch does not tell whether it may.
pub(crate) fn pick_for_action(
    pool: &State,
    view: &View,
    rule: Policy,
    holders: &[(Arc<Branch>, Option<Statx>)],
) -> Result<SmallVec<[usize; 4]>> {
    let needs = policy::needs(rule, Category::Action);
    // A read-only filesystem answers EROFS by itself; asking first is only worth it where
    // several branches must agree before any is changed.
    let with_space = needs.space && (holders.len() > 1 || rule == Policy::ErofsAlways);
    let mut facts = SmallVec::<[BranchFacts; 8]>::new();
    for (branch, stat) in holders {
        let mut known = self::facts(pool, view, branch, true, false, stat.as_ref());
        if with_space {
            known.space = match self::space(pool, view, branch) {
                Ok(space) => Some(space),
                // It is not passed over: all are to be changed, or none.
                Err(error) if matches!(rule, Policy::All | Policy::EpAll) => {
                    return Err(Error::at(branch, error));
                }
                Err(_) => None,
            };
        }
        facts.push(known);
    }
    if let [only] = &facts[..]
        && rule != Policy::ErofsAlways
    {
        return if only.read_only {
            Err(Errno::ROFS.into())
        } else {
            Ok(SmallVec::from_slice(&[0]))
        };
    }
    Ok(policy::action(rule, &facts, &mut policy::random())?)
}

fn dir_stat(entry: &crate::state::node::DirEntry) -> Option<Statx> {
    use std::os::fd::AsFd;
    sys::statx_fd(entry.fd.as_fd()).ok()
}

fn mtime_ns(stat: &Statx) -> i128 {
    i128::from(stat.stx_mtime.tv_sec) * 1_000_000_000 + i128::from(stat.stx_mtime.tv_nsec)
}
