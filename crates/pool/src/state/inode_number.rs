//! The inode numbers that users see (`inodecalc`).
//!
//! A node gets its number when it is made and keeps it until the kernel forgets it, whatever
//! happens to its names meanwhile; listings take the number of a live node from the node.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use strandfs_options::InodeCalc;

use crate::base::hash::{mix, stable_hash, stable_hash_more};
use crate::state::identity::{Identity, Presented, VolumeId};
use crate::state::node::Node;
use crate::state::view::View;
use crate::state::{State, paths};

/// Numbers below mean something to some programs (0 no entry, 1 bad blocks, 2 a root).
const FIRST: u64 = 16;
/// So many numbers that others have are passed over.
const TRIES: u64 = 64;

/// An inode of a branch, as far as its number depends on it.
#[derive(Clone, Copy)]
pub(crate) struct Numbered {
    /// The filesystem there.
    pub volume: VolumeId,
    /// The number there.
    pub ino: u64,
    /// Whether it is a directory.
    pub directory: bool,
    /// Its hard links: with several, its number cannot depend on a path.
    pub links: u32,
}

impl Numbered {
    /// A directory that goes by this identity. A symlink shown as a directory counts as the link
    /// that listings see.
    pub fn directory(identity: &Identity) -> Numbered {
        Numbered {
            volume: identity.volume,
            ino: identity.ino,
            directory: identity.presented == Presented::Own,
            links: 1,
        }
    }

    /// Anything else, with so many hard links.
    pub fn file(identity: &Identity, links: u32) -> Numbered {
        Numbered {
            volume: identity.volume,
            ino: identity.ino,
            directory: false,
            links,
        }
    }
}

/// The hash of a path in the pool, put together name by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathHash(u64);

impl PathHash {
    /// A path relative to the pool's root.
    pub fn of(path: &Path) -> PathHash {
        let root = PathHash(stable_hash(b""));
        path.iter().fold(root, |hash, name| hash.child(name))
    }

    /// A name in the directory of this path.
    pub fn child(self, name: &OsStr) -> PathHash {
        PathHash(stable_hash_more(
            stable_hash_more(self.0, b"/"),
            name.as_bytes(),
        ))
    }
}

/// Whether the number of a directory (or of anything else) depends on its path.
pub(crate) fn by_path(calc: InodeCalc, directory: bool) -> bool {
    match calc {
        InodeCalc::Passthrough | InodeCalc::DevinoHash | InodeCalc::DevinoHash32 => false,
        InodeCalc::PathHash | InodeCalc::PathHash32 => true,
        InodeCalc::HybridHash | InodeCalc::HybridHash32 => directory,
    }
}

/// The number of an inode on a volume with this seed; `path` is asked for where it matters, and
/// where it is not known the number is that of `devino-hash`.
fn number(
    calc: InodeCalc,
    inode: Numbered,
    seed: u64,
    path: impl FnOnce() -> Option<PathHash>,
) -> u64 {
    let has_one_path = inode.directory || inode.links <= 1;
    let path = (has_one_path && by_path(calc, inode.directory))
        .then(path)
        .flatten();
    let wide = match path {
        Some(path) => mix(path.0),
        None if calc == InodeCalc::Passthrough => return inode.ino,
        // A bijection for each volume, so that no two files of one volume collide.
        None => mix(inode.ino ^ seed),
    };
    narrowed(calc, wide)
}

fn narrowed(calc: InodeCalc, wide: u64) -> u64 {
    let shown = match calc {
        InodeCalc::PathHash32 | InodeCalc::DevinoHash32 | InodeCalc::HybridHash32 => {
            (wide ^ wide >> 32) & u64::from(u32::MAX)
        }
        _ => wide,
    };
    if shown < FIRST { shown + FIRST } else { shown }
}

/// The number of something about to become a node; `path` as for a name in a directory. One that
/// another node has is passed over: that node had this path, or this inode, before it was renamed
/// or moved.
pub(crate) fn inode_number(
    pool: &State,
    view: &View,
    inode: Numbered,
    path: impl FnOnce() -> Option<PathHash>,
) -> u64 {
    let calc = view.settings.presentation.inodecalc;
    let seed = pool.volumes.seed(inode.volume);
    let mut asked = None;
    let first = number(calc, inode, seed, || {
        asked = path();
        asked
    });
    // What was known under the path is replaced there, and its number is the path's.
    let is_another = |keeper: Arc<Node>| asked.is_none() || self::path_hash(pool, &keeper) != asked;
    let mut shown = first;
    for again in 1..=TRIES {
        let keeper = pool.nodes.keeper(shown, inode.volume, inode.ino);
        if !keeper.is_some_and(is_another) {
            break;
        }
        // The same for the same inode, so that listings agree.
        let wide = mix(mix(inode.ino ^ seed).wrapping_add(mix(first.wrapping_add(again))));
        shown = narrowed(calc, wide);
    }
    shown
}

/// Keeps the number of a node just made from others, where it comes from a path.
pub(crate) fn keep(pool: &State, view: &View, node: &Node) {
    if by_path(view.settings.presentation.inodecalc, node.is_dir()) {
        pool.nodes.keep_number(node);
    }
}

/// The hash of a directory's path, if it is known.
pub(crate) fn path_hash(pool: &State, node: &Arc<Node>) -> Option<PathHash> {
    paths::relative_path(pool, node).map(|path| PathHash::of(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [InodeCalc; 7] = [
        InodeCalc::Passthrough,
        InodeCalc::PathHash,
        InodeCalc::PathHash32,
        InodeCalc::DevinoHash,
        InodeCalc::DevinoHash32,
        InodeCalc::HybridHash,
        InodeCalc::HybridHash32,
    ];

    fn inode(ino: u64, directory: bool, links: u32) -> Numbered {
        Numbered {
            volume: VolumeId(0),
            ino,
            directory,
            links,
        }
    }

    #[test]
    fn each_form_depends_on_what_its_name_says() {
        let of = |calc, inode, seed, path: &str| {
            number(calc, inode, seed, || Some(PathHash::of(Path::new(path))))
        };
        for calc in ALL {
            for directory in [false, true] {
                let here = of(calc, inode(500, directory, 1), 7, "a/b");
                let moved = of(calc, inode(500, directory, 1), 7, "a/c");
                let other = of(calc, inode(501, directory, 1), 8, "a/b");
                assert_eq!(here != moved, by_path(calc, directory), "{calc}");
                assert_eq!(here != other, !by_path(calc, directory), "{calc}");
            }
            let one = of(calc, inode(500, false, 2), 7, "a");
            assert_eq!(one, of(calc, inode(500, false, 2), 7, "b"), "{calc}: links");
            let narrow = calc.name().ends_with("32");
            assert_eq!(one <= u64::from(u32::MAX), narrow || one == 500, "{calc}");
        }
        assert_eq!(of(InodeCalc::Passthrough, inode(500, true, 2), 7, "a"), 500);
    }

    #[test]
    fn paths_hash_name_by_name() {
        let whole = PathHash::of(Path::new("a/bc"));
        let root = PathHash::of(Path::new(""));
        assert_eq!(root.child(OsStr::new("a")).child(OsStr::new("bc")), whole);
        assert_ne!(PathHash::of(Path::new("ab/c")), whole);
    }
}
