//! Another branch that a record speaks of: what the record means is certain only while it is there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::{Reader, push_part};
use crate::branch::Branch;
use crate::identity::RootId;

/// A branch by its path and its root directory: under the path of a disk that is not mounted there
/// is a bare directory, which tells nothing of what is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    path: PathBuf,
    /// None in the records of earlier versions, and where nothing tells it for certain.
    root: Option<RootId>,
}

impl Elsewhere {
    pub(super) fn of(branch: &Branch) -> Elsewhere {
        Elsewhere {
            path: branch.path.clone(),
            root: root_of(branch),
        }
    }

    #[cfg(test)]
    pub(super) fn new(path: &str, root: Option<&str>) -> Elsewhere {
        Elsewhere {
            path: PathBuf::from(path),
            root: root.map(|text| RootId::parse(text).unwrap()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it into a record.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        push_part(out, self.path.as_os_str());
        match &self.root {
            Some(root) => out.extend_from_slice(format!("{root}\n").as_bytes()),
            None => out.extend_from_slice(b"-\n"),
        }
    }

    /// Reads it from a record, of an earlier version without the root directory.
    pub(super) fn read(reader: &mut Reader<'_>, earlier: bool) -> Option<Elsewhere> {
        let path = PathBuf::from(reader.part()?);
        let root = match earlier {
            true => None,
            false => match reader.line()? {
                line if line == "-" => None,
                line => Some(RootId::parse(&line)?),
            },
        };
        Some(Elsewhere { path, root })
    }

    /// The branch, if it is among these.
    ///
    /// # Errors
    /// [`Absent`], and the record has to wait.
    pub(super) fn find<'b>(&self, branches: &'b [Arc<Branch>]) -> Result<&'b Arc<Branch>, Absent> {
        let mut named = branches.iter().filter(|branch| branch.path == self.path);
        named
            .find(|branch| {
                let root = self.root.as_ref();
                root.is_none_or(|root| root.is(branch.mark().id()))
            })
            .ok_or_else(|| Absent(self.path.clone()))
    }
}

/// None where nothing tells it for certain: the number alone may be another after the next mount.
fn root_of(branch: &Branch) -> Option<RootId> {
    let root = branch.mark().id();
    root.is_certain().then(|| root.clone())
}

/// The branch that would tell is not there.
#[derive(Debug)]
pub(super) struct Absent(pub(super) PathBuf);
