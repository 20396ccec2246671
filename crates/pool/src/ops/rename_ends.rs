//! Both names of a rename on one branch, and what is done with them.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::base::calls::Call;
use crate::base::error::Result;
use crate::base::sys;
use crate::ops::{lost_answer, remove};
use crate::state::node::DirEntry;

/// Both names of a rename on one branch.
pub(crate) struct Ends<'a> {
    /// Directory of the old name.
    pub from: DirEntry,
    /// The old name.
    pub from_name: &'a OsStr,
    /// Directory of the new name.
    pub to: DirEntry,
    /// The new name.
    pub to_name: &'a OsStr,
    /// The branch's place among the pool's: 0 for the first.
    pub rank: usize,
    /// The inode number of what has the old name.
    pub ino: u64,
    /// On whose account the directory of the new name grows.
    pub payer: u32,
}

impl Ends<'_> {
    /// Whether the new name leads to what had the old one: a server can do what it says has failed, when its answer
    /// is lost.
    pub(super) fn is_made(&self) -> bool {
        self.leads_to_it(&self.to, self.to_name)
    }

    /// Whether a name leads to what had the old one.
    fn leads_to_it(&self, dir: &DirEntry, name: &OsStr) -> bool {
        let found = sys::statx_name(dir.fd.as_fd(), name);
        found.is_ok_and(|stat| stat.stx_ino == self.ino)
    }

    /// What the rename is that failed.
    ///
    /// # Errors
    /// The failure, unless all is done.
    pub(super) fn after_failure(&self, errno: Errno) -> Result<()> {
        let (from, to) = ((&self.from, self.from_name), (&self.to, self.to_name));
        lost_answer::of_renaming(self.ino, from, to, errno)
    }

    /// Whether nothing has the old name.
    pub(super) fn is_gone(&self) -> bool {
        remove::is_gone(&self.from, self.from_name)
    }

    pub(super) fn rename(&self, flags: u32) -> sys::Result<()> {
        let (from, to) = (self.from.fd.as_fd(), self.to.fd.as_fd());
        let rename = || sys::rename_flags(from, self.from_name, to, self.to_name, flags);
        (self.from.branch).call(Call::Rename, || {
            sys::on_account_with_powers(self.payer, rename)
        })
    }

    /// With `flags` where the branch knows them (network filesystems often do not), else plainly:
    /// what the flags guard against was looked for before.
    pub(super) fn rename_if_able(&self, flags: u32) -> sys::Result<()> {
        match self.rename(flags) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.rename(0),
            outcome => outcome,
        }
    }

    /// The new name as a further one of the same file; where the branch has no such thing it
    /// loses the old one now.
    pub(super) fn link(&self) -> sys::Result<()> {
        let none = AtFlags::empty();
        let link = || {
            let (from, to) = (&self.from.fd, &self.to.fd);
            rustix::fs::linkat(from, self.from_name, to, self.to_name, none)
        };
        let link = || sys::on_account_with_powers(self.payer, link);
        match self.from.branch.call(Call::Make, link) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                self.rename_if_able(libc::RENAME_NOREPLACE)
            }
            Err(_) if self.is_made() => Ok(()),
            outcome => outcome,
        }
    }

    /// Takes [`Ends::link`] back.
    pub(super) fn unlink_new(&self) -> sys::Result<()> {
        if sys::statx_name(self.from.fd.as_fd(), self.from_name).is_err() {
            return self.rename_back();
        }
        rustix::fs::unlinkat(&self.to.fd, self.to_name, AtFlags::empty())
    }

    /// Completes [`Ends::link`]. A branch that fails once is asked once more: what was replaced is gone, so
    /// that there is no way back.
    pub(super) fn unlink_old(&self) -> sys::Result<()> {
        match self.try_to_unlink_old() {
            // Another file of that name is nobody's to remove.
            Err(_) if self.leads_to_it(&self.from, self.from_name) => self.try_to_unlink_old(),
            outcome => outcome,
        }
    }

    fn try_to_unlink_old(&self) -> sys::Result<()> {
        let unlink = || rustix::fs::unlinkat(&self.from.fd, self.from_name, AtFlags::empty());
        match self.from.branch.call(Call::Remove, unlink) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(_) if self.is_gone() => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn rename_back(&self) -> sys::Result<()> {
        let (from, to) = (self.from.fd.as_fd(), self.to.fd.as_fd());
        sys::rename_flags(to, self.to_name, from, self.from_name, 0)
    }
}
