//! Recovering what servers that are gone left of their moves, by their records.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx};
use rustix::io::Errno;

use crate::base::branch::Branch;
use crate::base::own_names::{OwnName, own_name};
use crate::base::sys::{self, Own};
use crate::mover::Mover;
use crate::mover::elsewhere::Absent;
use crate::mover::note::Intent;
use crate::mover::record::{Move, Switch};
use crate::mover::records::{Genuine, LeftAlone, NamedRecord, examine};

/// So many records of a branch that are left alone are named one by one.
const NAMED_MAX: usize = 20;

/// When a branch is recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery<'a> {
    /// Before the pool serves.
    AtMount,
    /// As it joins a pool that serves: of two files that both have their name, either may be
    /// open, so both stay until the next mount.
    WhileServing,
    /// As another branch, of this path, joins such a pool: only what is on that one may change.
    ForOther(&'a Path),
}

/// Which records have to be followed before which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    First,
    /// For the name that another record may first have to free.
    Displaced,
    /// Finds what was set aside where that was before.
    Undo,
}

/// What has become of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There is nothing left to do.
    Over,
    /// It is for the next mount.
    Later,
    /// What is to be done depends on the branch of this path, which is absent or cannot be changed.
    Waits(PathBuf),
}

/// A record that waits for a branch.
#[derive(Debug)]
pub(crate) struct Undecided {
    /// Where it is.
    holder: PathBuf,
    name: OsString,
    waits_for: PathBuf,
}

/// What became of the records on some branches.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Those that wait for other branches.
    pub(crate) undecided: Vec<Undecided>,
    /// Those that nobody follows.
    pub(crate) left: Vec<LeftAlone>,
}

impl Recovered {
    fn leave(&mut self, branch: &Branch, name: OsString, why: String) {
        self.left.push(LeftAlone {
            branch: branch.path.clone(),
            name,
            why,
        });
    }
}

/// Recovers what servers that are gone left of their moves and noted on `holders`; a branch that
/// cannot be changed stays as it is.
pub(crate) fn recover(
    holders: &[Arc<Branch>],
    branches: &[Arc<Branch>],
    when: Recovery<'_>,
) -> Recovered {
    let mut recovered = Recovered::default();
    let mut records = Vec::new();
    for branch in holders.iter().filter(|branch| !branch.read_only()) {
        let before = recovered.left.len();
        let mut more: usize = 0;
        for name in names_at_root(branch) {
            match examine(branch, &name) {
                Ok(NamedRecord::Genuine(record)) => {
                    records.push((record.turn(), branch, name, record))
                }
                Ok(NamedRecord::Nothing) => {
                    let _ = rustix::fs::unlinkat(branch.root(), &name, AtFlags::empty());
                }
                Ok(NamedRecord::InUse) => {}
                Ok(NamedRecord::Doubtful(_)) if recovered.left.len() - before >= NAMED_MAX => {
                    more += 1
                }
                Ok(NamedRecord::Doubtful(why)) => {
                    tracing::warn!(branch = %branch.path.display(), ?name, why, "a record of a move is left alone; `strandfs records list` says what it is about");
                    recovered.leave(branch, name, why);
                }
                Err(errno) => {
                    tracing::warn!(branch = %branch.path.display(), ?name, %errno, "a record of a move cannot be read");
                    recovered.leave(branch, name, format!("it cannot be read: {errno}"));
                }
            }
        }
        if more > 0 {
            tracing::warn!(branch = %branch.path.display(), more, "further records are left alone");
        }
    }
    records.sort_by_key(|(turn, ..)| *turn);
    for (_, branch, name, record) in records {
        match recover_one(branch, branches, &name, &record, when) {
            Ok(Outcome::Waits(waits_for)) => {
                tracing::warn!(branch = %branch.path.display(), ?name, waits_for = %waits_for.display(), "the rest of an interrupted move stays until another branch is there");
                recovered.undecided.push(Undecided {
                    holder: branch.path.clone(),
                    name,
                    waits_for,
                });
            }
            Ok(Outcome::Over | Outcome::Later) => {}
            Err(errno) => {
                tracing::warn!(branch = %branch.path.display(), ?name, %errno, "the rest of an interrupted move stays");
                recovered.leave(branch, name, format!("it cannot be followed: {errno}"));
            }
        }
    }
    recovered
}

/// Recovers a branch that is about to be seen among these, and what waited for it.
pub(crate) fn recover_joining(pool: &Mover, joining: &Arc<Branch>, branches: &[Arc<Branch>]) {
    let recovered = recover(
        std::slice::from_ref(joining),
        branches,
        Recovery::WhileServing,
    );
    let mut undecided = pool.undecided.lock();
    recover_for(joining, branches, &mut undecided);
    undecided.extend(recovered.undecided);
    let mut left = pool.records_left.lock();
    left.retain(|record| record.branch != joining.path);
    left.extend(recovered.left);
}

/// Finishes the moves that waited for `joining`, which nobody sees yet: an original that is left
/// there would hide the file. Whatever else waited for it is for the next mount.
fn recover_for(joining: &Arc<Branch>, branches: &[Arc<Branch>], undecided: &mut Vec<Undecided>) {
    undecided.retain_mut(|waiting| {
        if waiting.waits_for != joining.path {
            return true;
        }
        let holder = branches.iter().find(|branch| branch.path == waiting.holder);
        let Some(holder) = holder.filter(|holder| !holder.read_only()) else {
            return true;
        };
        let when = Recovery::ForOther(&joining.path);
        let outcome = examine(holder, &waiting.name).and_then(|found| match found {
            NamedRecord::Genuine(record) => recover_one(holder, branches, &waiting.name, &record, when),
            NamedRecord::Nothing | NamedRecord::InUse | NamedRecord::Doubtful(_) => Ok(Outcome::Later),
        });
        match outcome {
            Ok(Outcome::Waits(path)) => {
                waiting.waits_for = path;
                true
            }
            Ok(Outcome::Over | Outcome::Later) => false,
            Err(errno) => {
                tracing::warn!(branch = %holder.path.display(), name = ?waiting.name, %errno, "the rest of an interrupted move stays");
                false
            }
        }
    });
}

/// The names at a branch's root that records have.
pub(super) fn names_at_root(branch: &Branch) -> Vec<OsString> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::openat(branch.root(), c".", flags, Mode::empty()) else {
        return Vec::new();
    };
    let Ok(dir) = rustix::fs::Dir::read_from(&root) else {
        return Vec::new();
    };
    dir.filter_map(|entry| Some(OsStr::from_bytes(entry.ok()?.file_name().to_bytes()).to_owned()))
        .filter(|name| own_name(name) == Some(OwnName::Record))
        .collect()
}

impl Genuine {
    fn turn(&self) -> Turn {
        match self.intent {
            Intent::Move(_) | Intent::Rename(_) => Turn::First,
            Intent::Displaced(_) => Turn::Displaced,
            Intent::Undo(_) => Turn::Undo,
        }
    }
}

fn recover_one(
    branch: &Arc<Branch>,
    branches: &[Arc<Branch>],
    name: &OsStr,
    record: &Genuine,
    when: Recovery<'_>,
) -> sys::Result<Outcome> {
    let part = &*record.part;
    let outcome = match &record.intent {
        Intent::Rename(rename) => match when {
            Recovery::ForOther(_) => Outcome::Later,
            Recovery::AtMount | Recovery::WhileServing => rename.recover(branch, branches)?,
        },
        Intent::Displaced(waiting) => match when {
            Recovery::AtMount => waiting.recover(branch, branches, part)?,
            Recovery::WhileServing | Recovery::ForOther(_) => Outcome::Later,
        },
        Intent::Undo(undo) => {
            let joining = match when {
                Recovery::AtMount => None,
                Recovery::WhileServing => Some(&*branch.path),
                Recovery::ForOther(path) => Some(path),
            };
            undo.recover(branches, joining)?
        }
        Intent::Move(Move {
            dir,
            switch,
            own_copy,
        }) => match switch {
            None => {
                remove_part(branch, dir, part)?;
                Outcome::Over
            }
            Some(switch) if *own_copy => {
                finish_own_copy(branch, dir, switch, part)?;
                Outcome::Over
            }
            Some(switch) => finish_switch(branch, branches, (dir, switch, part), when)?,
        },
    };
    if outcome == Outcome::Over {
        rustix::fs::unlinkat(branch.root(), name, AtFlags::empty())?;
    }
    Ok(outcome)
}

/// The file that was still on its way: its original is where it always was.
fn remove_part(branch: &Branch, dir: &Path, part: &OsStr) -> sys::Result<()> {
    let dir = match open_dir(branch.root(), dir) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    match rustix::fs::unlinkat(&dir, part, AtFlags::empty()) {
        Ok(()) => {
            tracing::info!(branch = %branch.path.display(), ?part, "removed the rest of an interrupted move");
            Ok(())
        }
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The name and its own copy had changed places, or not yet: what is left over under our name is
/// the original, which other names lead to, or the copy. A third file is somebody else's, caught
/// in between: it gets its name back.
fn finish_own_copy(
    branch: &Branch,
    dir_path: &Path,
    switch: &Switch,
    part: &OsStr,
) -> sys::Result<()> {
    let dir = match open_dir(branch.root(), dir_path) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let look = |name: &OsStr| match sys::statx_name(dir.as_fd(), name) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let Some(left) = look(part)? else {
        return Ok(());
    };
    if !switch.source.is_inode(&left) && !switch.target.is_inode(&left) {
        if !look(&switch.name)?.is_some_and(|stat| switch.target.is_inode(&stat)) {
            return Err(Errno::BUSY);
        }
        let fd = dir.as_fd();
        sys::rename_flags(fd, part, fd, &switch.name, libc::RENAME_EXCHANGE)?;
    }
    remove_part(branch, dir_path, part)
}

/// The file had names on both branches: the old ones go if the new file has all of them, else the
/// new ones do. An old file that was touched since stays, and so does what has a name that is not known;
/// if the old one was written to since, the new one goes, unless that was touched as well. A new one that
/// was touched is what users have seen meanwhile: it is not taken away, and the old one, which may hide
/// it, goes.
fn finish_switch(
    branch: &Branch,
    branches: &[Arc<Branch>],
    (dir, switch, part): (&Path, &Switch, &OsStr),
    when: Recovery<'_>,
) -> sys::Result<Outcome> {
    let source_branch = match switch.source_branch.find(branches) {
        Ok(source) if source.read_only() => return Ok(Outcome::Waits(source.path.clone())),
        Ok(source) => source,
        // The copy may be all that is left of the file.
        Err(Absent(path)) => return Ok(Outcome::Waits(path)),
    };
    if when == Recovery::WhileServing {
        return Ok(Outcome::Later);
    }
    remove_part(branch, dir, part)?;
    let more = switch.more.iter().map(|(dir, name)| (&**dir, &**name));
    let names: Vec<(&Path, &OsStr)> = std::iter::once((dir, &*switch.name)).chain(more).collect();
    let new = Named::find(branch, &names, |stat| {
        switch.target.is_untouched(stat) || switch.target.is_same_file(stat)
    });
    let old = Named::find(source_branch, &names, |stat| {
        switch.source.is_untouched(stat)
    });
    if new.has_all(&names) && old.is_whole() {
        if old.is_written() {
            // What is written next would be lost.
            tracing::warn!(branch = %source_branch.path.display(), name = ?switch.name, "the original of an interrupted move is open for writing: it stays until the next mount");
            return Ok(Outcome::Later);
        }
        old.remove()?;
        tracing::info!(from = %source_branch.path.display(), to = %branch.path.display(), name = ?switch.name, "finished an interrupted move");
        return Ok(Outcome::Over);
    }
    if matches!(when, Recovery::ForOther(_)) {
        return Ok(Outcome::Later);
    }
    let new = Named::find(branch, &names, |stat| switch.target.is_untouched(stat));
    // One that was written to since holds more than the copy does.
    let old = Named::find(source_branch, &names, |stat| {
        switch.source.is_untouched(stat) || switch.source.is_written_since(stat)
    });
    if old.has_all(&names) && new.is_whole() {
        new.remove()?;
        tracing::info!(from = %source_branch.path.display(), to = %branch.path.display(), name = ?switch.name, "undid an interrupted move");
    }
    Ok(Outcome::Over)
}

/// The names that lead to one file on a branch.
struct Named<'a> {
    found: Vec<(OwnedFd, &'a OsStr)>,
    links: usize,
}

impl<'a> Named<'a> {
    /// Those among `names` that lead to the file.
    fn find(
        branch: &Branch,
        names: &[(&Path, &'a OsStr)],
        is_it: impl Fn(&Statx) -> bool,
    ) -> Named<'a> {
        let mut named = Named {
            found: Vec::new(),
            links: 0,
        };
        for (dir, name) in names {
            let Ok(dir) = open_dir(branch.root(), dir) else {
                continue;
            };
            let Ok(stat) = sys::statx_name(dir.as_fd(), name) else {
                continue;
            };
            let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
            if kind == FileType::RegularFile && is_it(&stat) {
                named.links = stat.stx_nlink as usize;
                named.found.push((dir, name));
            }
        }
        named
    }

    /// No other name leads there.
    fn is_whole(&self) -> bool {
        !self.found.is_empty() && self.links == self.found.len()
    }

    fn has_all(&self, names: &[(&Path, &OsStr)]) -> bool {
        self.is_whole() && self.found.len() == names.len()
    }

    /// Whether somebody has it open for writing.
    fn is_written(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = self
            .found
            .first()
            .map(|(dir, name)| rustix::fs::openat(dir, *name, flags, Mode::empty()));
        opened.is_some_and(|file| {
            file.is_ok_and(|file| sys::written_by_others(file.as_fd(), Own::Reader) == Ok(true))
        })
    }

    fn remove(&self) -> sys::Result<()> {
        for (dir, name) in &self.found {
            rustix::fs::unlinkat(dir, *name, AtFlags::empty())?;
        }
        Ok(())
    }
}

/// A directory below a branch's root, reached through no symlink and no other mount: what a user has
/// mounted there is not the branch.
pub(super) fn open_dir(root: BorrowedFd<'_>, dir: &Path) -> sys::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    rustix::fs::openat2(root, dir, flags, Mode::empty(), resolve)
}
