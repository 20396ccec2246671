//! A branch that a record speaks of: what the record means is certain only while it is there.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::branch::{Branch, RootId};
use crate::mover::reader::{Reader, push_part};

/// A branch by its identity. Its path is for messages, and says which of two clones is meant: under
/// the path of a disk that is not mounted there is a bare directory, which tells nothing of what is
/// on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    path: PathBuf,
    id: Id,
}

/// Which branch it is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Id {
    /// As [`Mark::lasting`](crate::base::branch::Mark::lasting) says.
    Lasting(OsString),
    /// In records of earlier versions, which nobody follows as they are.
    Earlier(Option<RootId>),
}

impl Elsewhere {
    pub(super) fn of(branch: &Branch) -> Elsewhere {
        Elsewhere {
            path: branch.path.clone(),
            id: Id::Lasting(branch.mark().lasting().into()),
        }
    }

    #[cfg(test)]
    pub(super) fn new(path: &str, id: &str) -> Elsewhere {
        Elsewhere {
            path: PathBuf::from(path),
            id: Id::Lasting(id.into()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it into a record.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        push_part(out, self.path.as_os_str());
        match &self.id {
            Id::Lasting(id) => push_part(out, id),
            Id::Earlier(Some(root)) => out.extend_from_slice(format!("{root}\n").as_bytes()),
            Id::Earlier(None) => out.extend_from_slice(b"-\n"),
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Elsewhere> {
        let path = reader.part()?;
        if !path.as_bytes().starts_with(b"/") || path.as_bytes().contains(&0) {
            return None;
        }
        let id = match reader.is_earlier() {
            false => Id::Lasting(OsString::from_vec(reader.part()?.into_vec())),
            true => Id::Earlier(match reader.line()? {
                line if line == "-" => None,
                line => Some(RootId::parse(&line)?),
            }),
        };
        Some(Elsewhere {
            path: PathBuf::from(path),
            id,
        })
    }

    /// The branch, if it is among these: the one there is with this identity, or of several the one
    /// at the path.
    ///
    /// # Errors
    /// [`Absent`], and the record has to wait.
    pub(super) fn find<'b>(&self, branches: &'b [Arc<Branch>]) -> Result<&'b Arc<Branch>, Absent> {
        let same: Vec<_> = branches.iter().filter(|branch| self.is(branch)).collect();
        let named = same.iter().find(|branch| branch.path == self.path);
        match (named, &same[..]) {
            (Some(one), _) => Ok(one),
            (None, [one]) => Ok(one),
            _ => Err(Absent(self.path.clone())),
        }
    }

    /// Whether that is the branch, wherever it is.
    pub(super) fn is(&self, branch: &Branch) -> bool {
        matches!(&self.id, Id::Lasting(id) if *id.as_os_str() == *branch.mark().lasting())
    }

    /// The same, known by what is at its path now.
    ///
    /// # Errors
    /// Why that is not the branch.
    pub(super) fn identified(&self, at_path: &Branch) -> Result<Elsewhere, String> {
        let same = match &self.id {
            Id::Lasting(_) => self.is(at_path),
            Id::Earlier(None) => true,
            Id::Earlier(Some(root)) => root.is(at_path.mark().id()),
        };
        match same {
            true => Ok(Elsewhere::of(at_path)),
            false => Err(format!(
                "{} is not the branch that it was: mount the right one there",
                self.path.display()
            )),
        }
    }
}

/// The branch that would tell is not there.
#[derive(Debug)]
pub(super) struct Absent(pub(super) PathBuf);
