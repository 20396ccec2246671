//! Copies of what a rename replaces, set aside under a name of ours until the rename is certain.
//!
//! The copies go one after the other, and a branch may refuse in the middle: what is only set aside
//! can be put back. The copy that users see goes last and is removed at once, which decides.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Statx};
use rustix::io::Errno;

use crate::base::branch::Branch;
use crate::base::step::step;
use crate::base::sys;
use crate::mover::elsewhere::{Absent, Elsewhere};
use crate::mover::reader::{Reader, push_end};
use crate::mover::record::Record;
use crate::mover::recover::Outcome;
use crate::mover::rename_record::{Inode, Spot};
use crate::state::node::DirEntry;

const HEAD: &str = "strandfs aside 3";
/// Without the copy, and with the branch that tells by its path.
const EARLIER: &str = "strandfs aside 2";

/// A name on a branch: where it is, and its directory below the branch's root.
#[derive(Clone, Copy)]
pub(crate) struct NameOnBranch<'a> {
    /// The directory.
    pub dir: &'a DirEntry,
    /// Its path.
    pub path: &'a Path,
    /// The name in it.
    pub name: &'a OsStr,
}

/// The copy whose end makes a rename certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decisive {
    branch: Elsewhere,
    spot: Spot,
    file: Inode,
}

impl Decisive {
    /// The one at this place; `None` if nothing is there.
    pub(crate) fn at(place: NameOnBranch<'_>) -> Option<Decisive> {
        let stat = sys::statx_name(place.dir.fd.as_fd(), place.name).ok()?;
        Some(Decisive {
            branch: Elsewhere::of(&place.dir.branch),
            spot: Spot::new(place.path, place.name),
            file: Inode::of(&stat),
        })
    }
}

/// A copy that is set aside.
pub(crate) struct Displaced {
    dir: DirEntry,
    part: OsString,
    record: Record,
    /// Where it belongs if the rename is undone.
    home: (DirEntry, OsString),
}

impl Displaced {
    /// Sets a file aside, which `home` is where to put back; `None` where it cannot be noted.
    ///
    /// # Errors
    /// Those of `rename(2)`; ENOENT: the file is gone.
    pub(crate) fn put(
        place: NameOnBranch<'_>,
        home: (&DirEntry, &OsStr),
        decisive: &Decisive,
    ) -> sys::Result<Option<Displaced>> {
        let dir = place.dir;
        let fd = dir.fd.as_fd();
        let copy = sys::statx_name(fd, place.name)?;
        let waiting = Waiting {
            home: Spot::new(place.path, place.name),
            copy: Some(Inode::of(&copy)),
            decisive: decisive.clone(),
        };
        // On disk before the copy has its other name, which means nothing without it.
        let record = match Record::write_new(&dir.branch, waiting.text()) {
            Ok(record) => record,
            Err(errno) => {
                tracing::debug!(branch = %dir.branch.path.display(), %errno, "a replaced copy cannot be set aside");
                return Ok(None);
            }
        };
        step();
        let part = record.part_name();
        if let Err(errno) = rename_new(fd, place.name, fd, &part) {
            // A server can do it, and its answer be lost.
            let is_done = |stat: Statx| stat.stx_ino == copy.stx_ino;
            if !sys::statx_name(fd, &part).is_ok_and(is_done) {
                record.end();
                return Err(errno);
            }
        }
        step();
        Ok(Some(Displaced {
            dir: dir.clone(),
            part,
            record,
            home: (home.0.clone(), home.1.to_owned()),
        }))
    }

    /// Gives the copy its name again: the rename is undone. What cannot be put back waits for the
    /// next server.
    pub(crate) fn put_back(self) {
        let (home, name) = (self.home.0.fd.as_fd(), &self.home.1);
        match rename_new(self.dir.fd.as_fd(), &self.part, home, name) {
            Ok(()) => self.record.end(),
            Err(errno) => {
                tracing::error!(branch = %self.dir.branch.path.display(), ?name, part = ?self.part, %errno, "a hidden copy of what a rename would have replaced could not be put back; the next mount tries again");
            }
        }
    }

    /// Removes the copy: the rename is made.
    pub(crate) fn remove(self) {
        match rustix::fs::unlinkat(&self.dir.fd, &self.part, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.record.end(),
            Err(errno) => {
                tracing::warn!(branch = %self.dir.branch.path.display(), part = ?self.part, %errno, "a hidden copy of what a rename replaced could not be removed; the next mount does");
            }
        }
    }
}

/// Renames, over nothing as far as the filesystem can tell.
pub(super) fn rename_new(
    from: std::os::fd::BorrowedFd<'_>,
    old: &OsStr,
    to: std::os::fd::BorrowedFd<'_>,
    new: &OsStr,
) -> sys::Result<()> {
    match sys::rename_flags(from, old, to, new, libc::RENAME_NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match sys::statx_name(to, new) {
            Err(Errno::NOENT) => sys::rename_flags(from, old, to, new, 0),
            Ok(_) => Err(Errno::EXIST),
            Err(errno) => Err(errno),
        },
        outcome => outcome,
    }
}

/// What a dead server had set aside.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    home: Spot,
    /// What is set aside; `None` in records of earlier versions.
    copy: Option<Inode>,
    decisive: Decisive,
}

impl Waiting {
    pub(super) fn text(&self) -> Vec<u8> {
        let mut out = format!("{HEAD}\n").into_bytes();
        self.home.push(&mut out);
        if let Some(copy) = &self.copy {
            copy.push(&mut out);
        }
        let Decisive { branch, spot, file } = &self.decisive;
        branch.push(&mut out);
        spot.push(&mut out);
        file.push(&mut out);
        push_end(&mut out);
        out
    }

    /// What it is about, for people.
    pub(super) fn describe(&self, part: &OsStr) -> String {
        format!(
            "a copy of {} that a rename set aside as {part:?} beside it: put back while {} is still \
             on {:?}, else removed",
            self.home.shown(),
            self.decisive.spot.shown(),
            self.decisive.branch.path()
        )
    }

    /// The branch that tells.
    pub(super) fn branches(&mut self) -> impl Iterator<Item = &mut Elsewhere> {
        std::iter::once(&mut self.decisive.branch)
    }

    /// Takes what has the name `part` now for the copy; for records that do not tell.
    pub(super) fn take_for_copy(&mut self, branch: &Branch, part: &OsStr) -> sys::Result<()> {
        if self.copy.is_none() {
            let dir = self.home.open_dir(branch)?;
            self.copy = Some(Inode::of(&sys::statx_name(dir.as_fd(), part)?));
        }
        Ok(())
    }

    /// Puts the copy `part` back, or removes it if the rename was certain already; neither while the
    /// branch that tells is absent.
    ///
    /// # Errors
    /// ENOENT: the directory is not where it was. EEXIST: the name is taken. ESTALE: something else
    /// has the name `part`.
    pub(super) fn recover(
        &self,
        branch: &Branch,
        branches: &[Arc<Branch>],
        part: &OsStr,
    ) -> sys::Result<Outcome> {
        // A directory that is not where it was is no reason to forget what is in it.
        let dir = self.home.open_dir(branch)?;
        let found = match sys::statx_name(dir.as_fd(), part) {
            Err(Errno::NOENT) => return Ok(Outcome::Over),
            other => other?,
        };
        if !self.copy.is_some_and(|copy| copy.is(&found)) {
            tracing::warn!(branch = %branch.path.display(), dir = ?self.home, ?part, "what an interrupted rename had set aside is not what has its name now: it stays");
            return Err(Errno::STALE);
        }
        let telling = match self.decisive.branch.find(branches) {
            Ok(telling) => telling,
            Err(Absent(path)) => return Ok(Outcome::Waits(path)),
        };
        let found = self.decisive.spot.stat(telling)?;
        if found.is_some_and(|stat| self.decisive.file.is(&stat)) {
            rename_new(dir.as_fd(), part, dir.as_fd(), self.home.name())?;
            tracing::info!(branch = %branch.path.display(), name = ?self.home.name(), "put back what an interrupted rename had set aside");
        } else {
            rustix::fs::unlinkat(&dir, part, AtFlags::empty())?;
            tracing::info!(branch = %branch.path.display(), name = ?self.home.name(), "removed a hidden copy of what an interrupted rename replaced");
        }
        Ok(Outcome::Over)
    }
}

/// A record of this kind.
pub(super) fn parse(text: &[u8]) -> Option<Waiting> {
    let mut reader = Reader::after_either(HEAD, EARLIER, text)?;
    let waiting = Waiting {
        home: Spot::read(&mut reader)?,
        copy: match reader.is_earlier() {
            true => None,
            false => Some(Inode::parse(&reader.line()?)?),
        },
        decisive: Decisive {
            branch: Elsewhere::read(&mut reader)?,
            spot: Spot::read(&mut reader)?,
            file: Inode::parse(&reader.line()?)?,
        },
    };
    reader.is_at_end().then_some(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_torn_ones_do_not() {
        let waiting = Waiting {
            home: Spot::new(Path::new("d/\n7"), OsStr::new("end")),
            copy: Some(Inode { ino: 4, born_ns: 0 }),
            decisive: Decisive {
                branch: Elsewhere::new("/mnt/a b", "ext4 2 9"),
                spot: Spot::new(Path::new(""), OsStr::new("x\ny")),
                file: Inode {
                    ino: 7,
                    born_ns: -1,
                },
            },
        };
        let whole = waiting.text();
        assert_eq!(parse(&whole).as_ref(), Some(&waiting));
        for len in 0..whole.len() {
            assert_eq!(parse(whole.get(..len).unwrap()), None, "{len}");
        }
        let earlier = b"strandfs aside 2\n0\n\n1\na\n4\n/mnt\n2 9\n1\nd\n1\nb\n5 7\nend\n";
        let read = parse(earlier).unwrap();
        assert_eq!(read.copy, None);
        assert_eq!(read.decisive.file.ino, 5);
    }
}
