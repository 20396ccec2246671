//! The record of a move at the root of the branch it goes to: what a later server needs to recover
//! what a crash left (see [`mod@super::recover`]).
//!
//! A record is locked (`flock`) for as long as its move goes on: one that is free belongs to
//! nobody alive.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::base::branch::Branch;
use crate::base::own_names::{part_name, record_name};
use crate::base::sys::{self, btime_ns};
use crate::mover::elsewhere::Elsewhere;
use crate::mover::key::{Keys, unguessable};
use crate::mover::note::{Look, Note};
use crate::mover::reader::{Reader, push_end, push_part, shown};
use crate::mover::seal::seal;

/// A record of this many bytes is none of ours.
pub(super) const RECORD_MAX_BYTES: usize = 16 << 10;
const HEAD: &str = "strandfs move 3";
/// Of `link-cow`: with a copy on the same branch.
const OWN_COPY: &str = "strandfs link-cow 3";
/// With the branch by its path, for either.
const EARLIER: &str = "strandfs move 2";
/// What permission bits a server gives its records.
const PRIVATE: u32 = 0o600;

/// One file at the moment of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Print {
    pub(super) ino: u64,
    size_bytes: u64,
    mtime: (i64, u32),
    /// 0 where files have no birth time.
    born_ns: i64,
}

impl Print {
    pub(super) fn of(stat: &Statx) -> Print {
        Print {
            ino: stat.stx_ino,
            size_bytes: stat.stx_size,
            mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            born_ns: btime_ns(stat),
        }
    }

    /// Whether it is the file, and nobody has written to it.
    pub(super) fn is_untouched(&self, stat: &Statx) -> bool {
        *self == Print::of(stat)
    }

    /// Whether it is the file, whatever was written to it.
    pub(super) fn is_same_file(&self, stat: &Statx) -> bool {
        self.born_ns != 0 && self.is_inode(stat)
    }

    /// Whether it is the file, and somebody has written to it since. After a power cut it may be older.
    pub(super) fn is_written_since(&self, stat: &Statx) -> bool {
        let written = (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        self.is_same_file(stat) && written > self.mtime
    }

    /// Whether the number leads to it, and it is as old.
    pub(super) fn is_inode(&self, stat: &Statx) -> bool {
        (self.ino, self.born_ns) == (stat.stx_ino, btime_ns(stat))
    }

    fn line(&self) -> String {
        let (seconds, nanoseconds) = self.mtime;
        let (ino, size, born) = (self.ino, self.size_bytes, self.born_ns);
        format!("{ino} {size} {seconds} {nanoseconds} {born}\n")
    }

    fn parse(line: &str) -> Option<Print> {
        let mut words = line.split(' ');
        let print = Print {
            ino: words.next()?.parse().ok()?,
            size_bytes: words.next()?.parse().ok()?,
            mtime: (words.next()?.parse().ok()?, words.next()?.parse().ok()?),
            born_ns: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(print)
    }
}

/// A move that has begun.
pub(crate) struct Record {
    branch: Arc<Branch>,
    name: OsString,
    /// What the file is called until it has its name.
    part: OsString,
    file: OwnedFd,
    look: Look,
    /// What is written, in blocks and in bytes.
    blocks: u32,
    len_bytes: u64,
}

impl Record {
    /// Notes on `branch` that a file will be on its way in the directory `dir` (below the
    /// branch's root).
    ///
    /// # Errors
    /// Those of making, locking and syncing a file; ENOKEY: nothing can prove the record.
    pub(super) fn begin(branch: &Arc<Branch>, dir: &Path) -> sys::Result<Record> {
        Record::write_new(branch, text(HEAD, dir, None))
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
        Record::write_new(branch, text(OWN_COPY, dir, Some(&switch)))
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
        let text = text_of_switch(names, source, target)?;
        Record::write_new(branch, text)
    }

    pub(super) fn write_new(branch: &Arc<Branch>, text: Vec<u8>) -> sys::Result<Record> {
        Record::write_unsynced(branch, text)?.synced()
    }

    /// A record for what a dead server may leave: after a power cut it may be empty.
    pub(super) fn write_unsynced(branch: &Arc<Branch>, text: Vec<u8>) -> sys::Result<Record> {
        Record::write(branch, part_name(unguessable()?), text)
    }

    /// A record of what is under way already, with a file of this name.
    pub(super) fn write_again(
        branch: &Arc<Branch>,
        part: OsString,
        text: Vec<u8>,
    ) -> sys::Result<Record> {
        Record::write(branch, part, text)?.synced()
    }

    /// Has it on disk.
    ///
    /// # Errors
    /// Those of `fsync(2)`.
    pub(crate) fn sync(&self) -> sys::Result<()> {
        rustix::fs::fsync(&self.file)
    }

    fn synced(self) -> sys::Result<Record> {
        match self.sync() {
            Ok(()) => Ok(self),
            Err(errno) => {
                self.end();
                Err(errno)
            }
        }
    }

    fn write(branch: &Arc<Branch>, part: OsString, text: Vec<u8>) -> sys::Result<Record> {
        if Keys::of_this_machine().own().is_none() {
            return Err(Errno::NOKEY);
        }
        let name = record_name(unguessable()?);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(PRIVATE);
        let file = rustix::fs::openat(branch.root(), &name, flags, mode)?;
        let mut record = Record {
            branch: Arc::clone(branch),
            name,
            part,
            look: Look::default(),
            file,
            blocks: 0,
            len_bytes: 0,
        };
        let begun = sys::flock(record.file.as_fd(), libc::LOCK_EX | libc::LOCK_NB)
            .and_then(|()| Look::of(record.file.as_fd()))
            .and_then(|look| {
                record.look = look;
                record.add(text)
            });
        if let Err(errno) = begun {
            record.end();
            return Err(errno);
        }
        Ok(record)
    }

    /// What the file is called until it has its name.
    pub(crate) fn part_name(&self) -> OsString {
        self.part.clone()
    }

    /// Notes that the file is whole and about to take its names, each in a directory below both
    /// branches. From here on it is the old file that is left over, if nobody changed either.
    pub(super) fn complete(
        &mut self,
        names: &[(PathBuf, OsString)],
        source: (&Branch, &Statx),
        target: &Statx,
    ) -> sys::Result<()> {
        self.add(text_of_switch(names, source, target)?)?;
        rustix::fs::fsync(&self.file)
    }

    /// Adds a block, which counts as soon as it is whole.
    fn add(&mut self, intent: Vec<u8>) -> sys::Result<()> {
        let note = Note {
            holder: self.branch.mark().lasting().into(),
            look: self.look,
            part: self.part.clone(),
            intent,
        };
        let key = Keys::of_this_machine().own().ok_or(Errno::NOKEY)?;
        let block = seal(key, &self.name, self.blocks, &note.text()).ok_or(Errno::NOKEY)?;
        let len_bytes = self.len_bytes + block.len() as u64;
        if len_bytes > RECORD_MAX_BYTES as u64 {
            return Err(Errno::NAMETOOLONG);
        }
        if rustix::io::pwrite(&self.file, &block, self.len_bytes)? != block.len() {
            return Err(Errno::NOSPC);
        }
        self.blocks += 1;
        self.len_bytes = len_bytes;
        Ok(())
    }

    /// The move is over, or undone.
    pub(crate) fn end(self) {
        if let Err(errno) = rustix::fs::unlinkat(self.branch.root(), &self.name, AtFlags::empty()) {
            tracing::warn!(branch = %self.branch.path.display(), name = ?self.name, %errno, "the record of a move could not be removed");
        }
    }

    /// Leaves it for the next server.
    pub(crate) fn leave(self) -> OsString {
        self.name
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

impl Switch {
    /// What it is about, for people.
    pub(super) fn describe(&self, dir: &Path) -> String {
        let count = match self.more.len() {
            0 => String::new(),
            more => format!(" and {more} further names"),
        };
        format!(
            "a move of {}{count} from {:?}: where both branches have the file, the old one is removed \
             if the new one has all its names, else the new one",
            shown(dir, &self.name),
            self.source_branch.path()
        )
    }
}

/// Room for what stands around it in a record of two blocks.
const TEXT_MAX_BYTES: usize = RECORD_MAX_BYTES - (6 << 10);

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
    let whole = text(HEAD, dir, Some(&switch));
    if whole.len() <= TEXT_MAX_BYTES {
        return Ok(whole);
    }
    // More names than fit: both files will stay.
    switch.more.clear();
    Ok(text(HEAD, dir, Some(&switch)))
}

fn text(head: &str, dir: &Path, switch: Option<&Switch>) -> Vec<u8> {
    let mut out = format!("{head}\n").into_bytes();
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

/// A file on its way.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Move {
    /// The directory of its first name.
    pub(super) dir: PathBuf,
    /// What is known once the copy is whole.
    pub(super) switch: Option<Switch>,
    /// The copy is on the branch of the original, in whose place it goes.
    pub(super) own_copy: bool,
}

impl Move {
    pub(super) fn text(&self) -> Vec<u8> {
        let head = if self.own_copy { OWN_COPY } else { HEAD };
        text(head, &self.dir, self.switch.as_ref())
    }
}

/// A record of this kind. Where an earlier version wrote it, whether the copy is on the branch of
/// the original is told by the path of that, `holder`.
pub(super) fn parse(text: &[u8], holder: &Path) -> Option<Move> {
    let (mut reader, own_copy) = match Reader::after(OWN_COPY, text) {
        Some(reader) => (reader, true),
        None => (Reader::after_either(HEAD, EARLIER, text)?, false),
    };
    let dir = reader.dir()?;
    if reader.is_at_end() {
        let switch = None;
        return (!own_copy).then_some(Move {
            dir,
            switch,
            own_copy,
        });
    }
    let mut switch = Switch {
        name: reader.name()?,
        source_branch: Elsewhere::read(&mut reader)?,
        source: Print::parse(&reader.line()?)?,
        target: Print::parse(&reader.line()?)?,
        more: Vec::new(),
    };
    while !reader.is_at_end() {
        switch.more.push((reader.dir()?, reader.name()?));
    }
    let same = reader.is_earlier() && switch.source_branch.path() == holder;
    Some(Move {
        dir,
        switch: Some(switch),
        own_copy: own_copy || same,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch() -> Switch {
        Switch {
            name: OsString::from("n\nx"),
            source_branch: Elsewhere::new("/mnt/\n1", "ext4 2 -5"),
            source: Print {
                ino: 5,
                size_bytes: 1 << 40,
                mtime: (-3, 999_999_999),
                born_ns: -7,
            },
            target: Print {
                ino: u64::MAX,
                size_bytes: 0,
                mtime: (1, 0),
                born_ns: 0,
            },
            more: vec![
                (PathBuf::new(), OsString::from("end")),
                (PathBuf::from("a\n"), OsString::from("b")),
            ],
        }
    }

    #[test]
    fn records_read_back_and_torn_ones_do_not() {
        let dir = PathBuf::from("a/b\nend\n7");
        for (switch, own_copy) in [
            (Some(switch()), false),
            (Some(switch()), true),
            (None, false),
        ] {
            let whole = Move {
                dir: dir.clone(),
                switch,
                own_copy,
            };
            let text = whole.text();
            assert_eq!(parse(&text, Path::new("/m")).as_ref(), Some(&whole));
            for len in 0..text.len() {
                assert_eq!(
                    parse(text.get(..len).unwrap(), Path::new("/m")),
                    None,
                    "{len}"
                );
            }
        }
        let earlier = b"strandfs move 2\n1\nd\n1\nf\n4\n/mnt\n2 9\n5 6 7 8 1\n9 6 7 8 1\nend\n";
        let read = parse(earlier, Path::new("/mnt")).unwrap();
        assert_eq!((&*read.dir, read.own_copy), (Path::new("d"), true));
        assert!(!parse(earlier, Path::new("/other")).unwrap().own_copy);
    }

    #[test]
    fn names_that_lead_elsewhere_make_no_record() {
        let good = Move {
            dir: PathBuf::from("d"),
            switch: Some(switch()),
            own_copy: false,
        };
        for bad in ["..", "/etc", "a/../..", ".", "", "a//b", "a\0b"] {
            let mut dir = Move {
                dir: bad.into(),
                switch: Some(switch()),
                own_copy: false,
            };
            let mut name = Move {
                switch: Some(switch()),
                dir: "d".into(),
                own_copy: false,
            };
            let mut more = Move {
                switch: Some(switch()),
                dir: "d".into(),
                own_copy: false,
            };
            if bad.is_empty() {
                dir.dir = PathBuf::from("x/");
            }
            name.switch.as_mut().unwrap().name = bad.into();
            more.switch.as_mut().unwrap().more[0].1 = bad.into();
            for one in [dir, name, more] {
                assert_eq!(parse(&one.text(), Path::new("/m")), None, "{bad:?}");
            }
        }
        assert!(parse(&good.text(), Path::new("/m")).is_some());
    }
}
