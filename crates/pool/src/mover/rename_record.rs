//! The record of a rename over a copy on a branch further ahead: meanwhile the file has both names.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Statx};
use rustix::io::Errno;

use crate::base::branch::Branch;
use crate::base::sys::{self, btime_ns};
use crate::mover::elsewhere::{Absent, Elsewhere};
use crate::mover::reader::{Reader, push_end, push_part, shown};
use crate::mover::record::Record;
use crate::mover::recover::{Outcome, open_dir};

const HEAD: &str = "strandfs rename 3";
/// With branches by their path.
const EARLIER: &str = "strandfs rename 2";

/// A name below a branch's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    dir: PathBuf,
    name: OsString,
}

impl Spot {
    pub(super) fn new(dir: &Path, name: &OsStr) -> Spot {
        Spot {
            dir: dir.to_owned(),
            name: name.to_owned(),
        }
    }

    /// For people.
    pub(super) fn shown(&self) -> String {
        shown(&self.dir, &self.name)
    }

    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Writes it into a record.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        push_part(out, self.dir.as_os_str());
        push_part(out, &self.name);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Spot> {
        Some(Spot {
            dir: reader.dir()?,
            name: reader.name()?,
        })
    }

    pub(super) fn open_dir(&self, branch: &Branch) -> sys::Result<OwnedFd> {
        open_dir(branch.root(), &self.dir)
    }

    /// What is there; `None` if nothing is.
    pub(super) fn stat(&self, branch: &Branch) -> sys::Result<Option<Statx>> {
        let found = self
            .open_dir(branch)
            .and_then(|dir| sys::statx_name(dir.as_fd(), &self.name));
        match found {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn remove(&self, branch: &Branch) -> sys::Result<()> {
        let dir = self.open_dir(branch)?;
        rustix::fs::unlinkat(&dir, &self.name, AtFlags::empty())
    }
}

/// A file, told from a later one that has its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    pub(super) ino: u64,
    pub(super) born_ns: i64,
}

impl Inode {
    pub(super) fn of(stat: &Statx) -> Inode {
        Inode {
            ino: stat.stx_ino,
            born_ns: btime_ns(stat),
        }
    }

    pub(super) fn is(&self, stat: &Statx) -> bool {
        *self == Inode::of(stat)
    }

    /// Writes it into a record, in a line.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{} {}\n", self.ino, self.born_ns).as_bytes());
    }

    pub(super) fn parse(line: &str) -> Option<Inode> {
        let (ino, born_ns) = line.split_once(' ')?;
        Some(Inode {
            ino: ino.parse().ok()?,
            born_ns: born_ns.parse().ok()?,
        })
    }
}

/// What a dead server was renaming.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Interrupted {
    from: Spot,
    to: Spot,
    file: Inode,
    /// The branches further ahead that have what is replaced.
    ahead: Vec<Elsewhere>,
}

impl Record {
    /// Notes on `branch` that the inode of `stat` is about to have a second name, which will
    /// then be its only one; `ahead` are the branches whose copy of that name hides it until then.
    /// The record outlives a power cut where one of those is on another disk: each comes back with
    /// a past of its own.
    ///
    /// # Errors
    /// Those of making, locking, writing and syncing a file.
    pub(crate) fn of_rename(
        branch: &Arc<Branch>,
        from: (&Path, &OsStr),
        to: (&Path, &OsStr),
        stat: &Statx,
        ahead: &[&Branch],
        on_other_disks: bool,
    ) -> sys::Result<Record> {
        let rename = Interrupted {
            from: Spot::new(from.0, from.1),
            to: Spot::new(to.0, to.1),
            file: Inode::of(stat),
            ahead: ahead.iter().map(|branch| Elsewhere::of(branch)).collect(),
        };
        match on_other_disks {
            true => Record::write_new(branch, rename.text()),
            false => Record::write_unsynced(branch, rename.text()),
        }
    }
}

impl Interrupted {
    pub(super) fn text(&self) -> Vec<u8> {
        let mut out = format!("{HEAD}\n").into_bytes();
        self.from.push(&mut out);
        self.to.push(&mut out);
        self.file.push(&mut out);
        self.ahead.iter().for_each(|branch| branch.push(&mut out));
        push_end(&mut out);
        out
    }

    /// What it is about, for people.
    pub(super) fn describe(&self) -> String {
        format!(
            "a rename from {} to {}: of the two names the file is left the new one if what it \
             replaces is gone, else the old one",
            self.from.shown(),
            self.to.shown()
        )
    }

    /// The branches it speaks of.
    pub(super) fn branches(&mut self) -> impl Iterator<Item = &mut Elsewhere> {
        self.ahead.iter_mut()
    }

    /// Leaves the file one of its two names: the new one if what it replaces is gone already. Both
    /// while a branch is absent that may have that.
    pub(super) fn recover(
        &self,
        branch: &Branch,
        branches: &[Arc<Branch>],
    ) -> sys::Result<Outcome> {
        let is_ours = |stat: &Statx| self.file.is(stat);
        let (from, to) = (self.from.stat(branch)?, self.to.stat(branch)?);
        if !from.as_ref().is_some_and(is_ours) || !to.as_ref().is_some_and(is_ours) {
            return Ok(Outcome::Over);
        }
        // One entry by two ways (a directory that ignores case) is all that is left of the file.
        if from.is_none_or(|stat| stat.stx_nlink < 2) {
            return Ok(Outcome::Over);
        }
        for other in &self.ahead {
            if let Err(Absent(path)) = other.find(branches) {
                return Ok(Outcome::Waits(path));
            }
        }
        let ahead = branches
            .iter()
            .take_while(|other| other.path != branch.path);
        let mut hidden = false;
        for other in ahead {
            hidden |= self.to.stat(other)?.is_some();
        }
        let gone = if hidden { &self.to } else { &self.from };
        gone.remove(branch)?;
        tracing::info!(branch = %branch.path.display(), name = ?gone.name, "removed the second name that an interrupted rename left");
        Ok(Outcome::Over)
    }
}

/// A record of this kind.
pub(super) fn parse(text: &[u8]) -> Option<Interrupted> {
    let mut reader = Reader::after_either(HEAD, EARLIER, text)?;
    let mut rename = Interrupted {
        from: Spot::read(&mut reader)?,
        to: Spot::read(&mut reader)?,
        file: Inode::parse(&reader.line()?)?,
        ahead: Vec::new(),
    };
    while !reader.is_at_end() {
        rename.ahead.push(Elsewhere::read(&mut reader)?);
    }
    Some(rename)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_torn_ones_do_not() {
        let spot = |dir: &str, name: &str| Spot {
            dir: PathBuf::from(dir),
            name: OsString::from(name),
        };
        let rename = Interrupted {
            from: spot("", "a\nb"),
            to: spot("d/end\n", "end"),
            file: Inode {
                ino: u64::MAX,
                born_ns: -1,
            },
            ahead: vec![
                Elsewhere::new("/mnt/end\n", "ext4 2 9"),
                Elsewhere::new("/mnt/b", ""),
            ],
        };
        let whole = rename.text();
        assert_eq!(parse(&whole).as_ref(), Some(&rename));
        for len in 0..whole.len() {
            assert_eq!(parse(whole.get(..len).unwrap()), None, "{len}");
        }
        let earlier = b"strandfs rename 2\n0\n\n1\na\n1\nd\n1\nb\n5 7\n2\n/m\n2 9\nend\n";
        let read = parse(earlier).unwrap();
        assert_eq!((read.from, read.to), (spot("", "a"), spot("d", "b")));
        assert!(read.file.ino == 5 && read.ahead.len() == 1);
    }
}
