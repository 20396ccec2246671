//! Who may do what only an owner may (chmod, chown, access lists, times of one's choice), and as whom the
//! server does it.
//!
//! The kernel has judged by the owner that it remembers, and does not look again for these
//! (`setattr_prepare` in fs/attr.c). Where that is certainly the copy's owner, the kernel's word holds;
//! else the caller is looked at. The server then acts as that owner: should the copy become somebody
//! else's meanwhile, its branch refuses.

use rustix::fs::Statx;
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::Context;

use crate::base::sys;
use crate::ops::hidden_copies::Power;
use crate::ops::privilege::{self, caller_uid};
use crate::state::node::Told;
use crate::state::view::View;

const ROOT: u32 = 0;

/// As whom one copy is changed.
pub(crate) enum Actor {
    /// As the server.
    Server,
    /// As its owner.
    Owner {
        /// Who that is.
        uid: u32,
        /// Groups that the change needs.
        groups: SmallVec<[u32; 2]>,
        /// Bits of a mode that the caller may not set.
        forbidden: u32,
        /// Whether set-group-id stays, where it could fall with the change.
        keeps_set_group_id: Option<bool>,
    },
}

impl Actor {
    /// Makes a change, which is told what bits of a mode not to set.
    ///
    /// # Errors
    /// Those of the change; EPERM if the copy is somebody else's by now.
    pub fn act(&self, change: impl FnOnce(u32) -> sys::Result<()>) -> sys::Result<()> {
        match self {
            Actor::Server => change(0),
            Actor::Owner {
                uid,
                groups,
                forbidden,
                keeps_set_group_id,
            } => {
                // Others have no such power.
                if let (&ROOT, Some(keeps)) = (uid, keeps_set_group_id) {
                    sys::want_fsetid(*keeps)?;
                }
                sys::as_owner(*uid, groups, || change(*forbidden))
            }
        }
    }
}

/// A change that is asked for.
pub(crate) struct Asked<'a> {
    /// The options in force.
    pub view: &'a View,
    /// By whom.
    pub cx: &'a Context<'a>,
    /// What the kernel has judged by, as far as that is certain.
    pub told: Told,
    /// The copies are not one user's.
    pub of_several_owners: bool,
    /// What it takes.
    pub power: Power,
}

/// `kernel-permissions-check=false`.
fn nobody_checks(view: &View) -> bool {
    !view.settings.attributes.kernel_permissions_check
}

impl Asked<'_> {
    /// As whom a copy is to be changed.
    ///
    /// # Errors
    /// EPERM if the caller may not change it.
    pub fn actor_on(&self, stat: &Statx) -> sys::Result<Actor> {
        match self.power {
            Power::Give(uid, gid) => self.giver_of(stat, uid, gid),
            _ => self.owner_of(stat),
        }
    }

    /// The owner that the options show.
    fn shown_uid(&self, stat: &Statx) -> u32 {
        let fixed = self.view.settings.presentation.uid;
        fixed.unwrap_or(stat.stx_uid)
    }

    /// Whether the kernel has judged by the copy's owner.
    fn is_judged(&self, stat: &Statx) -> bool {
        let shown = self.shown_uid(stat);
        let is_told = |uid| uid == shown || self.of_several_owners && uid == ROOT;
        nobody_checks(self.view)
            || self.power != Power::Unasked && self.told.uid.is_some_and(is_told)
    }

    /// Whether the kernel has judged by the copy's group.
    fn is_judged_by_group(&self, stat: &Statx) -> bool {
        self.view.settings.presentation.gid.is_none()
            && !nobody_checks(self.view)
            && self.told.gid == Some(stat.stx_gid)
    }

    fn owner_of(&self, stat: &Statx) -> sys::Result<Actor> {
        let shown = self.shown_uid(stat);
        if !self.is_judged(stat)
            && caller_uid(self.cx) != Some(shown)
            && !privilege::acts_for_owner(self.cx, shown)
        {
            return Err(Errno::PERM);
        }
        let keeps_set_group_id = self.keeps_set_group_id(stat);
        let mut forbidden = 0;
        if keeps_set_group_id == Some(false) {
            forbidden |= libc::S_ISGID;
        }
        if !self.keeps_set_user_id(stat) {
            forbidden |= libc::S_ISUID;
        }
        Ok(Actor::Owner {
            uid: stat.stx_uid,
            groups: match keeps_set_group_id {
                Some(true) => smallvec![stat.stx_gid],
                _ => smallvec![],
            },
            forbidden,
            keeps_set_group_id,
        })
    }

    /// Whether set-group-id may be on the copy afterwards, if that is in question. The kernel has taken it
    /// from a mode for those who are not in the group that it knows.
    fn keeps_set_group_id(&self, stat: &Statx) -> Option<bool> {
        let is_kept = match self.power {
            Power::Mode(mode) if mode & libc::S_ISGID != 0 => true,
            Power::List {
                clears_set_group_id,
            } if u32::from(stat.stx_mode) & libc::S_ISGID != 0 => !clears_set_group_id,
            _ => return None,
        };
        let is_member = is_kept && self.is_judged_by_group(stat)
            || privilege::keeps_set_group_id(self.cx, stat.stx_gid);
        Some(is_member)
    }

    /// Whether set-user-id may be on the copy: with `uid=` the kernel takes files for the caller's that
    /// are not.
    fn keeps_set_user_id(&self, stat: &Statx) -> bool {
        match self.power {
            Power::Mode(mode) if mode & libc::S_ISUID != 0 => {
                self.shown_uid(stat) == stat.stx_uid
                    || caller_uid(self.cx) == Some(stat.stx_uid)
                    || privilege::acts_for_owner(self.cx, stat.stx_uid)
            }
            _ => true,
        }
    }

    /// To give something to another owner takes a power; to another group one's own, to be its owner.
    fn giver_of(&self, stat: &Statx, uid: Option<u32>, gid: Option<u32>) -> sys::Result<Actor> {
        if nobody_checks(self.view) {
            return Ok(Actor::Server);
        }
        let is_anothers = uid.is_some_and(|uid| uid != stat.stx_uid);
        let new_group = gid.filter(|gid| *gid != stat.stx_gid);
        let is_judged =
            self.is_judged(stat) && (new_group.is_none() || self.is_judged_by_group(stat));
        if !is_judged {
            let shown = self.shown_uid(stat);
            let may_own = !is_anothers
                && caller_uid(self.cx) == Some(shown)
                && new_group.is_none_or(|gid| privilege::is_in_group(self.cx, gid));
            if !may_own {
                return match privilege::gives_away(self.cx, shown) {
                    true => Ok(Actor::Server),
                    false => Err(Errno::PERM),
                };
            }
        }
        if is_anothers {
            return Ok(Actor::Server);
        }
        let mut groups = smallvec![stat.stx_gid];
        groups.extend(new_group);
        Ok(Actor::Owner {
            uid: stat.stx_uid,
            groups,
            forbidden: 0,
            keeps_set_group_id: None,
        })
    }
}
