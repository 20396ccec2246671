//! The record of a move at the root of the branch it goes to: what a later server needs to mend
//! what a crash left (see [`mod@super::mend`]).
//!
//! A record is locked (`flock`) for as long as its move goes on: one that is free belongs to
//! nobody alive.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;

use super::elsewhere::Elsewhere;
use super::names::{part_name, record_name};
use crate::branch::Branch;
use crate::identity::btime_ns;
use crate::sys;

/// A record of this many bytes is none of ours.
pub(super) const RECORD_MAX_BYTES: usize = 16 << 10;
const HEAD: &str = "strandfs move 2";
/// Without birth times, and with nothing but the path of the branch.
const EARLIER: &str = "strandfs move 1";
const END: &[u8] = b"\nend\n";

/// One file at the moment of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Print {
    pub(super) ino: u64,
    size_bytes: u64,
    mtime: (i64, u32),
    /// None in the records of earlier versions.
    born_ns: Option<i64>,
}

impl Print {
    pub(super) fn of(stat: &Statx) -> Print {
        Print {
            ino: stat.stx_ino,
            size_bytes: stat.stx_size,
            mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            born_ns: Some(btime_ns(stat)),
        }
    }

    /// Whether it is the file, and nobody has written to it.
    pub(super) fn is_untouched(&self, stat: &Statx) -> bool {
        let now = Print::of(stat);
        let born_ns = self.born_ns.or(now.born_ns);
        Print { born_ns, ..*self } == now
    }

    /// Whether it is the file, whatever was written to it.
    pub(super) fn is_same_file(&self, stat: &Statx) -> bool {
        let born_ns = self.born_ns.filter(|born_ns| *born_ns != 0);
        self.ino == stat.stx_ino && born_ns == Some(btime_ns(stat))
    }

    fn line(&self) -> String {
        let (seconds, nanoseconds) = self.mtime;
        let born = self.born_ns.map(|born| format!(" {born}"));
        let born = born.unwrap_or_default();
        let (ino, size) = (self.ino, self.size_bytes);
        format!("{ino} {size} {seconds} {nanoseconds}{born}\n")
    }

    fn parse(line: &str) -> Option<Print> {
        let mut words = line.split(' ');
        let print = Print {
            ino: words.next()?.parse().ok()?,
            size_bytes: words.next()?.parse().ok()?,
            mtime: (words.next()?.parse().ok()?, words.next()?.parse().ok()?),
            born_ns: match words.next() {
                Some(word) => Some(word.parse().ok()?),
                None => None,
            },
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
            source_branch: Elsewhere::of(branch),
            source: Print::of(original),
            target: Print::of(made),
            more: Vec::new(),
        };
        Record::write_new(branch, &text(dir, Some(&switch)))
    }

    /// Notes on `branch` what [`Record::complete`] does, of a copy that has no name yet.
    ///
    /// # Errors
    /// As for [`Record::begin`].
    pub(super) fn of_switch(
        branch: &Arc<Branch>,
        names: &[(PathBuf, OsString)],
        source: (&Branch, &Statx),
        target: &Statx,
    ) -> sys::Result<Record> {
        Record::write_new(branch, &text_of_switch(names, source, target)?)
    }

    pub(super) fn write_new(branch: &Arc<Branch>, text: &[u8]) -> sys::Result<Record> {
        let record = Record::write_unsynced(branch, text)?;
        match rustix::fs::fsync(&record.file) {
            Ok(()) => Ok(record),
            Err(errno) => {
                record.end();
                Err(errno)
            }
        }
    }

    /// A record for what a dead server may leave: after a power cut it may be empty.
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

    /// Notes that the file is whole and about to take its names, each in a directory below both
    /// branches. From here on it is the old file that is left over, if nobody changed either.
    pub(super) fn complete(
        &self,
        names: &[(PathBuf, OsString)],
        source: (&Branch, &Statx),
        target: &Statx,
    ) -> sys::Result<()> {
        self.write(&text_of_switch(names, source, target)?)?;
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
pub(super) struct Switch {
    pub(super) name: OsString,
    pub(super) source_branch: Elsewhere,
    pub(super) source: Print,
    pub(super) target: Print,
    /// Further names, each after its directory.
    pub(super) more: Vec<(PathBuf, OsString)>,
}

fn text_of_switch(
    names: &[(PathBuf, OsString)],
    source: (&Branch, &Statx),
    target: &Statx,
) -> sys::Result<Vec<u8>> {
    let ((dir, name), more) = names.split_first().ok_or(Errno::INVAL)?;
    let mut switch = Switch {
        name: name.clone(),
        source_branch: Elsewhere::of(source.0),
        source: Print::of(source.1),
        target: Print::of(target),
        more: more.to_vec(),
    };
    let whole = text(dir, Some(&switch));
    if whole.len() <= RECORD_MAX_BYTES {
        return Ok(whole);
    }
    // More names than fit: both files will stay.
    switch.more.clear();
    Ok(text(dir, Some(&switch)))
}

fn text(dir: &Path, switch: Option<&Switch>) -> Vec<u8> {
    let mut out = format!("{HEAD}\n").into_bytes();
    push_part(&mut out, dir.as_os_str());
    if let Some(switch) = switch {
        push_part(&mut out, &switch.name);
        switch.source_branch.push(&mut out);
        out.extend_from_slice(switch.source.line().as_bytes());
        out.extend_from_slice(switch.target.line().as_bytes());
        for (dir, name) in &switch.more {
            push_part(&mut out, dir.as_os_str());
            push_part(&mut out, name);
        }
    }
    push_end(&mut out);
    out
}

/// The end of a record, after its last line.
pub(super) fn push_end(out: &mut Vec<u8>) {
    out.extend_from_slice(END.get(1..).unwrap_or_default());
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
    /// What follows the line `head`, or `earlier`, and whether it is that; `None` if it is another,
    /// or the end is missing.
    pub(super) fn after_either(
        head: &str,
        earlier: &str,
        text: &'a [u8],
    ) -> Option<(Reader<'a>, bool)> {
        match Reader::after(head, text) {
            Some(reader) => Some((reader, false)),
            None => Some((Reader::after(earlier, text)?, true)),
        }
    }

    /// What follows the line `head`; `None` if it is another, or the end is missing.
    pub(super) fn after(head: &str, text: &'a [u8]) -> Option<Reader<'a>> {
        let rest = text.strip_prefix(head.as_bytes())?.strip_prefix(b"\n")?;
        text.ends_with(END).then_some(Reader { rest })
    }

    /// Whether nothing but the end is left.
    pub(super) fn is_at_end(&self) -> bool {
        Some(self.rest) == END.get(1..)
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

/// The directory of a move, and what is known once its copy is whole.
pub(super) fn parse(text: &[u8]) -> Option<(PathBuf, Option<Switch>)> {
    let (mut reader, earlier) = Reader::after_either(HEAD, EARLIER, text)?;
    let dir = PathBuf::from(reader.part()?);
    let next = reader.line()?;
    if next == "end" {
        return Some((dir, None));
    }
    let name = reader.bytes(next.parse().ok()?)?;
    let source_branch = Elsewhere::read(&mut reader, earlier)?;
    let source = Print::parse(&reader.line()?)?;
    let target = Print::parse(&reader.line()?)?;
    let mut more = Vec::new();
    loop {
        let next = reader.line()?;
        if next == "end" {
            break;
        }
        let dir = PathBuf::from(reader.bytes(next.parse().ok()?)?);
        more.push((dir, reader.part()?));
    }
    let switch = Switch {
        name,
        source_branch,
        source,
        target,
        more,
    };
    Some((dir, Some(switch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_torn_ones_do_not() {
        let dir = Path::new("a/b\nend\n7");
        let switch = Switch {
            name: OsString::from("n\nx"),
            source_branch: Elsewhere::new("/mnt/\n1", None),
            source: Print {
                ino: 5,
                size_bytes: 1 << 40,
                mtime: (-3, 999_999_999),
                born_ns: Some(-7),
            },
            target: Print {
                ino: u64::MAX,
                size_bytes: 0,
                mtime: (1, 0),
                born_ns: None,
            },
            more: vec![
                (PathBuf::new(), OsString::from("end")),
                (PathBuf::from("a\n"), OsString::from("b")),
            ],
        };
        let whole = text(dir, Some(&switch));
        assert_eq!(parse(&whole), Some((dir.to_path_buf(), Some(switch))));
        assert_eq!(parse(&text(dir, None)), Some((dir.to_path_buf(), None)));
        for len in 0..whole.len() {
            assert_eq!(parse(whole.get(..len).unwrap()), None, "{len}");
        }
        let earlier = b"strandfs move 1\n1\nd\n1\nf\n4\n/mnt\n5 6 7 8\n9 6 7 8\nend\n";
        let (dir, switch) = parse(earlier).unwrap();
        let switch = switch.unwrap();
        assert_eq!(dir, Path::new("d"));
        assert_eq!(switch.source_branch, Elsewhere::new("/mnt", None));
        assert_eq!((switch.target.ino, switch.target.born_ns), (9, None));
    }
}
