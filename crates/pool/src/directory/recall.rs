//! Telling the kernel to look again at what it knows, after a change of options or branches.
//!
//! Notifications wait in the kernel for requests on the same directory, so they are sent by
//! threads of their own (`telling`), never by a request's handler. Names are only marked as expired: dropping
//! a directory's name would take with it what is mounted below.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{Connection, NodeId};
use strandfs_options::Settings;

use crate::base::branch::{Branch, BranchId};
use crate::base::thread;
use crate::coherence::telling::{Stale, Teller};
use crate::coherence::{invalidate, validity};
use crate::directory::set::{self, Freshness, SlowBranches};
use crate::directory::{Directories, reading, removed_files};
use crate::state::view::View;

/// Requests that began before a change may still be on their way after it; what they bring to
/// the kernel or hold open is swept up once more, this much later.
const SECOND_SWEEP_AFTER: Duration = Duration::from_millis(200);
/// Names that come to be on a branch that is not watched, while the kernel may still take them for
/// missing from before it joined, are looked for this often, and for at most one part in so many of
/// the time.
const LATER_SWEEPS: Duration = Duration::from_millis(400);
const PART_OF_TIME: u32 = 4;

/// What has to be looked at again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reason {
    /// Names and attributes: which branches there are, or how they are searched.
    names: bool,
    /// Descriptors on branches that left.
    branches_left: bool,
    /// Branches that joined while the kernel was remembering missing names.
    joined: Vec<BranchId>,
    /// What the kernel was told is missing may be on a branch that nobody can ask.
    misses: bool,
}

impl Reason {
    pub fn between(old: &View, settings: &Settings, branches: &[Arc<Branch>]) -> Reason {
        let searched = |settings: &Settings| {
            strandfs_options::TABLE
                .iter()
                .filter(|option| option.recalls)
                .map(|option| (option.value.get)(settings))
                .collect::<Vec<_>>()
        };
        let misses = old.settings.caching.negative_entry;
        let remembers_misses = misses.is_none_or(|valid| !valid.is_zero());
        let joined = branches
            .iter()
            .map(|branch| branch.id)
            .filter(|id| remembers_misses && old.branch(*id).is_none())
            .collect();
        Reason {
            names: searched(&old.settings) != searched(settings),
            branches_left: old
                .branches
                .iter()
                .any(|known| branches.iter().all(|branch| branch.id != known.id)),
            joined,
            misses: false,
        }
    }

    /// A branch is out of use: the kernel may know names that are on it alone.
    pub fn branch_vanished() -> Reason {
        Reason {
            names: true,
            branches_left: true,
            joined: Vec::new(),
            misses: true,
        }
    }

    /// A branch is back: it may have what was missing, and copies that count.
    pub fn branch_returned(id: BranchId) -> Reason {
        Reason {
            names: true,
            branches_left: false,
            joined: vec![id],
            misses: false,
        }
    }

    fn is_nothing(&self) -> bool {
        !self.names && !self.branches_left && self.joined.is_empty() && !self.misses
    }

    fn add(&mut self, other: Reason) {
        self.names |= other.names;
        self.branches_left |= other.branches_left;
        self.joined.extend(other.joined);
        self.misses |= other.misses;
    }
}

/// The work of the recalling thread, which lives while there is some.
#[derive(Default)]
pub(crate) struct Recall {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Progress>,
    news: Condvar,
}

#[derive(Default)]
struct Progress {
    asked: u64,
    done: u64,
    running: bool,
    reason: Reason,
}

/// A change on its way to the kernel.
pub struct Recalled {
    shared: Arc<Shared>,
    ticket: u64,
}

impl std::fmt::Debug for Recalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recalled({})", self.ticket)
    }
}

impl Recalled {
    /// There was nothing to tell.
    pub(crate) fn already() -> Self {
        Recalled {
            shared: Arc::default(),
            ticket: 0,
        }
    }

    /// Waits until the kernel has been told, for `limit` at most; whether it has. A request's
    /// handler must have said that it may block, and must not insist: with every server thread
    /// waiting, nobody would answer what the kernel waits for.
    pub fn wait(&self, limit: Duration) -> bool {
        let mut state = self.shared.state.lock();
        let told = |state: &mut Progress| state.done < self.ticket;
        !self
            .shared
            .news
            .wait_while_for(&mut state, told, limit)
            .timed_out()
    }
}

/// Has the kernel told.
pub(crate) fn recall(pool: &Directories, reason: Reason) -> Recalled {
    if reason.is_nothing() {
        return Recalled::already();
    }
    let shared = Arc::clone(&pool.recall.shared);
    let mut state = shared.state.lock();
    state.asked += 1;
    state.reason.add(reason);
    let ticket = state.asked;
    if !state.running {
        let pool = pool.me.clone();
        let worker = Arc::clone(&shared);
        let started = thread::start("strandfs-recall", move || work(&pool, &worker));
        match started {
            Ok(_) => state.running = true,
            Err(error) => {
                tracing::error!(%error, "no thread to tell the kernel of the change; it shows when cached names expire");
                state.done = state.asked;
            }
        }
    }
    shared.news.notify_all();
    drop(state);
    Recalled { shared, ticket }
}

/// Has the kernel look again at everything it knows.
pub(crate) fn recall_everything(pool: &Directories) -> Recalled {
    recall(
        pool,
        Reason {
            names: true,
            ..Reason::default()
        },
    )
}

fn sweep(pool: &Directories, reason: &Reason) {
    if reason.branches_left {
        let_go_of_branches(pool);
    }
    let Some(connection) = pool.connection.get() else {
        return;
    };
    expire_missing_names(pool, connection, &reason.joined);
    if reason.names {
        expire_names(pool, connection);
    }
    // Those that are not known go with all other names, or run out within their minute.
    if reason.misses && pool.view().complete().is_err() {
        invalidate::drop_every_name(pool, connection);
    }
}

/// Drops descriptors of directories on branches that left, and keeps the nodes that had
/// their id from there.
pub(crate) fn let_go_of_branches(pool: &Directories) {
    removed_files::let_go_of_branches(pool);
    let view = Arc::clone(&pool.view());
    let mut directories = Vec::new();
    pool.nodes.for_each(|node| {
        if node.is_dir() && node.id != NodeId::ROOT {
            directories.push(Arc::clone(node));
        }
    });
    for node in directories {
        let mut place = node.place_mut();
        let left = |id: BranchId| view.branch(id).is_none();
        let old = place
            .dirs
            .take_if(|set| set.entries.iter().any(|entry| left(entry.branch.id)));
        let stays = place.copies.iter().find(|copy| !left(copy.branch)).copied();
        let lost = place.copies.iter().any(|copy| left(copy.branch));
        drop(place);
        if let Some(set) = old {
            pool.dir_fds.forget(set.entries.len());
        }
        if let (true, Some(copy)) = (lost, stays) {
            pool.nodes.keep_found(&node, &copy);
        }
    }
}

/// Marks every name the kernel knows as expired, and what it knows of directories as stale.
fn expire_names(pool: &Directories, connection: &Connection) {
    let gently = pool
        .negotiated
        .get()
        .is_some_and(|agreed| agreed.flags.contains(InitFlags::HAS_EXPIRE_ONLY));
    let nodes = invalidate::all_nodes(pool);
    for node in &nodes {
        if let Err(errno) = connection.invalidate_inode(node.id, -1, 0) {
            tracing::debug!(%errno, "the kernel could not be told of a change");
            return;
        }
    }
    // Without the gentle way a directory would lose what is mounted in it.
    invalidate::expire_names_of(pool, connection, &nodes, |node| gently || !node.is_dir());
}

/// Names the kernel remembers as missing may be on a branch that joined.
fn expire_missing_names(pool: &Directories, connection: &Connection, joined: &[BranchId]) {
    if joined.is_empty() {
        return;
    }
    let mut teller = Teller::expiring(pool, connection);
    for node in invalidate::all_nodes(pool) {
        if !node.is_dir() {
            continue;
        }
        let Ok(set) = set::dir_set_of(pool, &node, Freshness::Trusted, SlowBranches::Ask) else {
            continue;
        };
        for entry in set
            .entries
            .iter()
            .filter(|entry| joined.contains(&entry.branch.id))
            // One that is not watched has its turn again.
            .filter(|entry| {
                !entry.branch.health().is_slow() || !validity::is_unwatched(pool, entry.branch.id)
            })
        {
            let names = reading::names_in(entry).unwrap_or_default();
            teller.tell(
                node.id,
                names
                    .into_iter()
                    .map(|name| Stale::Name(name.into()))
                    .collect(),
            );
        }
    }
    invalidate::finish_telling(pool, connection, teller);
}

/// Branches that joined and are not watched, and until when the kernel may take a name for missing
/// that it was told of before.
type Unwatched = Vec<(Instant, BranchId)>;

/// Tells the kernel of changes until none is left.
fn work(pool: &Weak<Directories>, shared: &Shared) {
    let mut swept = Reason::default();
    let mut unwatched = Unwatched::new();
    let mut took = Duration::ZERO;
    loop {
        let (ticket, mut reason) = {
            let mut state = shared.state.lock();
            let pause = match swept.is_nothing() {
                true => LATER_SWEEPS.max(took * PART_OF_TIME),
                false => SECOND_SWEEP_AFTER,
            };
            if state.asked == state.done {
                let unchanged = |state: &mut Progress| state.asked == state.done;
                let _ = shared.news.wait_while_for(&mut state, unchanged, pause);
            }
            let now = Instant::now();
            unwatched.retain(|(until, _)| *until > now);
            let unmounted = pool.strong_count() == 0;
            let is_over = unwatched.is_empty() || unmounted;
            if state.asked == state.done && swept.is_nothing() && is_over {
                state.running = false;
                return;
            }
            let mut reason = std::mem::take(&mut state.reason);
            let first = reason.clone();
            reason.add(std::mem::replace(&mut swept, first));
            (state.asked, reason)
        };
        if let Some(pool) = pool.upgrade() {
            let now = Instant::now();
            let until = now + validity::misses_outlast_a_join(&pool);
            let news = swept
                .joined
                .iter()
                .filter(|id| validity::is_unwatched(&pool, **id));
            unwatched.extend(news.map(|id| (until, *id)));
            let known = unwatched.iter().map(|(_, id)| *id);
            reason.joined.extend(known);
            sweep(&pool, &reason);
            took = now.elapsed();
        }
        shared.state.lock().done = ticket;
        shared.news.notify_all();
    }
}
