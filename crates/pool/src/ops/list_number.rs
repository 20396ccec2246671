//! What a listing says of a name beside the name: the number that `stat(2)` will show, and the
//! type where no option may change it.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use smallvec::SmallVec;
use strandfs_fuse::FileKind;
use strandfs_options::FollowSymlinks;

use crate::base::sys;
use crate::directory::Directories;
use crate::directory::listing::Listed;
use crate::directory::lookup::{self, Presentations};
use crate::state::State;
use crate::state::identity::{Identity, Presented, VolumeId, kind_of};
use crate::state::inode_number::{self, Numbered, PathHash, by_path};
use crate::state::node::{DirSet, Node};
use crate::state::view::View;

/// The directory being listed.
pub(crate) struct ListedDir<'a> {
    view: &'a View,
    set: &'a DirSet,
    /// The hash of its path, where numbers may depend on it.
    path: Option<PathHash>,
}

impl ListedDir<'_> {
    fn path_of(&self, name: &OsStr) -> Option<PathHash> {
        self.path.map(|path| path.child(name))
    }

    /// Whether something of this type may be shown as something else, which only a look tells.
    fn may_be_disguised(&self, kind: Option<FileKind>) -> bool {
        let shown = &self.view.settings.presentation;
        let follows = shown.follow_symlinks != FollowSymlinks::Never;
        match kind {
            Some(FileKind::Symlink) => follows,
            Some(FileKind::Regular) => shown.symlinkify,
            None => follows || shown.symlinkify,
            Some(_) => false,
        }
    }
}

pub(crate) fn place<'a>(
    pool: &State,
    view: &'a View,
    node: &Arc<Node>,
    set: &'a DirSet,
) -> ListedDir<'a> {
    let path = match by_path(view.settings.presentation.inodecalc, true) {
        true => inode_number::path_hash(pool, node),
        false => None,
    };
    ListedDir { view, set, path }
}

/// The number and type of a listed name.
pub(crate) fn listed_as(
    pool: &Directories,
    place: &ListedDir<'_>,
    name: &OsStr,
    entry: &Listed,
) -> (u64, Option<FileKind>) {
    let disguised = place.may_be_disguised(entry.kind);
    let kind = entry.kind.filter(|_| !disguised);
    if let Some(node) = self::live(pool, entry.volume, entry.ino, disguised) {
        return (node.ino, kind);
    }
    let maybe_dir = matches!(kind, None | Some(FileKind::Directory));
    if entry.repeated
        && maybe_dir
        && let Some(ino) = union_number(pool, place, name)
    {
        return (ino, kind);
    }
    (number_of(pool, place, name, entry), kind)
}

fn live(pool: &State, volume: VolumeId, ino: u64, disguised: bool) -> Option<Arc<Node>> {
    let own = pool.nodes.find(volume, ino, Presented::Own);
    // One that moved to another branch is under its old inode still, which is another's by now.
    let own = own.filter(|node| node.has_copy(volume, ino));
    own.or_else(|| {
        let other = || pool.nodes.find(volume, ino, Presented::Other);
        disguised.then(other).flatten()
    })
}

/// The number of something on one branch that is no node yet.
fn number_of(pool: &State, place: &ListedDir<'_>, name: &OsStr, entry: &Listed) -> u64 {
    let calc = place.view.settings.presentation.inodecalc;
    let mut numbered = Numbered {
        volume: entry.volume,
        ino: entry.ino,
        directory: entry.kind == Some(FileKind::Directory),
        links: 1,
    };
    let links_matter = !numbered.directory && by_path(calc, false);
    let type_matters = entry.kind.is_none() && by_path(calc, true);
    if (links_matter || type_matters)
        && let Some(dir) = place.set.on(entry.branch)
        && let Ok(stat) = sys::statx_name(dir.fd.as_fd(), name)
    {
        numbered.directory = kind_of(&stat) == FileKind::Directory;
        numbered.links = stat.stx_nlink;
    }
    inode_number::inode_number(pool, place.view, numbered, || place.path_of(name))
}

/// The number of a name on several branches if it is a directory: that of its node, or the
/// one that it would get as a node.
fn union_number(pool: &Directories, place: &ListedDir<'_>, name: &OsStr) -> Option<u64> {
    let found = lookup::find_copies(pool, place.view, place.set, name, Presentations::ByOptions);
    let copies = found.ok()?;
    if kind_of(&copies.first()?.stat) != FileKind::Directory {
        return None;
    }
    let identities: SmallVec<[Identity; 1]> = copies
        .iter()
        .filter_map(|copy| lookup::identity_of(pool, copy, name).ok())
        .collect();
    let live = identities
        .iter()
        .find_map(|copy| pool.nodes.find(copy.volume, copy.ino, copy.presented));
    if let Some(node) = live {
        return Some(node.ino);
    }
    let eldest = pool.volumes.eldest_first(&identities);
    let numbered = Numbered::directory(eldest.first()?);
    Some(inode_number::inode_number(
        pool,
        place.view,
        numbered,
        || place.path_of(name),
    ))
}
