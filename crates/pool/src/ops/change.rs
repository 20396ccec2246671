//! Acting on the copies of a node: which there are, which a policy picks, whose outcome counts.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, Statx, StatxAttributes};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::Context;
use strandfs_options::{Function, Policy};

use crate::base::branch::{Branch, BranchId, is_dead_server};
use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::metadata::is_fixed;
use crate::base::policy::{self, BranchFacts, Category, same_search};
use crate::base::rights::{AllRights, Rights, strictest};
use crate::base::sys;
use crate::coherence::{Coherent, invalidate, remembered};
use crate::directory::locate::{self, Located};
use crate::directory::set::{self, Freshness, SlowBranches};
use crate::directory::{Directories, choose};
use crate::ops::alteration::{Alteration, Now, Role, TakeBack};
use crate::ops::hidden_copies::{self, Power};
use crate::ops::owner::{Actor, Asked};
use crate::ops::todays_rights::TodaysRights;
use crate::state::identity::kind_of;
use crate::state::node::{DirSet, Name, Node};
use crate::state::view::View;

/// One copy of a node.
pub(crate) struct Holder {
    /// Where.
    pub branch: Arc<Branch>,
    /// The inode, `O_PATH` or open.
    pub fd: Arc<OwnedFd>,
    /// It is the node's own inode, the one users see.
    pub primary: bool,
    stat: Option<Statx>,
    /// Its attributes before a change, where no other request changes them meanwhile.
    before: Option<Statx>,
    /// As whom it is changed, if only its owner may.
    actor: Option<Actor>,
}

impl Holder {
    fn new(branch: &Arc<Branch>, fd: Arc<OwnedFd>, primary: bool) -> Self {
        Holder {
            branch: Arc::clone(branch),
            fd,
            primary,
            stat: None,
            before: None,
            actor: None,
        }
    }

    /// Makes a change of it.
    fn change(&self, change: &dyn Alteration, role: Role) -> sys::Result<()> {
        let fd = self.fd.as_fd();
        (self.branch).call(Call::Change, || match &self.actor {
            Some(actor) => actor.act(|bits| change.make_without(bits, fd, role)),
            None => change.make(fd, role),
        })
    }

    /// Its attributes: as it was found, or asked for now.
    ///
    /// # Errors
    /// Those of `statx(2)` on the branch.
    pub(crate) fn attributes(&self) -> Result<Statx> {
        match self.stat {
            Some(stat) => Ok(stat),
            None => sys::statx_fd(self.fd.as_fd()).map_err(|errno| Error::at(&self.branch, errno)),
        }
    }

    fn located(&self) -> Located {
        Located {
            branch: Arc::clone(&self.branch),
            fd: Arc::clone(&self.fd),
        }
    }
}

pub(crate) type Holders = SmallVec<[Holder; 2]>;

/// Branches that have a name, with its attributes there.
pub(crate) type NameHolders = SmallVec<[(Arc<Branch>, Statx); 2]>;

/// Every copy of a node that branches tell of, in branch order: a directory's directories; a file's own inode
/// and the files of the same name on other branches.
pub(crate) fn holders(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    with_stat: bool,
) -> Result<Holders> {
    Ok(holders_and_failure(pool, view, node, with_stat)?.0)
}

/// Those from which an action policy picks, as it needs them.
///
/// # Errors
/// Where it picks all, the failure of a branch to tell whether it has a copy: that one would keep what the
/// others lose, a mode that lets others in.
pub(crate) fn holders_for(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    rule: Policy,
) -> Result<Holders> {
    let with_stat = policy::needs(rule, Category::Action).mtime;
    match holders_and_failure(pool, view, node, with_stat)? {
        (_, Some(failure)) if takes_all(rule) => Err(failure),
        (holders, _) => Ok(holders),
    }
}

fn takes_all(rule: Policy) -> bool {
    matches!(rule, Policy::All | Policy::EpAll)
}

fn holders_and_failure(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    with_stat: bool,
) -> Result<(Holders, Option<Error>)> {
    let (mut holders, failure): (Holders, _) = if node.is_dir() {
        // With a branch that cannot tell there is no set.
        let set = set::dir_set(pool, node)?;
        let entries = set.entries.iter().enumerate();
        let holders =
            entries.map(|(index, dir)| Holder::new(&dir.branch, Arc::clone(&dir.fd), index == 0));
        (holders.collect(), None)
    } else {
        let own = locate::locate(pool, node)?;
        let (mut holders, failure) = namesakes_and_failure(pool, view, node, own.branch.id);
        holders.push(Holder::new(&own.branch, own.fd, true));
        holders.sort_by_key(|holder| view.position(holder.branch.id));
        (holders, failure)
    };
    if with_stat {
        for holder in &mut holders {
            holder.stat = sys::statx_fd(holder.fd.as_fd()).ok();
        }
    }
    Ok((holders, failure))
}

/// The symlink of a node that is shown as what the link leads to.
pub(crate) fn holder_of_link(pool: &Directories, node: &Arc<Node>) -> Result<Holders> {
    let own = locate::locate_link(pool, node)?;
    Ok(smallvec![Holder::new(&own.branch, own.fd, true)])
}

/// Files of the node's newest name and kind on branches other than its own. A name that leads to
/// another file by now is none of the node's: whatever bears it elsewhere is not its copy.
pub(crate) fn namesakes(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    own: BranchId,
) -> Holders {
    namesakes_and_failure(pool, view, node, own).0
}

fn namesakes_and_failure(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    own: BranchId,
) -> (Holders, Option<Error>) {
    if view.branches.len() < 2 {
        return (Holders::new(), None);
    }
    let names: SmallVec<[Name; 1]> = node.place().names.iter().cloned().collect();
    for (index, name) in names.iter().enumerate() {
        let Some(set) = pool.nodes.get(name.parent).and_then(|parent| {
            set::dir_set_of(pool, &parent, Freshness::Trusted, SlowBranches::Ask).ok()
        }) else {
            continue;
        };
        let (found, failure) = files_named(pool, view, node, &set, (&name.name, own));
        // Most files have one name, and no other branch has it: nothing depends on the name then.
        let is_last = index + 1 == names.len();
        let are_none = found.is_empty() && failure.is_none();
        if (are_none && is_last) || locate::leads_to(pool, node, &set, &name.name) {
            return (found, failure);
        }
    }
    (Holders::new(), None)
}

/// Files of that name, and the node's kind, in a directory on other branches than its own; the first failure of
/// a branch to tell.
fn files_named(
    pool: &Directories,
    view: &View,
    node: &Node,
    set: &DirSet,
    (name, own): (&OsStr, BranchId),
) -> (Holders, Option<Error>) {
    let (mut found, mut failure) = (Holders::new(), set.probe_error);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let remembered = remembered::remembered(pool, view, set);
    let others = set.entries.iter().filter(|entry| entry.branch.id != own);
    for entry in others.filter(|entry| !remembered.lacks(entry, name)) {
        let look = || {
            let fd = rustix::fs::openat(&entry.fd, name, flags, Mode::empty())?;
            let stat = sys::statx_fd(fd.as_fd())?;
            Ok((fd, stat))
        };
        let (fd, stat) = match look() {
            Ok(copy) => copy,
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(errno) => {
                failure = failure.or(Some(Error::at(&entry.branch, errno)));
                continue;
            }
        };
        let admitted =
            pool.volumes
                .mounts
                .admit(entry.branch.id, &stat, fd.as_fd(), OsStr::new(""));
        if kind_of(&stat) == node.kind && admitted.is_ok() {
            let mut holder = Holder::new(&entry.branch, Arc::new(fd), false);
            holder.stat = Some(stat);
            found.push(holder);
        }
    }
    (found, failure)
}

/// The copies that the policy picks for a change by a caller of that power, the one that users see first.
///
/// # Errors
/// EROFS if none may be changed, or not the one that users see where the policy means all; as for [`holders_for`]
/// and [`Node::counts`].
pub(crate) fn picked_copies(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    rule: Policy,
    (cx, power): (&Context<'_>, Power),
) -> Result<Holders> {
    node.counts()?;
    let mut holders = holders_for(pool, view, node, rule)?;
    if !node.is_dir() {
        hidden_copies::leave_out_those_of_others(view, cx, power, &mut holders)?;
    }
    let listed: SmallVec<[(Arc<Branch>, Option<Statx>); 2]> = holders
        .iter()
        .map(|holder| (Arc::clone(&holder.branch), holder.stat))
        .collect();
    let picked = choose::pick_for_action(pool, view, rule, &listed)?;
    let mut copies: Holders = holders
        .into_iter()
        .enumerate()
        .filter(|(index, _)| picked.contains(index))
        .map(|(_, holder)| holder)
        .collect();
    copies.sort_by_key(|copy| !copy.primary);
    match copies.first() {
        None => Err(Errno::NOENT.into()),
        Some(first) if takes_all(rule) && !first.primary => Err(Errno::ROFS.into()),
        Some(_) => Ok(copies),
    }
}

/// As [`picked_copies`], for a change that `chattr` can forbid.
///
/// # Errors
/// EPERM, too, if one of several is immutable.
pub(crate) fn copies_to_change(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    rule: Policy,
    asks: (&Context<'_>, Power),
) -> Result<Holders> {
    let mut copies = picked_copies(pool, view, node, rule, asks)?;
    if copies.len() > 1 {
        for copy in &mut copies {
            let stat = sys::statx_fd(copy.fd.as_fd())?;
            if stat.stx_attributes.contains(StatxAttributes::IMMUTABLE) {
                return Err(Error::at(&copy.branch, Errno::PERM));
            }
            // Who changes a directory holds its attributes; a file's are anybody's.
            copy.before = node.is_dir().then_some(stat);
        }
    }
    let (cx, power) = asks;
    match power {
        Power::WriteUnasked => {}
        Power::Write | Power::Touch | Power::Annotate | Power::Secure | Power::TakeCapability => {
            check_rights(pool, view, cx, (node, power), &copies)?;
        }
        Power::Own | Power::Mode(_) | Power::List { .. } | Power::Unasked | Power::Give(..) => {
            name_actors(pool, view, cx, (node, power), &mut copies)?;
        }
    }
    Ok(copies)
}

/// Looks who asks for a change that takes no owner, where the kernel has judged by other rights than
/// today's: of a file the copy that is shown, of a directory all. Of a file's other copies
/// [`hidden_copies::leave_out_those_of_others`] has left out what it takes more for.
///
/// # Errors
/// EACCES or EPERM for a caller who may not change one; the kernel is told to look again.
fn check_rights(
    pool: &Directories,
    view: &View,
    cx: &Context<'_>,
    (node, power): (&Arc<Node>, Power),
    copies: &Holders,
) -> Result<()> {
    let today = TodaysRights::of(pool, view, cx, node);
    let shown = match node.is_dir() || copies.iter().any(|copy| copy.primary) {
        true => None,
        false => {
            let located = locate::locate(pool, node)?;
            Some(Holder::new(&located.branch, located.fd, true))
        }
    };
    let judged = (copies.iter().chain(&shown)).filter(|copy| copy.primary || node.is_dir());
    let mut rights = SmallVec::<[(&Holder, Rights); 2]>::new();
    for copy in judged {
        let stat = copy.before.map_or_else(|| copy.attributes(), Ok)?;
        rights.push((copy, Rights::of(&stat)));
    }
    let all: AllRights = rights.iter().map(|(_, rights)| *rights).collect();
    if strictest(&all).is_none_or(|shown| today.are_those_told(&shown)) {
        return Ok(());
    }
    for (copy, now) in &rights {
        let fd = copy.fd.as_fd();
        let checked = match power {
            Power::Touch => today.check_toucher(fd, now),
            Power::Annotate => today.check_annotator(fd, now),
            Power::Secure => today.check_securer(now),
            Power::TakeCapability => today.check_taker(fd, now),
            _ => today.check_writer(fd, now),
        };
        if let Err(errno) = checked {
            invalidate::drop_attributes(pool, node);
            return Err(Error::at(&copy.branch, errno));
        }
    }
    Ok(())
}

/// Finds out as whom each copy is changed.
///
/// # Errors
/// EPERM for a caller who may not change one; the kernel, which took the caller for somebody who may,
/// is told to look again.
fn name_actors(
    pool: &Directories,
    view: &View,
    cx: &Context<'_>,
    (node, power): (&Arc<Node>, Power),
    copies: &mut Holders,
) -> Result<()> {
    let mut stats = SmallVec::<[Statx; 2]>::new();
    for copy in copies.iter() {
        stats.push(copy.before.map_or_else(|| copy.attributes(), Ok)?);
    }
    let first = stats.first().map(|stat| stat.stx_uid);
    let asked = Asked {
        view,
        cx,
        told: node.rights_told.told(),
        // Then the kernel was told that it is root's.
        of_several_owners: stats.iter().any(|stat| Some(stat.stx_uid) != first),
        power,
    };
    for (copy, stat) in copies.iter_mut().zip(&stats) {
        match asked.actor_on(stat) {
            Ok(actor) => copy.actor = Some(actor),
            Err(errno) => {
                invalidate::drop_attributes(pool, node);
                return Err(Error::at(&copy.branch, errno));
            }
        }
    }
    Ok(())
}

/// Changes every copy the policy picks, or none, see [`change_each`].
///
/// # Errors
/// As for [`copies_to_change`]; else the first refusal.
pub(crate) fn change_copies(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    rule: Policy,
    asks: (&Context<'_>, Power),
    change: &dyn Alteration,
) -> Result<()> {
    let _held = node.is_dir().then(|| node.hold_attributes());
    change_each(&copies_to_change(pool, view, node, rule, asks)?, change)
}

/// Whether a search policy always picks the copy that is shown.
pub(crate) fn is_of_shown_copy(view: &View, rule: Policy) -> bool {
    view.branches.len() < 2 || same_search(rule, view.policy(Function::Getattr))
}

/// The copy of a node that the search policy `rule` picks.
pub(crate) fn locate_by(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    rule: Policy,
) -> Result<Located> {
    if is_of_shown_copy(view, rule) {
        return locate::locate(pool, node);
    }
    let needs = policy::needs(rule, Category::Search);
    let holders = self::holders(pool, view, node, needs.mtime)?;
    let facts: SmallVec<[BranchFacts; 4]> = holders
        .iter()
        .map(|holder| {
            choose::facts(
                pool,
                view,
                &holder.branch,
                true,
                needs.space,
                holder.stat.as_ref(),
            )
        })
        .collect();
    let choice = policy::search(rule, &facts, &mut policy::random())?;
    let index = choice.first().copied().ok_or(Errno::NOENT)?;
    holders
        .get(index)
        .map(Holder::located)
        .ok_or(Errno::NOENT.into())
}

/// The branches (in order) on which `name` exists in a directory, with attributes.
pub(crate) fn branches_with(
    pool: &Coherent,
    set: &crate::state::node::DirSet,
    name: &OsStr,
) -> Result<NameHolders> {
    let mut found = SmallVec::new();
    let remembered = remembered::remembered(pool, &pool.view(), set);
    for entry in &set.entries {
        match remembered.look(entry, name) {
            Ok(stat) => found.push((Arc::clone(&entry.branch), stat)),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            // Acting while one branch cannot answer could leave a name half removed.
            Err(errno) => return Err(Error::at(&entry.branch, errno)),
        }
    }
    Ok(found)
}

/// Changes these copies, or none: the one that users see first, and if another refuses, those before
/// it are put back. A branch whose filesystem cannot do such a thing at all is passed over, unless
/// it has the copy that users see.
///
/// # Errors
/// The first refusal.
pub(crate) fn change_each(copies: &[Holder], change: &dyn Alteration) -> Result<()> {
    if let [only] = copies {
        return only.change(change, Role::Leading).map_err(|errno| {
            let error = Error::at(&only.branch, errno);
            match change.may_be_made(only.fd.as_fd(), errno) {
                true => error.after_effect(),
                false => error,
            }
        });
    }
    let mut done: SmallVec<[(&Holder, TakeBack<'_>); 2]> = SmallVec::new();
    for (index, copy) in copies.iter().enumerate() {
        let role = if index == 0 {
            Role::Leading
        } else {
            Role::Following
        };
        let now = Now {
            fd: copy.fd.as_fd(),
            stat: copy.before.as_ref(),
        };
        let outcome = change.way_back(now).and_then(|way| {
            let outcome = copy.change(change, role);
            if may_be_made(outcome) {
                done.push((copy, way));
            }
            outcome
        });
        match outcome {
            Ok(()) => {}
            Err(errno)
                if role == Role::Following
                    && change.may_pass_over()
                    && passed_over(copy, errno) =>
            {
                tracing::debug!(branch = %copy.branch.path.display(), %errno, "a copy cannot be changed like the one that is shown");
            }
            Err(errno) => {
                put_back(done);
                return Err(Error::at(&copy.branch, errno));
            }
        }
    }
    Ok(())
}

/// Whether a change is one to be taken back. btrfs at its quota makes it, and then cannot note it; a server makes
/// it, and its answer is lost.
fn may_be_made(outcome: sys::Result<()>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(Errno::NOSPC | Errno::DQUOT) => true,
        Err(Errno::IO | Errno::INTR | Errno::STALE | Errno::TIMEDOUT) => true,
        Err(errno) => is_dead_server(errno),
    }
}

/// Whether a copy that users do not see is left as it is: its filesystem has no such thing, or
/// gives the server no right to it (FAT, NFS). One that somebody fixed on purpose is not.
fn passed_over(copy: &Holder, errno: Errno) -> bool {
    match errno {
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => true,
        Errno::PERM | Errno::ACCESS => {
            sys::statx_fd(copy.fd.as_fd()).is_ok_and(|stat| !is_fixed(&stat))
        }
        _ => false,
    }
}

fn put_back(done: SmallVec<[(&Holder, TakeBack<'_>); 2]>) {
    for (copy, way) in done.into_iter().rev() {
        // What was set-id is to be so again, whoever asked for the change.
        let back = sys::want_fsetid(true).and_then(|()| way(copy.fd.as_fd()));
        if let Err(errno) = back {
            tracing::error!(branch = %copy.branch.path.display(), %errno, "a change that another branch refused could not be taken back");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::BorrowedFd;

    use strandfs_options::Settings;

    use super::*;

    /// A change of mode that the second copy makes, and then refuses.
    struct MadeAndRefused(Cell<usize>, Errno);

    impl Alteration for MadeAndRefused {
        fn make(&self, fd: BorrowedFd<'_>, _role: Role) -> sys::Result<()> {
            sys::chmod(fd, Mode::from_raw_mode(0o711))?;
            self.0.set(self.0.get() + 1);
            match self.0.get() {
                2 => Err(self.1),
                _ => Ok(()),
            }
        }

        fn way_back(&self, now: Now<'_>) -> sys::Result<TakeBack<'_>> {
            let mode = rustix::fs::fstat(now.fd)?.st_mode & 0o7777;
            Ok(Box::new(move |fd| {
                sys::chmod(fd, Mode::from_raw_mode(mode))
            }))
        }
    }

    #[test]
    fn a_change_that_was_made_and_refused_is_taken_back_on_every_copy() {
        let house = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        for name in ["a", "b"] {
            let branch = house.path().join(name);
            std::fs::create_dir(&branch).unwrap();
            settings.add_branches(branch.to_str().unwrap()).unwrap();
        }
        let holder = |at: usize| {
            let branch = Branch::open(BranchId(at as u16), &settings.pool.branches[at]).unwrap();
            let fd = branch.root_shared();
            sys::chmod(fd.as_fd(), Mode::from_raw_mode(0o750)).unwrap();
            Holder {
                branch: Arc::new(branch),
                fd,
                primary: at == 0,
                stat: None,
                before: None,
                actor: None,
            }
        };
        let copies = [holder(0), holder(1)];
        for refusal in [Errno::DQUOT, Errno::IO, Errno::INTR] {
            let change = MadeAndRefused(Cell::new(0), refusal);
            let refused = change_each(&copies, &change).unwrap_err();
            assert_eq!(
                (refused.errno, refused.branch),
                (refusal, Some(BranchId(1)))
            );
            for copy in &copies {
                let mode = rustix::fs::fstat(&copy.fd).unwrap().st_mode & 0o7777;
                assert_eq!(mode, 0o750, "{refusal}");
            }
        }
    }
}
