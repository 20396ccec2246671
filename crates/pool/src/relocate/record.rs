//! The record of a move at the root of the branch it goes to: what a later server needs to mend
//! what a crash left, and how it does so.
//!
//! A record is locked (`flock`) for as long as its move goes on: one that is free belongs to
//! nobody alive.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Statx};
use rustix::io::Errno;

use super::names::{OwnName, own_name, part_name, record_name};
use crate::branch::Branch;
use crate::sys;

/// A record of this many bytes is none of ours.
const RECORD_MAX_BYTES: usize = 16 << 10;
const HEAD: &str = "strandfs move 1";
pub(super) const END: &[u8] = b"\nend\n";

/// One file at the moment of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    ino: u64,
    size_bytes: u64,
    mtime: (i64, u32),
}

impl Print {
    fn of(stat: &Statx) -> Print {
        Print {
            ino: stat.stx_ino,
            size_bytes: stat.stx_size,
            mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        }
    }

    fn line(&self) -> String {
        let (seconds, nanoseconds) = self.mtime;
        format!("{} {} {seconds} {nanoseconds}\n", self.ino, self.size_bytes)
    }

    fn parse(line: &str) -> Option<Print> {
        let mut words = line.split(' ');
        let print = Print {
            ino: words.next()?.parse().ok()?,
            size_bytes: words.next()?.parse().ok()?,
            mtime: (words.next()?.parse().ok()?, words.next()?.parse().ok()?),
        };
        words.next().is_none().then_some(print)
    }
}

/// A move that has begun.
pub(crate) struct Record {
    branch: Arc<Branch>,
    name: OsString,
    file: OwnedFd,
}

impl Record {
    /// Notes on `branch` that a file will be on its way in the directory `dir` (below the
    /// branch's root).
    ///
    /// # Errors
    /// Those of making, locking and syncing a file.
    pub(super) fn begin(branch: &Arc<Branch>, dir: &Path) -> sys::Result<Record> {
        Record::write_new(branch, &text(dir, None))
    }

    /// Notes on `branch` that `name` in the directory `dir` is about to change places with a
    /// copy of its own, `made`, which bears the record's other name.
    ///
    /// # Errors
    /// As for [`Record::begin`].
    pub(crate) fn of_own_copy(
        branch: &Arc<Branch>,
        dir: &Path,
        name: &OsStr,
        original: &Statx,
        made: &Statx,
    ) -> sys::Result<Record> {
        let switch = Switch {
            name: name.to_owned(),
            source_branch: branch.path.clone(),
            source: Print::of(original),
            target: Print::of(made),
        };
        Record::write_new(branch, &text(dir, Some(&switch)))
    }

    fn write_new(branch: &Arc<Branch>, text: &[u8]) -> sys::Result<Record> {
        let record = Record::write_unsynced(branch, text)?;
        match rustix::fs::fsync(&record.file) {
            Ok(()) => Ok(record),
            Err(errno) => {
                record.end();
                Err(errno)
            }
        }
    }

    /// A record for what a dead server may leave, not for what a power cut may: the order in
    /// which two branches reach their disks is nobody's to say.
    pub(super) fn write_unsynced(branch: &Arc<Branch>, text: &[u8]) -> sys::Result<Record> {
        let name = record_name(crate::policy::random()());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(branch.root(), &name, flags, Mode::RUSR | Mode::WUSR)?;
        let record = Record {
            branch: Arc::clone(branch),
            name,
            file,
        };
        let begun = sys::flock(record.file.as_fd(), libc::LOCK_EX | libc::LOCK_NB)
            .and_then(|()| record.write(text));
        if let Err(errno) = begun {
            record.end();
            return Err(errno);
        }
        Ok(record)
    }

    /// What the file is called until it has its name.
    pub(crate) fn part_name(&self) -> OsString {
        part_name(&self.name)
    }

    /// Notes that the file is whole and about to take its name, `path` below both branches.
    /// From here on it is the old file that is left over, if nobody changed either.
    pub(super) fn complete(
        &self,
        path: &Path,
        source: (&Branch, &Statx),
        target: &Statx,
    ) -> sys::Result<()> {
        let dir = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let switch = Switch {
            name: name.to_owned(),
            source_branch: source.0.path.clone(),
            source: Print::of(source.1),
            target: Print::of(target),
        };
        self.write(&text(dir, Some(&switch)))?;
        rustix::fs::fsync(&self.file)
    }

    fn write(&self, text: &[u8]) -> sys::Result<()> {
        if text.len() > RECORD_MAX_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        if rustix::io::pwrite(&self.file, text, 0)? != text.len() {
            return Err(Errno::NOSPC);
        }
        rustix::fs::ftruncate(&self.file, text.len() as u64)
    }

    /// The move is over, or undone.
    pub(crate) fn end(self) {
        if let Err(errno) = rustix::fs::unlinkat(self.branch.root(), &self.name, AtFlags::empty()) {
            tracing::warn!(branch = %self.branch.path.display(), name = ?self.name, %errno, "the record of a move could not be removed");
        }
    }
}

/// The second half of a record.
#[derive(Debug, PartialEq, Eq)]
struct Switch {
    name: OsString,
    source_branch: PathBuf,
    source: Print,
    target: Print,
}

fn text(dir: &Path, switch: Option<&Switch>) -> Vec<u8> {
    let mut out = format!("{HEAD}\n").into_bytes();
    push_part(&mut out, dir.as_os_str());
    if let Some(switch) = switch {
        push_part(&mut out, &switch.name);
        push_part(&mut out, switch.source_branch.as_os_str());
        out.extend_from_slice(switch.source.line().as_bytes());
        out.extend_from_slice(switch.target.line().as_bytes());
    }
    out.extend_from_slice(END.get(1..).unwrap_or_default());
    out
}

/// A name or path, which may hold any byte, after its length.
pub(super) fn push_part(out: &mut Vec<u8>, part: &OsStr) {
    out.extend_from_slice(format!("{}\n", part.len()).as_bytes());
    out.extend_from_slice(part.as_bytes());
    out.push(b'\n');
}

/// Reads a record that was written whole.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// What follows the line `head`; `None` if that is another, or the end is missing.
    pub(super) fn after(head: &str, text: &'a [u8]) -> Option<Reader<'a>> {
        let rest = text.strip_prefix(head.as_bytes())?.strip_prefix(b"\n")?;
        text.ends_with(END).then_some(Reader { rest })
    }

    pub(super) fn line(&mut self) -> Option<String> {
        let len = self.rest.iter().position(|byte| *byte == b'\n')?;
        self.bytes(len)?.into_string().ok()
    }

    pub(super) fn part(&mut self) -> Option<OsString> {
        let len = self.line()?.parse().ok()?;
        self.bytes(len)
    }

    fn bytes(&mut self, len: usize) -> Option<OsString> {
        let (bytes, after) = self.rest.split_at_checked(len)?;
        self.rest = after.strip_prefix(b"\n")?;
        Some(OsString::from_vec(bytes.to_vec()))
    }
}

fn parse(text: &[u8]) -> Option<(PathBuf, Option<Switch>)> {
    let mut reader = Reader::after(HEAD, text)?;
    let dir = PathBuf::from(reader.part()?);
    let next = reader.line()?;
    if next == "end" {
        return Some((dir, None));
    }
    let name = reader.bytes(next.parse().ok()?)?;
    let source_branch = PathBuf::from(reader.part()?);
    let source = Print::parse(&reader.line()?)?;
    let target = Print::parse(&reader.line()?)?;
    let switch = Switch {
        name,
        source_branch,
        source,
        target,
    };
    Some((dir, Some(switch)))
}

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
    for name in names_at_root(branch) {
        if own_name(&name) != Some(OwnName::Record) {
            continue;
        }
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

fn mend_one(
    branch: &Arc<Branch>,
    branches: &[Arc<Branch>],
    name: &OsStr,
    when: Mending,
) -> sys::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(branch.root(), name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    match sys::flock(file.as_fd(), libc::LOCK_EX | libc::LOCK_NB) {
        // Another server is at it.
        Err(Errno::AGAIN) => return Ok(()),
        other => other?,
    }
    let mut text = vec![0; RECORD_MAX_BYTES];
    let len = rustix::io::pread(&file, &mut text, 0)?;
    text.truncate(len);
    // A record cut short was never followed by a file.
    if let Some(rename) = super::rename_record::parse(&text) {
        rename.mend(branch, branches)?;
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

/// The file had its name on both branches: the old one goes if neither was touched since.
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
    let (Ok(target_dir), Ok(source_dir)) = (
        open_dir(branch.root(), dir),
        open_dir(source_branch.root(), dir),
    ) else {
        return Ok(());
    };
    let untouched = |dir: &OwnedFd, print: &Print| {
        sys::statx_name(dir.as_fd(), &switch.name).is_ok_and(|stat| {
            let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
            kind == FileType::RegularFile && stat.stx_nlink == 1 && Print::of(&stat) == *print
        })
    };
    if untouched(&target_dir, &switch.target) && untouched(&source_dir, &switch.source) {
        rustix::fs::unlinkat(&source_dir, &switch.name, AtFlags::empty())?;
        tracing::info!(from = %source_branch.path.display(), to = %branch.path.display(), name = ?switch.name, "finished an interrupted move");
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_torn_ones_do_not() {
        let dir = Path::new("a/b\nend\n7");
        let switch = Switch {
            name: OsString::from("n\nx"),
            source_branch: PathBuf::from("/mnt/\n1"),
            source: Print {
                ino: 5,
                size_bytes: 1 << 40,
                mtime: (-3, 999_999_999),
            },
            target: Print {
                ino: u64::MAX,
                size_bytes: 0,
                mtime: (1, 0),
            },
        };
        let whole = text(dir, Some(&switch));
        assert_eq!(parse(&whole), Some((dir.to_path_buf(), Some(switch))));
        assert_eq!(parse(&text(dir, None)), Some((dir.to_path_buf(), None)));
        for len in 0..whole.len() {
            assert_eq!(parse(whole.get(..len).unwrap()), None, "{len}");
        }
    }
}
