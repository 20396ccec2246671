//! Which branches are in the pool: who joins, who leaves, and who comes back.

use std::path::PathBuf;
use std::sync::Arc;

use smallvec::SmallVec;
use strandfs_fuse::NodeId;
use strandfs_options::BranchSpec;
use strandfs_options::branch::reach;

use crate::base::branch::{Branch, BranchId, Mark, Missing, is_marked};
use crate::base::sys;
use crate::coherence::{Coherent, copies, watched};
use crate::directory::fds;
use crate::mover::Mover;
use crate::state::node::{DirEntry, DirSet};
use crate::state::pool_error::PoolError;
use crate::state::view::{View, root_set};
use crate::state::{State, passthrough};

/// What changes need to remember. Locked while one is made: they follow each other.
pub(crate) struct Changes {
    next_id: usize,
    retired: Vec<Retired>,
}

impl Changes {
    /// The pool was mounted with this many branches.
    pub fn after(branches: usize) -> Self {
        Changes {
            next_id: branches,
            retired: Vec::new(),
        }
    }
}

/// A branch that left the pool. If it comes back it is the same branch, so that numbers, handles
/// and what is still open go on.
struct Retired {
    id: BranchId,
    path: PathBuf,
    root: Mark,
}

/// Branches in use, and out of use.
type Members = (Vec<Arc<Branch>>, Vec<Arc<Missing>>);

/// The branches of the new list: the ones there are, with their new rules, and new ones.
pub(crate) fn next_branches(
    pool: &State,
    old: &View,
    specs: &[BranchSpec],
    changes: &mut Changes,
) -> Result<Members, PoolError> {
    let mut next: Vec<Arc<Branch>> = Vec::with_capacity(specs.len());
    let mut missing = Vec::new();
    for spec in specs {
        if let Some(known) = old.missing.iter().find(|m| m.spec.path == spec.path) {
            missing.push(Arc::new(known.with_rules_of(spec)));
            continue;
        }
        let stays = old.branches.iter().find(|known| known.path == spec.path);
        let branch = match stays {
            Some(known) if known.follows(spec) => Arc::clone(known),
            Some(known) => Arc::new(known.with_rules_of(spec)),
            None => Arc::new(open_new(pool, spec, changes)?),
        };
        let twin = |other: &&Arc<Branch>| other.mark().same_directory(branch.mark());
        if let Some(other) = next.iter().find(twin) {
            return Err(PoolError::SameDirectory {
                path: spec.path.clone(),
                other: other.path.clone(),
            });
        }
        next.push(branch);
    }
    Ok((next, missing))
}

fn open_new(pool: &State, spec: &BranchSpec, changes: &mut Changes) -> Result<Branch, PoolError> {
    let path = &spec.path;
    if let Some(mountpoint) = pool.mountpoint.get()
        && (path.starts_with(mountpoint) || mountpoint.starts_with(path))
    {
        return Err(PoolError::Loop {
            path: path.clone(),
            mountpoint: mountpoint.clone(),
        });
    }
    let failed = |errno| PoolError::Branch {
        path: path.clone(),
        errno,
    };
    let patience = pool.view().settings.pool.patience();
    if !reach::find_silent([path.as_path()], patience).is_empty() {
        return Err(PoolError::Silent { path: path.clone() });
    }
    let branch = Branch::open(BranchId(u16::MAX), spec).map_err(failed)?;
    if let Some(marker) = &pool.view().settings.health.branch_marker
        && !is_marked(branch.root(), marker)
    {
        let (path, marker) = (path.clone(), marker.clone());
        return Err(PoolError::Unmarked { path, marker });
    }
    let back = changes
        .retired
        .iter()
        .find(|gone| gone.path == *path && gone.root.never_left(branch.mark()));
    if let Some(gone) = back {
        return Ok(branch.with_id(gone.id));
    }
    let id = u16::try_from(changes.next_id).map_err(|_| PoolError::TooManyBranches)?;
    if id == u16::MAX {
        return Err(PoolError::TooManyBranches);
    }
    changes.next_id += 1;
    Ok(branch.with_id(BranchId(id)))
}

/// The root on the new branches; those that stay are not asked again.
pub(crate) fn next_root(
    pool: &Coherent,
    old: &View,
    branches: &[Arc<Branch>],
    generation: u64,
) -> Result<Arc<DirSet>, PoolError> {
    let new: Vec<Arc<Branch>> = branches
        .iter()
        .filter(|branch| old.root.on(branch.id).is_none())
        .cloned()
        .collect();
    let new = root_set(
        &pool.volumes,
        &pool.coherence.lookups.dir_caches,
        &new,
        generation,
    )?;
    let entries: SmallVec<[DirEntry; 2]> = branches
        .iter()
        .filter_map(|branch| {
            let known = old.root.on(branch.id).or_else(|| new.on(branch.id))?;
            Some(known.under(branch))
        })
        .collect();
    let structure = pool.coherence.changes.structure();
    let mut root = DirSet::new(entries, sys::mono_coarse_ms(), generation, structure);
    root.note_narrowed(&old.root);
    Ok(Arc::new(root))
}

/// After the change: passthrough is tried on branches that joined, and those that left are
/// let go.
pub(crate) fn welcome_and_retire(pool: &Coherent, old: &View, changes: &mut Changes) {
    let view = Arc::clone(&pool.view());
    let joined: Vec<Arc<Branch>> = view
        .branches
        .iter()
        .filter(|branch| old.branch(branch.id).is_none())
        .cloned()
        .collect();
    passthrough::welcome(pool, &joined);
    changes
        .retired
        .retain(|gone| joined.iter().all(|branch| branch.id != gone.id));
    for branch in &old.branches {
        if view.branch(branch.id).is_some() {
            continue;
        }
        watched::unwatch(pool, branch.id);
        pool.volumes.close(branch.id);
        changes.retired.push(Retired {
            id: branch.id,
            path: branch.path.clone(),
            root: branch.mark().clone(),
        });
    }
}

/// Puts a view with other branches in force; who holds the lock of changes may.
pub(crate) fn replace_branches(
    pool: &Mover,
    _changes: &Changes,
    old: &View,
    branches: Vec<Arc<Branch>>,
    missing: Vec<Arc<Missing>>,
) -> Result<(), PoolError> {
    let generation = old.generation + 1;
    let root = next_root(pool, old, &branches, generation)?;
    put_in_force(
        pool,
        View {
            generation,
            branches_since: generation,
            root,
            settings: old.settings.clone(),
            branches,
            missing,
        },
    );
    Ok(())
}

/// Puts a view in force, its root with it.
pub(crate) fn put_in_force(pool: &Mover, view: View) {
    let root = Arc::clone(&view.root);
    pool.note_narrowed(&root);
    pool.volumes
        .mounts
        .set_rule(view.settings.health.cross_mounts);
    pool.set_view(view);
    if let Some(node) = pool.nodes.get(NodeId::ROOT) {
        let mut place = node.place_mut();
        place.copies = root.entries.iter().map(|entry| entry.identity).collect();
        place.dirs = Some(root);
        drop(place);
        // Or what is reported of the root on a branch that joined would be nobody's.
        copies::note_copies(pool, &node);
    }
    fds::count_descriptors(pool);
    pool.ahead.wake();
    pool.held_writers.kick();
}
