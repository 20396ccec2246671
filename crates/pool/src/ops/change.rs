//! Acting on the copies of a node: which there are, which a policy picks, whose outcome counts.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, Statx};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_options::Policy;

use crate::branch::Branch;
use crate::faults::blame;
use crate::identity::kind_of;
use crate::locate::Located;
use crate::node::Node;
use crate::ops::open::same_search;
use crate::policy::{self, BranchFacts, Category};
use crate::pool::{Pool, View};
use crate::sys;

/// One copy of a node.
pub(crate) struct Holder {
    /// Where.
    pub branch: Arc<Branch>,
    /// The inode, `O_PATH` or open.
    pub fd: Arc<OwnedFd>,
    /// It is the node's own inode, the one users see.
    pub primary: bool,
    stat: Option<Statx>,
}

impl Holder {
    fn located(&self) -> Located {
        Located {
            branch: Arc::clone(&self.branch),
            fd: Arc::clone(&self.fd),
        }
    }
}

type Holders = SmallVec<[Holder; 2]>;

/// Branches that have a name, with its attributes there.
pub(crate) type Found = SmallVec<[(Arc<Branch>, Statx); 2]>;

impl Pool {
    /// Every copy of a node, in branch order: a directory's directories; a file's own inode and
    /// the files of the same name on other branches.
    pub(crate) fn holders(
        &self,
        view: &View,
        node: &Arc<Node>,
        with_stat: bool,
    ) -> sys::Result<Holders> {
        let mut holders = if node.is_dir() {
            let set = self.dir_set(node)?;
            let to_holder = |(index, entry): (usize, &crate::node::DirEntry)| Holder {
                branch: Arc::clone(&entry.branch),
                fd: Arc::clone(&entry.fd),
                primary: index == 0,
                stat: None,
            };
            set.entries.iter().enumerate().map(to_holder).collect()
        } else {
            let own = self.locate(node)?;
            let mut holders = self.namesakes(view, node, &own.branch);
            holders.push(Holder {
                branch: own.branch,
                fd: own.fd,
                primary: true,
                stat: None,
            });
            holders.sort_by_key(|holder| view.position(holder.branch.id));
            holders
        };
        if with_stat {
            for holder in &mut holders {
                holder.stat = sys::statx_fd(holder.fd.as_fd()).ok();
            }
        }
        Ok(holders)
    }

    /// The symlink of a node that is shown as what the link leads to.
    pub(crate) fn holder_of_link(&self, node: &Arc<Node>) -> sys::Result<Holders> {
        let own = self.locate_link(node)?;
        let mut holders = Holders::new();
        holders.push(Holder {
            branch: own.branch,
            fd: own.fd,
            primary: true,
            stat: None,
        });
        Ok(holders)
    }

    /// Files of the node's newest name and kind on branches other than its own.
    fn namesakes(&self, view: &View, node: &Arc<Node>, own: &Branch) -> Holders {
        let mut found = Holders::new();
        if view.branches.len() < 2 {
            return found;
        }
        let Some(name) = node.name() else {
            return found;
        };
        let Some(set) = self
            .nodes
            .get(name.parent)
            .and_then(|parent| self.dir_set(&parent).ok())
        else {
            return found;
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for entry in set.entries.iter().filter(|entry| entry.branch.id != own.id) {
            let Ok(fd) = rustix::fs::openat(&entry.fd, &*name.name, flags, Mode::empty()) else {
                continue;
            };
            let Ok(stat) = sys::statx_fd(fd.as_fd()) else {
                continue;
            };
            if kind_of(&stat) == node.kind {
                let branch = Arc::clone(&entry.branch);
                found.push(Holder {
                    branch,
                    fd: Arc::new(fd),
                    primary: false,
                    stat: Some(stat),
                });
            }
        }
        found
    }

    /// Changes every copy the policy picks. All is checked before anything is done: if the copy
    /// that users see may not be changed, none is.
    ///
    /// # Errors
    /// EROFS if the policy picks nothing writable; else the outcome on the visible copy, or the
    /// first error where that copy was not picked and nothing worked.
    pub(crate) fn change_copies(
        &self,
        view: &View,
        node: &Arc<Node>,
        rule: Policy,
        change: impl Fn(BorrowedFd<'_>) -> sys::Result<()>,
    ) -> sys::Result<()> {
        let holders = self.holders(view, node, policy::needs(rule, Category::Action).mtime)?;
        let listed: SmallVec<[(Arc<Branch>, Option<Statx>); 2]> = holders
            .iter()
            .map(|holder| (Arc::clone(&holder.branch), holder.stat))
            .collect();
        let picked = self.pick_for_action(view, rule, &listed)?;
        let visible = holders.iter().position(|holder| holder.primary);
        let takes_all = matches!(rule, Policy::All | Policy::EpAll);
        if takes_all && visible.is_some_and(|index| !picked.contains(&index)) {
            return Err(Errno::ROFS);
        }
        let mut first_error = None;
        let mut any_success = false;
        let mut visible_outcome = None;
        for index in picked {
            let Some(holder) = holders.get(index) else {
                continue;
            };
            let outcome = change(holder.fd.as_fd());
            match outcome {
                Ok(()) => any_success = true,
                Err(errno) => {
                    tracing::debug!(branch = %holder.branch.path.display(), %errno, "a copy could not be changed");
                    first_error = first_error.or(Some(blame(&holder.branch, errno)));
                }
            }
            if holder.primary {
                visible_outcome = Some(outcome);
            }
        }
        match (visible_outcome, any_success, first_error) {
            (Some(outcome), _, _) => outcome,
            (None, true, _) => Ok(()),
            (None, false, error) => Err(error.unwrap_or(Errno::NOENT)),
        }
    }

    /// The copy of a node that the search policy `rule` picks.
    pub(crate) fn locate_by(
        &self,
        view: &View,
        node: &Arc<Node>,
        rule: Policy,
    ) -> sys::Result<Located> {
        if view.branches.len() < 2 || same_search(rule, view.settings.policies.getattr) {
            return self.locate(node);
        }
        let needs = policy::needs(rule, Category::Search);
        let holders = self.holders(view, node, needs.mtime)?;
        let facts: SmallVec<[BranchFacts; 4]> = holders
            .iter()
            .map(|holder| {
                self.facts(
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
        holders.get(index).map(Holder::located).ok_or(Errno::NOENT)
    }

    /// The branches (in order) on which `name` exists in a directory, with attributes.
    pub(crate) fn branches_with(
        &self,
        set: &crate::node::DirSet,
        name: &OsStr,
    ) -> sys::Result<Found> {
        let mut found = SmallVec::new();
        for entry in &set.entries {
            match sys::statx_name(entry.fd.as_fd(), name) {
                Ok(stat) => found.push((Arc::clone(&entry.branch), stat)),
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                // Acting while one branch cannot answer could leave a name half removed.
                Err(errno) => return Err(blame(&entry.branch, errno)),
            }
        }
        Ok(found)
    }
}
