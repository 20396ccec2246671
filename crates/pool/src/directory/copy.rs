//! A name, branch by branch.

use rustix::fs::Statx;
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::state::identity::Presented;
use crate::state::node::DirEntry;

/// A name on one branch.
pub(crate) struct Copy<'a> {
    /// The directory there.
    pub dir: &'a DirEntry,
    /// Its attributes; of the target, if it is a symlink that is followed.
    pub stat: Statx,
    /// The attributes of a symlink that is followed.
    pub link: Option<Box<Statx>>,
    /// What a branch said that may have a copy that counts more.
    pub instead_of: Option<Errno>,
}

impl Copy<'_> {
    /// Whether a copy that counts more may be back later, and would hide what happens to this one. A
    /// branch that refuses to tell will refuse again.
    pub fn stands_in(&self) -> bool {
        !matches!(self.instead_of, None | Some(Errno::ACCESS | Errno::PERM))
    }

    /// The attributes of what is under the name on the branch.
    pub fn own_stat(&self) -> &Statx {
        self.link.as_deref().unwrap_or(&self.stat)
    }

    /// Whether it is shown as something else.
    pub(crate) fn presented(&self) -> Presented {
        match self.link {
            Some(_) => Presented::Other,
            None => Presented::Own,
        }
    }
}

/// A name on all branches that have it, the one that counts first.
pub(crate) type Copies<'a> = SmallVec<[Copy<'a>; 2]>;
