//! What is sealed in a record: where it lies, what it looked like when it was made, the name of the
//! file on its way, and what is under way.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::FileType;

use crate::base::own_names::{OwnName, own_name, part_of};
use crate::base::sys;
use crate::mover::displaced::{self, Waiting};
use crate::mover::elsewhere::Elsewhere;
use crate::mover::reader::{Reader, push_part};
use crate::mover::record::{self, Move};
use crate::mover::rename_record::{self, Interrupted};
use crate::mover::undo::{self, Undo};

/// Owner and permissions of a record as its filesystem shows them: the server's and 0600, but where
/// a filesystem has none of its own (FAT) or gives them to another (NFS with `root_squash`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    user: u32,
    mode: u32,
}

impl Look {
    pub(super) fn of(file: BorrowedFd<'_>) -> sys::Result<Look> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Look {
            user: stat.st_uid,
            mode: stat.st_mode & 0o7777,
        })
    }
}

/// What a block of a record holds, but for its proof.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// The branch it lies on, as [`Mark::lasting`](crate::base::branch::Mark::lasting) says.
    pub(super) holder: OsString,
    pub(super) look: Look,
    pub(super) part: OsString,
    /// Of one of the kinds of [`Intent`].
    pub(super) intent: Vec<u8>,
}

impl Note {
    pub(super) fn text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        push_part(&mut out, &self.holder);
        let Look { user, mode } = self.look;
        out.extend_from_slice(format!("{user} {mode:o}\n").as_bytes());
        push_part(&mut out, &self.part);
        out.extend_from_slice(&self.intent);
        out
    }

    pub(super) fn parse(body: &[u8]) -> Option<Note> {
        let mut reader = Reader::of(body);
        let holder = reader.part()?;
        let look = reader.line()?;
        let (user, mode) = look.split_once(' ')?;
        let look = Look {
            user: user.parse().ok()?,
            mode: u32::from_str_radix(mode, 8).ok()?,
        };
        let part = reader.name()?;
        if own_name(&part) != Some(OwnName::Part) {
            return None;
        }
        Some(Note {
            holder,
            look,
            part,
            intent: reader.rest().to_vec(),
        })
    }

    /// What an earlier version wrote into the record of this name.
    pub(super) fn of_earlier(name: &OsStr, text: &[u8]) -> Note {
        Note {
            holder: OsString::new(),
            look: Look::default(),
            part: part_of(name),
            intent: text.to_vec(),
        }
    }
}

/// What is under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// A file moves, or gets a copy of its own.
    Move(Move),
    /// A rename over a copy further ahead.
    Rename(Interrupted),
    /// A replaced copy is set aside.
    Displaced(Waiting),
    /// A rename over several branches.
    Undo(Undo),
}

impl Intent {
    /// What a record on the branch at `holder` is about.
    pub(super) fn parse(text: &[u8], holder: &Path) -> Option<Intent> {
        let rename = || rename_record::parse(text).map(Intent::Rename);
        let aside = || displaced::parse(text).map(Intent::Displaced);
        let undo = || undo::parse(text).map(Intent::Undo);
        let moved = || record::parse(text, holder).map(Intent::Move);
        rename().or_else(aside).or_else(undo).or_else(moved)
    }

    pub(super) fn text(&self) -> Vec<u8> {
        match self {
            Intent::Move(moved) => moved.text(),
            Intent::Rename(rename) => rename.text(),
            Intent::Displaced(waiting) => waiting.text(),
            Intent::Undo(undo) => undo.text(),
        }
    }

    /// For people.
    pub(super) fn describe(&self, part: &OsStr) -> String {
        match self {
            Intent::Move(Move {
                dir, switch: None, ..
            }) => {
                format!(
                    "a move that had only begun: {:?} is removed",
                    dir.join(part)
                )
            }
            Intent::Move(Move {
                dir,
                switch: Some(switch),
                own_copy: true,
            }) => format!(
                "a copy of its own for the name {:?} (link-cow): what is left as {part:?} beside it \
                 is removed",
                dir.join(&switch.name)
            ),
            Intent::Move(Move {
                dir,
                switch: Some(switch),
                ..
            }) => switch.describe(dir),
            Intent::Rename(rename) => rename.describe(),
            Intent::Displaced(waiting) => waiting.describe(part),
            Intent::Undo(undo) => undo.describe(),
        }
    }

    /// The other branches it speaks of.
    pub(super) fn branches(&mut self) -> Vec<&mut Elsewhere> {
        match self {
            Intent::Move(moved) => {
                let switch = moved.switch.as_mut();
                switch
                    .map(|switch| &mut switch.source_branch)
                    .into_iter()
                    .collect()
            }
            Intent::Rename(rename) => rename.branches().collect(),
            Intent::Displaced(waiting) => waiting.branches().collect(),
            Intent::Undo(undo) => undo.branches().collect(),
        }
    }
}

/// Whether an open file can be a record at all.
pub(super) fn is_single_file(file: BorrowedFd<'_>) -> sys::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(regular && stat.st_nlink == 1)
}
