//! Mending what servers that are gone left of their moves, by their records.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::names::{OwnName, own_name, part_name};
use super::record::{Print, RECORD_MAX_BYTES, Switch, parse};
use crate::branch::Branch;
use crate::sys;

/// When a branch is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mending {
    /// Before the pool serves.
    AtMount,
    /// As it joins a pool that serves: of two files that both have their name, either may be
    /// open, so both stay until the next mount.
    WhileServing,
}

/// Mends on `branch` what servers that are gone left of their moves; a branch that cannot be
/// changed stays as it is.
pub(crate) fn mend(branch: &Arc<Branch>, branches: &[Arc<Branch>], when: Mending) {
    if branch.read_only() {
        return;
    }
    let mut records = names_at_root(branch);
    records.retain(|name| own_name(name) == Some(OwnName::Record));
    // What was set aside last: for the name that another record may first have to free.
    records.sort_by_cached_key(|name| is_of_aside(branch, name));
    for name in records {
        if let Err(errno) = mend_one(branch, branches, &name, when) {
            tracing::warn!(branch = %branch.path.display(), ?name, %errno, "the rest of an interrupted move stays");
        }
    }
}

fn names_at_root(branch: &Branch) -> Vec<OsString> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::openat(branch.root(), c".", flags, Mode::empty()) else {
        return Vec::new();
    };
    let Ok(dir) = rustix::fs::Dir::read_from(&root) else {
        return Vec::new();
    };
    dir.filter_map(|entry| Some(OsStr::from_bytes(entry.ok()?.file_name().to_bytes()).to_owned()))
        .collect()
}

fn is_of_aside(branch: &Branch, name: &OsStr) -> bool {
    open_record(branch, name)
        .and_then(|file| read(&file))
        .is_ok_and(|text| super::aside::parse(&text).is_some())
}

fn open_record(branch: &Branch, name: &OsStr) -> sys::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(branch.root(), name, flags, Mode::empty())
}

fn read(record: &OwnedFd) -> sys::Result<Vec<u8>> {
    let mut text = vec![0; RECORD_MAX_BYTES];
    let len = rustix::io::pread(record, &mut text, 0)?;
    text.truncate(len);
    Ok(text)
}

fn mend_one(
    branch: &Arc<Branch>,
    branches: &[Arc<Branch>],
    name: &OsStr,
    when: Mending,
) -> sys::Result<()> {
    let file = open_record(branch, name)?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    match sys::flock(file.as_fd(), libc::LOCK_EX | libc::LOCK_NB) {
        // Another server is at it.
        Err(Errno::AGAIN) => return Ok(()),
        other => other?,
    }
    let text = read(&file)?;
    // A record cut short was never followed by a file.
    if let Some(rename) = super::rename_record::parse(&text) {
        rename.mend(branch, branches)?;
        return rustix::fs::unlinkat(branch.root(), name, AtFlags::empty());
    }
    if let Some(waiting) = super::aside::parse(&text) {
        if when == Mending::WhileServing {
            return Ok(());
        }
        waiting.mend(branch, branches, &part_name(name))?;
        return rustix::fs::unlinkat(branch.root(), name, AtFlags::empty());
    }
    match parse(&text) {
        Some((dir, Some(switch))) if switch.source_branch == branch.path => {
            finish_own_copy(branch, &dir, &switch, &part_name(name))?;
        }
        Some((_, Some(_))) if when == Mending::WhileServing => return Ok(()),
        Some((dir, switch)) => {
            remove_part(branch, &dir, &part_name(name))?;
            if let Some(switch) = switch {
                finish_switch(branch, branches, &dir, &switch)?;
            }
        }
        None => {}
    }
    rustix::fs::unlinkat(branch.root(), name, AtFlags::empty())
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
    let inode = |name: &OsStr| match sys::statx_name(dir.as_fd(), name) {
        Ok(stat) => Ok(Some(stat.stx_ino)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    };
    let Some(left) = inode(part)? else {
        return Ok(());
    };
    if left != switch.source.ino && left != switch.target.ino {
        if inode(&switch.name)? != Some(switch.target.ino) {
            return Err(Errno::BUSY);
        }
        let fd = dir.as_fd();
        sys::rename_flags(fd, part, fd, &switch.name, libc::RENAME_EXCHANGE)?;
    }
    remove_part(branch, dir_path, part)
}

/// The file had names on both branches: the old ones go if the new file has all of them, else the
/// new ones do; nothing goes if either file was touched since, or has a name that is not known.
fn finish_switch(
    branch: &Branch,
    branches: &[Arc<Branch>],
    dir: &Path,
    switch: &Switch,
) -> sys::Result<()> {
    let source_branch = branches
        .iter()
        .find(|known| known.path == switch.source_branch);
    let Some(source_branch) = source_branch.filter(|source| !source.read_only()) else {
        return Ok(());
    };
    let more = switch.more.iter().map(|(dir, name)| (&**dir, &**name));
    let names: Vec<(&Path, &OsStr)> = std::iter::once((dir, &*switch.name)).chain(more).collect();
    let new = Named::find(branch, &names, &switch.target);
    let old = Named::find(source_branch, &names, &switch.source);
    if new.has_all(&names) && old.is_whole() {
        old.remove()?;
        tracing::info!(from = %source_branch.path.display(), to = %branch.path.display(), name = ?switch.name, "finished an interrupted move");
    } else if old.has_all(&names) && new.is_whole() {
        new.remove()?;
        tracing::info!(from = %source_branch.path.display(), to = %branch.path.display(), name = ?switch.name, "undid an interrupted move");
    }
    Ok(())
}

/// The names that lead to one file on a branch.
struct Named<'a> {
    found: Vec<(OwnedFd, &'a OsStr)>,
    links: usize,
}

impl<'a> Named<'a> {
    /// Those among `names` that lead to the untouched file of this print.
    fn find(branch: &Branch, names: &[(&Path, &'a OsStr)], print: &Print) -> Named<'a> {
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
            if kind == FileType::RegularFile && Print::of(&stat) == *print {
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

    fn remove(&self) -> sys::Result<()> {
        for (dir, name) in &self.found {
            rustix::fs::unlinkat(dir, *name, AtFlags::empty())?;
        }
        Ok(())
    }
}

/// A directory below a branch's root, reached through no symlink.
pub(super) fn open_dir(root: BorrowedFd<'_>, dir: &Path) -> sys::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    rustix::fs::openat2(root, dir, flags, Mode::empty(), resolve)
}
