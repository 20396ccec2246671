//! `relocate.ahead`: closed files leave a branch before it fills up under programs whose files the
//! kernel writes by itself (passthrough), which cannot move.
//!
//! One thread looks at the branches and moves one file at a time. The move is the one of
//! `moveonenospc`, with the same record and steps; but here nobody waits for it, so the file is
//! copied while others may open and change it. Who does so wins: the copy is thrown away.

pub(super) mod candidates;
pub(super) mod pace;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use rustix::fs::Statx;
use rustix::io::Errno;
use strandfs_fuse::NodeId;
use strandfs_options::Policy;
use strandfs_options::size::MinFreeSpace;

use crate::base::branch::{Branch, BranchId};
use crate::base::policy::Space;
use crate::base::status::RelocateAhead;
use crate::base::sys;
use crate::base::thread;
use crate::directory::{choose, forget, lookup};
use crate::mover::gain::{self, Gain, InVain, Room, Trace};
use crate::mover::relay::{Relay, Runner};
use crate::mover::source::Source;
use crate::mover::{self, MoveError, MoveMode, Mover, lacks_a_branch};
use crate::state::State;
use crate::state::node::Node;
use crate::state::open_file::IoMode;
use crate::state::view::View;
use candidates::{Candidate, Candidates};
use pace::Pace;

/// Between two looks at the free space.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the end of the pool waits for a move to be given up.
const PATIENCE: Duration = Duration::from_millis(600);
/// Filesystems that free the space of a removed file later have done so by then.
const FREED_WITHIN: Duration = Duration::from_secs(1);
/// What was changed this recently could change again without a different time to tell.
const FRESH: Duration = Duration::from_secs(2);

/// What the mover shares with the pool.
#[derive(Default)]
pub(crate) struct Ahead {
    files: AtomicU64,
    bytes: AtomicU64,
    ended: AtomicBool,
    relay: Relay,
    state: Mutex<Progress>,
    news: Condvar,
}

#[derive(Default)]
struct Progress {
    running: bool,
    /// Options or branches have changed.
    woken: bool,
    /// The file on its way, as users know it.
    moving: Option<String>,
    /// Branches below the threshold from which nothing goes, and why.
    held_up: BTreeMap<BranchId, String>,
}

impl Ahead {
    /// Options or branches have changed.
    pub(crate) fn wake(&self) {
        self.state.lock().woken = true;
        self.news.notify_all();
    }

    /// Gives up what is being moved and ends the thread.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.relay.end();
        self.news.notify_all();
        let mut state = self.state.lock();
        let deadline = Instant::now() + PATIENCE;
        while state.running && !self.news.wait_until(&mut state, deadline).timed_out() {}
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for a change, no longer than `pause`.
    fn wait(&self, pause: Option<Duration>) {
        let mut state = self.state.lock();
        let deadline = pause.map(|pause| Instant::now() + pause);
        while !self.ended() && !state.woken {
            match deadline {
                None => self.news.wait(&mut state),
                Some(deadline) if self.news.wait_until(&mut state, deadline).timed_out() => break,
                Some(_) => {}
            }
        }
        state.woken = false;
    }

    /// As [`Ahead::wait`], but for the end only.
    fn sleep(&self, pause: Duration) {
        let mut state = self.state.lock();
        if !self.ended() {
            self.news.wait_for(&mut state, pause);
        }
    }

    fn hold_up(&self, branch: &Branch, why: Option<String>) {
        let mut state = self.state.lock();
        match why {
            Some(why) => state.held_up.insert(branch.id, why),
            None => state.held_up.remove(&branch.id),
        };
    }
}

/// Starts the mover, which sleeps as long as `relocate.ahead` is 0.
///
/// # Errors
/// The thread cannot be started.
pub fn start(pool: &Arc<Mover>) -> std::io::Result<()> {
    pool.ahead.state.lock().running = true;
    let started = start_with(Arc::downgrade(pool), &pool.ahead, pool.ahead.relay.turn());
    if let Err(error) = started {
        pool.ahead.state.lock().running = false;
        return Err(error);
    }
    let (pool, ahead) = (Arc::downgrade(pool), Arc::clone(&pool.ahead));
    thread::start("strandfs-relay", move || look_after(&pool, &ahead)).map(drop)
}

fn start_with(pool: Weak<Mover>, ahead: &Arc<Ahead>, turn: u64) -> std::io::Result<()> {
    let mover = AheadThread {
        pool,
        ahead: Arc::clone(ahead),
        turn,
        candidates: HashMap::new(),
        gains: HashMap::new(),
    };
    thread::start("strandfs-ahead", move || mover.run()).map(drop)
}

/// Has another thread go on where the one that moves files is held up.
fn look_after(pool: &Weak<Mover>, ahead: &Arc<Ahead>) {
    while let Some(passed_on) = ahead.relay.wait_to_pass_on() {
        let at = format!("/{}", passed_on.at.display());
        tracing::warn!(
            directory = at,
            "a move ahead of time is held up: others go on"
        );
        if let Err(error) = start_with(Weak::clone(pool), ahead, passed_on.turn) {
            tracing::warn!(%error, "no thread to move files ahead of time");
        }
    }
}

struct AheadThread {
    pool: Weak<Mover>,
    ahead: Arc<Ahead>,
    /// Of the relay.
    turn: u64,
    candidates: HashMap<BranchId, Candidates>,
    gains: HashMap<BranchId, Gain>,
}

/// What became of one look.
enum Outcome {
    /// To be looked at again at once.
    Busy,
    /// Later will do.
    Rest,
    /// The option is off.
    Off,
}

impl AheadThread {
    fn run(mut self) {
        let ahead = Arc::clone(&self.ahead);
        let runner = ahead.relay.runner(self.turn);
        while !ahead.ended() {
            if !runner.has_turn() {
                return;
            }
            let Some(pool) = self.pool.upgrade() else {
                break;
            };
            runner.beat();
            let outcome = self.look(&pool);
            runner.rests();
            drop(pool);
            match outcome {
                Outcome::Busy => {}
                Outcome::Rest => self.ahead.wait(Some(PAUSE)),
                Outcome::Off => {
                    self.candidates.clear();
                    self.ahead.wait(None);
                }
            }
        }
        self.ahead.state.lock().running = false;
        self.ahead.news.notify_all();
    }

    fn look(&mut self, pool: &Arc<Mover>) -> Outcome {
        let view = Arc::clone(&pool.view());
        let threshold = view.settings.relocation.ahead;
        let rule = view.settings.relocation.moveonenospc;
        let (Some(rule), false) = (rule, threshold == MinFreeSpace::Size(0)) else {
            self.ahead.state.lock().held_up.clear();
            return Outcome::Off;
        };
        self.candidates.retain(|id, _| view.branch(*id).is_some());
        self.gains.retain(|id, _| view.branch(*id).is_some());
        let known = |id: &BranchId| view.branch(*id).is_some();
        self.ahead.state.lock().held_up.retain(|id, _| known(id));
        if lacks_a_branch(&view) {
            return Outcome::Rest;
        }
        let mut outcome = Outcome::Rest;
        for branch in &view.branches {
            let wanted = wanted_bytes(pool, &view, branch, threshold);
            // Where somebody waits for room others make it, and faster.
            let wanted = wanted.filter(|_| !pool.held.is_wanted(branch.id));
            let Some(wanted) = wanted.filter(|_| kernel_writes_on(pool, branch)) else {
                self.ahead.hold_up(branch, None);
                continue;
            };
            match self.relieve(pool, &view, branch, rule, wanted) {
                Ok(true) => outcome = Outcome::Busy,
                Ok(false) => {}
                Err(why) => self.ahead.hold_up(branch, Some(why)),
            }
            if self.ahead.ended() || !self.ahead.relay.runner(self.turn).has_turn() {
                break;
            }
        }
        outcome
    }

    /// Moves one file off a branch. True if one has moved or the next may.
    fn relieve(
        &mut self,
        pool: &Arc<Mover>,
        view: &View,
        branch: &Arc<Branch>,
        rule: Policy,
        wanted: u64,
    ) -> Result<bool, String> {
        let gain = self.gains.entry(branch.id).or_default();
        if let Some(in_vain) = gain.holds(Instant::now()) {
            return Err(in_vain.to_string());
        }
        let candidates = self.candidates.entry(branch.id).or_default();
        let runner = self.ahead.relay.runner(self.turn);
        let stop = || {
            self.ahead.ended() || pool.view().generation != view.generation || !runner.has_turn()
        };
        candidates.look(branch, &stop, &runner);
        let Some(candidate) = candidates.pick(wanted) else {
            candidates.run_out();
            return Err(candidates.why_none());
        };
        self.ahead.state.lock().moving = Some(format!("/{}", candidate.path.display()));
        let before = room(pool, view, branch);
        let begun = Instant::now();
        let outcome = match runner.enters(candidate.dir()) {
            true => move_ahead(pool, view, branch, rule, &candidate, runner),
            false => Err(MoveError::Locked),
        };
        self.ahead.state.lock().moving = None;
        match outcome {
            Ok(Moved { bytes, trace, .. }) => {
                self.ahead.files.fetch_add(1, Ordering::Relaxed);
                self.ahead.bytes.fetch_add(bytes, Ordering::Relaxed);
                candidates.note_move();
                self.ahead.hold_up(branch, None);
                let now = self.wait_until_freed(pool, view, branch, before.as_ref(), bytes);
                if let (Some(before), Some(now)) = (before, now)
                    && let Some(in_vain) = self.note_gain(branch, (bytes, &trace), (&before, &now))
                {
                    return Err(in_vain.to_string());
                }
            }
            Err(reason) => {
                tracing::debug!(path = %candidate.path.display(), %reason, "a file is not moved ahead of time");
                candidates.note_refusal(&candidate, &reason, begun.elapsed());
            }
        }
        Ok(true)
    }

    /// Some filesystems free the space of a removed file a little later; until then it looks as
    /// if more had to go. What there is in the end.
    fn wait_until_freed(
        &self,
        pool: &Mover,
        view: &View,
        branch: &Branch,
        before: Option<&Room>,
        bytes: u64,
    ) -> Option<Room> {
        let deadline = Instant::now() + FREED_WITHIN;
        let before_bytes = before.map_or(0, |before| before.available_bytes);
        let enough = before_bytes.saturating_add(bytes / 2);
        while !self.ahead.ended()
            && Instant::now() < deadline
            && available(pool, view, branch).is_some_and(|now| now < enough)
        {
            self.ahead.sleep(Duration::from_millis(50));
        }
        room(pool, view, branch)
    }

    /// Notes what a move has come to.
    fn note_gain(
        &mut self,
        branch: &Branch,
        (bytes, trace): (u64, &Trace),
        rooms: (&Room, &Room),
    ) -> Option<InVain> {
        let total_bytes = branch
            .usable()
            .map_or(u64::MAX, |usable| usable.total_bytes);
        let gain = self.gains.entry(branch.id).or_default();
        let remains = || trace.remains(branch);
        let in_vain = gain.note(bytes, rooms, total_bytes, Instant::now(), remains)?;
        if in_vain.is_news {
            tracing::warn!(branch = %branch.path.display(), reason = %in_vain, "files are not moved ahead of time");
        }
        Some(in_vain)
    }
}

fn room(pool: &State, view: &View, branch: &Branch) -> Option<Room> {
    Some(Room {
        written_bytes: gain::written_bytes(pool, branch.id),
        available_bytes: available(pool, view, branch)?,
    })
}

fn available(pool: &State, view: &View, branch: &Branch) -> Option<u64> {
    branch.space().forget();
    Some(choose::space(pool, view, branch).ok()?.available_bytes)
}

/// What is missing on a branch until the threshold is met; `None` if it is, or if nothing may
/// be moved off it.
fn wanted_bytes(
    pool: &State,
    view: &View,
    branch: &Branch,
    threshold: MinFreeSpace,
) -> Option<u64> {
    if branch.read_only() || branch.health().is_slow() || branch.health().is_read_only() {
        return None;
    }
    branch.space().forget();
    let space = choose::space(pool, view, branch).ok()?;
    let wanted = threshold_bytes(threshold, &space).saturating_sub(space.available_bytes);
    (wanted > 0 && !space.read_only_fs).then_some(wanted)
}

/// Whether some file of the branch is open for writing in passthrough.
fn kernel_writes_on(pool: &State, branch: &Branch) -> bool {
    pool.files.any(|opened| {
        let here = || opened.branch_id() == Some(branch.id);
        let passed = || {
            let open = opened.node.open.lock();
            open.as_ref()
                .is_some_and(|open| matches!(open.mode, IoMode::Passthrough(_)))
        };
        opened.writable && here() && passed()
    })
}

/// Moves a closed file off its branch as nobody waits for it.
fn move_ahead(
    pool: &Mover,
    view: &View,
    branch: &Arc<Branch>,
    rule: Policy,
    candidate: &Candidate,
    runner: Runner<'_>,
) -> Result<Moved, MoveError> {
    let mut move_mode = Pace::new(pool, view, branch, runner);
    let _ = sys::idle_io_priority();
    let moved = move_closed(pool, view, branch, rule, candidate, &mut move_mode);
    let _ = sys::drop_io_priority();
    let moved = moved?;
    let path = format!("/{}", candidate.path.display());
    tracing::info!(path, from = %branch.path.display(), to = %moved.to.path.display(), "moved a file ahead of time");
    Ok(moved)
}

/// A file that has left its branch.
pub(super) struct Moved {
    /// Where it is.
    pub(super) to: Arc<Branch>,
    /// What it occupied.
    pub(super) bytes: u64,
    /// For what remains of it.
    pub(super) trace: Trace,
}

/// Moves a closed file off its branch.
///
/// # Errors
/// Why it stays, as it was.
pub(super) fn move_closed(
    pool: &Mover,
    view: &View,
    branch: &Arc<Branch>,
    rule: Policy,
    candidate: &Candidate,
    move_mode: &mut dyn MoveMode,
) -> Result<Moved, MoveError> {
    let found = PathNodes::at(pool, &candidate.path)?;
    let node = found.nodes.last().ok_or(Errno::NOENT)?;
    if node.primary().map(|identity| identity.branch) != Some(branch.id) {
        return Err(MoveError::OtherCopy);
    }
    let source = {
        let _alone = node.lock_for_move();
        node.opened_since.store(false, Ordering::Relaxed);
        if node.open.lock().is_some() {
            return Err(MoveError::InUse);
        }
        Source::of(pool, view, node)?
    };
    if is_fresh(&source.stat, wall_clock_ns()) {
        return Err(MoveError::Fresh);
    }
    // Of a filesystem that does not tell it turns out (see `gain`).
    let (trace, is_shared) = Trace::of(source.file.as_fd());
    if is_shared {
        return Err(MoveError::Shared);
    }
    let to = mover::move_by_policy(pool, view, node, rule, &source, move_mode)?;
    mover::attributes_are_elsewhere(pool, node);
    let bytes = source.allocated_bytes();
    Ok(Moved { to, bytes, trace })
}

/// For `strandfs status`.
pub(crate) fn ahead_status(pool: &Mover) -> RelocateAhead {
    let view = pool.view();
    let state = pool.ahead.state.lock();
    let held_up = state
        .held_up
        .iter()
        .filter_map(|(id, why)| {
            let path = view.branch(*id)?.path.to_string_lossy().into_owned();
            Some((path, why.clone()))
        })
        .collect();
    RelocateAhead {
        moved_files: pool.ahead.files.load(Ordering::Relaxed),
        moved_bytes: pool.ahead.bytes.load(Ordering::Relaxed),
        moving: state.moving.clone(),
        held_up,
    }
}

fn threshold_bytes(threshold: MinFreeSpace, space: &Space) -> u64 {
    threshold.bytes(space.available_bytes.saturating_add(space.used_bytes))
}

fn wall_clock_ns() -> i128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| i128::try_from(now.as_nanos()).unwrap_or(i128::MAX))
}

/// Whether another change now could leave the file with the times it has. Where the clock has
/// jumped since, in either direction, it could not.
fn is_fresh(stat: &Statx, now_ns: i128) -> bool {
    [stat.stx_mtime, stat.stx_ctime].iter().any(|time| {
        let at_ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
        now_ns.abs_diff(at_ns) < FRESH.as_nanos()
    })
}

/// The nodes along a path, with a reference to each as long as this lives.
struct PathNodes<'a> {
    pool: &'a Mover,
    nodes: Vec<Arc<Node>>,
}

impl<'a> PathNodes<'a> {
    fn at(pool: &'a Mover, path: &Path) -> crate::base::error::Result<PathNodes<'a>> {
        let mut found = PathNodes {
            pool,
            nodes: Vec::new(),
        };
        let mut at = NodeId::ROOT;
        for name in path {
            at = lookup::lookup(pool, at, name)?.node;
            let node = pool.nodes.get(at).ok_or(Errno::NOENT)?;
            found.nodes.push(node);
        }
        Ok(found)
    }
}

impl Drop for PathNodes<'_> {
    fn drop(&mut self) {
        for node in self.nodes.iter().rev() {
            forget::unref(self.pool, node, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_by_the_clock_as_it_is_now_is_fresh() {
        const NOW_S: i64 = 1_700_000_000;
        const NOW_NS: i128 = NOW_S as i128 * 1_000_000_000;
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut stat = sys::statx_fd(std::os::fd::AsFd::as_fd(&file)).unwrap();
        stat.stx_mtime.tv_sec = NOW_S - 3600;
        (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) = (NOW_S, 0);
        let second_ns = 1_000_000_000;
        assert!(is_fresh(&stat, NOW_NS + second_ns));
        assert!(!is_fresh(&stat, NOW_NS + 3 * second_ns));
        // The clock was set back, by seconds, by years, to its beginning; and far ahead.
        assert!(is_fresh(&stat, NOW_NS - second_ns));
        assert!(!is_fresh(&stat, NOW_NS - 3 * second_ns));
        assert!(!is_fresh(&stat, 0) && !is_fresh(&stat, i128::MAX));
        (stat.stx_ctime.tv_sec, stat.stx_mtime.tv_sec) = (i64::MAX, i64::MIN);
        assert!(!is_fresh(&stat, NOW_NS));
    }
}
