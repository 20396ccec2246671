//! The record of a rename that changes names on one branch after the other: half of it hides what
//! the other half has yet to move, or splits a directory.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Statx};
use rustix::io::Errno;
use strandfs_fuse::FileKind;

use crate::base::branch::Branch;
use crate::base::sys;
use crate::mover::displaced::rename_new;
use crate::mover::elsewhere::{Absent, Elsewhere};
use crate::mover::reader::{Reader, push_end};
use crate::mover::record::Record;
use crate::mover::recover::Outcome;
use crate::mover::rename_record::{Inode, Spot};
use crate::state::identity::kind_of;

const HEAD: &str = "strandfs undo 2";
/// With branches by their path.
const EARLIER: &str = "strandfs undo 1";

/// What a rename does with both names on a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// They change places; one of them may be free.
    Swapped,
    /// The same, and then what had the new name is removed.
    Replaced,
    /// Nothing moves; what has the new name is removed.
    Dropped,
    /// Nothing of what this record is for: the old name stays, or has a record of its own.
    Apart,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Swapped => "swapped",
            Role::Replaced => "replaced",
            Role::Dropped => "dropped",
            Role::Apart => "apart",
        }
    }

    fn parse(word: &str) -> Option<Role> {
        let all = [Role::Swapped, Role::Replaced, Role::Dropped, Role::Apart];
        all.into_iter().find(|role| role.word() == word)
    }
}

/// What a rename does on one branch, and what the names led to before.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    branch: Elsewhere,
    role: Role,
    old: Option<Inode>,
    new: Option<Inode>,
}

/// How far a change came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Before,
    /// The names have changed places.
    Made,
    /// What the new name led to is removed.
    Cleared,
}

impl Change {
    /// `None`: one of the names leads to something else by now.
    fn state(&self, found: [Option<Inode>; 2]) -> Option<State> {
        match self.role {
            _ if found == [self.old, self.new] => Some(State::Before),
            Role::Dropped if found == [self.old, None] => Some(State::Cleared),
            Role::Swapped | Role::Replaced if found == [self.new, self.old] => Some(State::Made),
            Role::Replaced if found == [None, self.old] => Some(State::Cleared),
            Role::Apart if found.contains(&self.old) => Some(State::Before),
            _ => None,
        }
    }
}

/// What a dead server was renaming on several branches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Undo {
    old: Spot,
    new: Spot,
    /// The change, by its number, that makes the rename certain once it is cleared. `None`: nothing
    /// is replaced, and the last move does.
    decisive: Option<usize>,
    changes: Vec<Change>,
}

impl Record {
    /// Notes on the first of the branches with room for it that a rename is about to do this on
    /// them; `decisive` is the number of the change whose removal makes it certain, if something is
    /// replaced.
    ///
    /// # Errors
    /// Those of looking at the names; those of making, locking and writing a file on the last
    /// branch. ESTALE: a branch has neither of the names where they are to be.
    pub(crate) fn of_changes(
        old: (&Path, &OsStr),
        new: (&Path, &OsStr),
        changes: &[(&Arc<Branch>, Role)],
        decisive: Option<usize>,
    ) -> sys::Result<Record> {
        let (old, new) = (Spot::new(old.0, old.1), Spot::new(new.0, new.1));
        let mut undo = Undo {
            decisive,
            changes: Vec::with_capacity(changes.len()),
            old,
            new,
        };
        for (branch, role) in changes {
            let [old, new] = undo.find(branch)?.map(|stat| stat.as_ref().map(Inode::of));
            if old.is_none() && new.is_none() {
                return Err(Errno::STALE);
            }
            undo.changes.push(Change {
                branch: Elsewhere::of(branch),
                role: *role,
                old,
                new,
            });
        }
        let text = undo.text();
        let mut outcome = Err(Errno::INVAL);
        // One that does not change may be read-only in the pool.
        let changing = changes.iter().filter(|(_, role)| *role != Role::Apart);
        for (branch, _) in changing {
            outcome = Record::write_unsynced(branch, text.clone());
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }
}

/// A change, where it is, how far it came, and what the old name and the new one lead to.
struct Seen<'b> {
    role: Role,
    branch: &'b Arc<Branch>,
    state: State,
    found: [Option<Statx>; 2],
}

impl Seen<'_> {
    fn moves(&self) -> bool {
        matches!(self.role, Role::Swapped | Role::Replaced)
    }

    fn is_moved(&self) -> bool {
        self.moves() && self.state != State::Before
    }

    fn is_to_move(&self) -> bool {
        self.moves() && self.state == State::Before
    }

    /// At a mount all may, and in a pool that serves what is on the branch that joins.
    fn may_change(&self, joining: Option<&Path>) -> bool {
        joining.is_none_or(|joining| self.branch.path == joining)
    }
}

/// What is to be done.
struct Way<'s, 'b> {
    /// The rename is completed, else undone.
    forward: bool,
    /// Where the names are to change places, in this order.
    moves: Vec<&'s Seen<'b>>,
    /// Directories to remove then.
    dirs: Vec<(&'s Seen<'b>, &'s Spot)>,
}

impl Undo {
    /// What it is about, for people.
    pub(super) fn describe(&self) -> String {
        let branches: Vec<String> = self
            .changes
            .iter()
            .map(|change| format!("{:?} ({})", change.branch.path(), change.role.word()))
            .collect();
        format!(
            "a rename from {} to {} over several branches, completed or taken back: {}",
            self.old.shown(),
            self.new.shown(),
            branches.join(", ")
        )
    }

    /// The branches it speaks of.
    pub(super) fn branches(&mut self) -> impl Iterator<Item = &mut Elsewhere> {
        self.changes.iter_mut().map(|change| &mut change.branch)
    }

    pub(super) fn text(&self) -> Vec<u8> {
        let mut out = format!("{HEAD}\n").into_bytes();
        self.old.push(&mut out);
        self.new.push(&mut out);
        push_or_dash(&mut out, self.decisive, |out, number| {
            out.extend_from_slice(format!("{number}\n").as_bytes());
        });
        for change in &self.changes {
            change.branch.push(&mut out);
            out.extend_from_slice(format!("{}\n", change.role.word()).as_bytes());
            for inode in [change.old, change.new] {
                push_or_dash(&mut out, inode, |out, inode| inode.push(out));
            }
        }
        push_end(&mut out);
        out
    }

    fn find(&self, branch: &Branch) -> sys::Result<[Option<Statx>; 2]> {
        Ok([self.old.stat(branch)?, self.new.stat(branch)?])
    }

    /// Takes back what was made, or completes what is certain already. Leaves all as it is where
    /// one of the names leads to something else by now; waits while a branch is absent. In a pool
    /// that serves nothing changes but on the branch at `joining`.
    ///
    /// # Errors
    /// Those of `rename(2)`; the record stays for the next mount.
    pub(super) fn recover(
        &self,
        branches: &[Arc<Branch>],
        joining: Option<&Path>,
    ) -> sys::Result<Outcome> {
        let mut all = Vec::with_capacity(self.changes.len());
        for change in &self.changes {
            let branch = match change.branch.find(branches) {
                Ok(branch) if change.role != Role::Apart && branch.read_only() => {
                    return Ok(Outcome::Waits(branch.path.clone()));
                }
                Ok(branch) => branch,
                Err(Absent(path)) => return Ok(Outcome::Waits(path)),
            };
            let found = self.find(branch)?;
            let inodes = found.each_ref().map(|stat| stat.as_ref().map(Inode::of));
            let Some(state) = change.state(inodes) else {
                return Ok(self.leave(branch));
            };
            all.push(Seen {
                role: change.role,
                branch,
                state,
                found,
            });
        }
        let way = self.way(&all, joining);
        if way.moves.is_empty() && way.dirs.is_empty() {
            return Ok(Outcome::Over);
        }
        let touched = way.moves.iter().chain(way.dirs.iter().map(|(one, _)| one));
        if !touched.into_iter().all(|one| one.may_change(joining)) {
            return Ok(Outcome::Later);
        }
        if let Some(other) = self.taken_elsewhere(&all, branches)? {
            return Ok(self.leave(other));
        }
        // Of another disk, after a power cut.
        let replaces = |one: &&&Seen<'_>| way.forward && one.role == Role::Replaced;
        if let Some(one) = way.moves.iter().find(replaces) {
            return Ok(self.leave(one.branch));
        }
        for one in way.moves {
            self.swap(one)?;
        }
        for (one, spot) in way.dirs {
            remove_empty(one.branch, spot)?;
        }
        let did = if way.forward { "finished" } else { "undid" };
        tracing::info!(old = ?self.old, new = ?self.new, "{did} an interrupted rename over several branches");
        Ok(Outcome::Over)
    }

    fn way<'s, 'b>(&'s self, all: &'s [Seen<'b>], joining: Option<&Path>) -> Way<'s, 'b> {
        let certain = match self.decisive {
            Some(number) => all
                .get(number)
                .is_some_and(|one| one.state == State::Cleared),
            None => all.iter().all(|one| !one.is_to_move()),
        };
        let mut made = all.iter().filter(|one| one.is_moved());
        // Where nothing is replaced either will do.
        let forward =
            certain || (self.decisive.is_none() && !made.all(|one| one.may_change(joining)));
        if !forward {
            return Way {
                forward,
                moves: all.iter().rev().filter(|one| one.is_moved()).collect(),
                dirs: Vec::new(),
            };
        }
        let replaced = all
            .iter()
            .filter_map(|one| Some((one, self.replaced_dir(one)?)));
        Way {
            forward,
            moves: all.iter().filter(|one| one.is_to_move()).collect(),
            dirs: replaced.collect(),
        }
    }

    /// Where the replaced directory is that is still there.
    fn replaced_dir(&self, one: &Seen<'_>) -> Option<&Spot> {
        let [old, new] = &one.found;
        let (spot, stat) = match (one.role, one.state) {
            (Role::Replaced, State::Made) => (&self.old, old),
            (Role::Dropped, State::Before) => (&self.new, new),
            _ => return None,
        };
        let stat = stat.as_ref()?;
        (kind_of(stat) == FileKind::Directory).then_some(spot)
    }

    fn leave(&self, branch: &Branch) -> Outcome {
        tracing::warn!(branch = %branch.path.display(), old = ?self.old, new = ?self.new, "a rename over several branches was interrupted, and its names have changed since: they stay as they are");
        Outcome::Over
    }

    /// A branch without part in the rename which has one of the names by now, other than for a
    /// directory among directories.
    fn taken_elsewhere<'b>(
        &self,
        all: &[Seen<'_>],
        branches: &'b [Arc<Branch>],
    ) -> sys::Result<Option<&'b Arc<Branch>>> {
        let is_dir = |stat: &Statx| kind_of(stat) == FileKind::Directory;
        let unite = all
            .iter()
            .flat_map(|one| one.found.iter().flatten())
            .all(is_dir);
        for other in branches {
            if all.iter().any(|one| one.branch.path == other.path) {
                continue;
            }
            let found = self.find(other)?;
            if found.iter().flatten().any(|stat| !unite || !is_dir(stat)) {
                return Ok(Some(other));
            }
        }
        Ok(None)
    }

    /// Has both names change places, over nothing.
    fn swap(&self, one: &Seen<'_>) -> sys::Result<()> {
        let old = (self.old.open_dir(one.branch)?, self.old.name());
        let new = (self.new.open_dir(one.branch)?, self.new.name());
        let (old, new) = ((old.0.as_fd(), old.1), (new.0.as_fd(), new.1));
        match &one.found {
            [Some(_), Some(_)] => {
                sys::rename_flags(old.0, old.1, new.0, new.1, libc::RENAME_EXCHANGE)
            }
            [Some(_), None] => rename_new(old.0, old.1, new.0, new.1),
            [None, _] => rename_new(new.0, new.1, old.0, old.1),
        }
    }
}

/// Removes a replaced directory, if it is still empty.
fn remove_empty(branch: &Branch, spot: &Spot) -> sys::Result<()> {
    let dir = spot.open_dir(branch)?;
    match rustix::fs::unlinkat(&dir, spot.name(), AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            tracing::warn!(branch = %branch.path.display(), name = ?spot.name(), "a directory that an interrupted rename replaced stays: it is not empty");
            Ok(())
        }
        outcome => outcome,
    }
}

fn push_or_dash<T>(out: &mut Vec<u8>, value: Option<T>, push: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => push(out, value),
        None => out.extend_from_slice(b"-\n"),
    }
}

fn read_or_dash<T>(
    reader: &mut Reader<'_>,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Option<Option<T>> {
    match reader.line()? {
        line if line == "-" => Some(None),
        line => parse(&line).map(Some),
    }
}

/// A record of this kind.
pub(super) fn parse(text: &[u8]) -> Option<Undo> {
    let mut reader = Reader::after_either(HEAD, EARLIER, text)?;
    let mut undo = Undo {
        old: Spot::read(&mut reader)?,
        new: Spot::read(&mut reader)?,
        decisive: read_or_dash(&mut reader, |line| line.parse().ok())?,
        changes: Vec::new(),
    };
    while !reader.is_at_end() {
        undo.changes.push(Change {
            branch: Elsewhere::read(&mut reader)?,
            role: Role::parse(&reader.line()?)?,
            old: read_or_dash(&mut reader, Inode::parse)?,
            new: read_or_dash(&mut reader, Inode::parse)?,
        });
    }
    Some(undo)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Option<Inode> = Some(Inode { ino: 5, born_ns: 6 });
    const B: Option<Inode> = Some(Inode {
        ino: 7,
        born_ns: -8,
    });

    fn change(role: Role, old: Option<Inode>, new: Option<Inode>) -> Change {
        Change {
            branch: Elsewhere::new("/mnt/end\n", "xfs 5 6"),
            role,
            old,
            new,
        }
    }

    #[test]
    fn records_read_back_and_torn_ones_do_not() {
        for decisive in [None, Some(1)] {
            let undo = Undo {
                old: Spot::new(Path::new("d/\n7"), OsStr::new("end")),
                new: Spot::new(Path::new(""), OsStr::new("-\n")),
                decisive,
                changes: vec![
                    change(Role::Swapped, A, None),
                    change(Role::Replaced, A, B),
                    change(Role::Apart, A, None),
                    Change {
                        branch: Elsewhere::new("/mnt/b", ""),
                        ..change(Role::Dropped, None, B)
                    },
                ],
            };
            let whole = undo.text();
            assert_eq!(parse(&whole).as_ref(), Some(&undo));
            for len in 0..whole.len() {
                assert_eq!(parse(whole.get(..len).unwrap()), None, "{len}");
            }
        }
    }

    #[test]
    fn how_far_a_change_came_is_told_by_the_inodes() {
        let other = Some(Inode { ino: 5, born_ns: 7 });
        for (change, found, expected) in [
            (
                change(Role::Swapped, A, None),
                [A, None],
                Some(State::Before),
            ),
            (change(Role::Swapped, A, None), [None, A], Some(State::Made)),
            (change(Role::Swapped, A, None), [None, None], None),
            (change(Role::Swapped, A, None), [other, None], None),
            (change(Role::Swapped, A, None), [None, other], None),
            (change(Role::Swapped, A, B), [B, A], Some(State::Made)),
            (change(Role::Swapped, A, B), [None, A], None),
            (change(Role::Replaced, A, B), [A, B], Some(State::Before)),
            (change(Role::Replaced, A, B), [B, A], Some(State::Made)),
            (
                change(Role::Replaced, A, B),
                [None, A],
                Some(State::Cleared),
            ),
            (change(Role::Replaced, A, B), [other, A], None),
            (
                change(Role::Dropped, None, B),
                [None, B],
                Some(State::Before),
            ),
            (
                change(Role::Dropped, None, B),
                [None, None],
                Some(State::Cleared),
            ),
            (change(Role::Dropped, None, B), [B, None], None),
            (change(Role::Dropped, None, B), [other, B], None),
            (change(Role::Apart, A, B), [A, None], Some(State::Before)),
            (change(Role::Apart, A, B), [None, A], Some(State::Before)),
            (change(Role::Apart, A, B), [other, B], None),
        ] {
            assert_eq!(change.state(found), expected, "{change:?}, {found:?}");
        }
    }
}
