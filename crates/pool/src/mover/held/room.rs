//! The thread that makes room on one branch while somebody waits for it: closed files move off, one at
//! a time, as fast as they can. It is there from the first who waits until nobody has for a while.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use strandfs_options::Policy;

use super::ledger;
use super::queue::Queue;
use crate::base::branch::Branch;
use crate::base::policy::Space;
use crate::base::thread;
use crate::directory::choose;
use crate::mover::ahead::candidates::{Candidate, Search};
use crate::mover::ahead::{Moved, move_closed, pace};
use crate::mover::gain::{self, InVain, Room};
use crate::mover::relay::Runner;
use crate::mover::source::Source;
use crate::mover::{MoveError, MoveMode, Mover, lacks_a_branch};
use crate::state::node::{ExclusiveMoveLock, Node};
use crate::state::view::View;

/// How long the thread stays when nobody waits.
const IDLE: Duration = Duration::from_secs(10);
/// What is made free beyond what those who wait need, as long as somebody had to wait lately: they will
/// want more.
const BEYOND_BYTES: u64 = 256 << 20;
/// No more of the branch than this part, 1 / …
const BEYOND_PART: u64 = 8;
/// A search that has found something goes no further at first.
const SEARCH: Duration = Duration::from_millis(300);
/// So long it is worth to wait for files that have only just been changed: one that is left alone has come
/// of age by then.
const FRESH_FOR: Duration = Duration::from_secs(4);
/// They are tried again after so long.
const COMING_OF_AGE: Duration = Duration::from_millis(200);

/// Has room made on the branch of a queue; the thread is started if there is none.
pub(super) fn make(pool: &Arc<Mover>, queue: &Arc<Queue>) {
    if queue.begin_work() {
        start(pool, queue, queue.relay.turn());
    }
}

/// Has another thread go on where the one that makes room is held up.
pub(super) fn go_on(pool: &Arc<Mover>, queue: &Arc<Queue>) {
    if let Some(passed_on) = queue.relay.pass_on() {
        let at = format!("/{}", passed_on.at.display());
        tracing::warn!(
            directory = at,
            "a move that makes room is held up: others go on"
        );
        start(pool, queue, passed_on.turn);
    }
}

fn start(pool: &Arc<Mover>, queue: &Arc<Queue>, turn: u64) {
    let worker = Worker {
        pool: Arc::downgrade(pool),
        queue: Arc::clone(queue),
        turn,
        found: Vec::new(),
        locked: Vec::new(),
        fresh: Vec::new(),
        search: None,
        stayed: None,
        moved: 0,
        asked: None,
        begun: Instant::now(),
        last_move: Instant::now(),
    };
    if let Err(error) = thread::start("strandfs-room", move || worker.run()) {
        tracing::warn!(%error, "no thread to make room");
        queue.end_work();
        queue.give_up(Duration::ZERO);
    }
}

struct Worker {
    pool: Weak<Mover>,
    queue: Arc<Queue>,
    /// Of the queue's relay.
    turn: u64,
    /// Files that could move.
    found: Vec<Candidate>,
    /// Those in a directory where another thread is held up.
    locked: Vec<Candidate>,
    /// Those that have only just been changed.
    fresh: Vec<Candidate>,
    /// Present from the first time that somebody waits until all that was found has been tried.
    search: Option<Search>,
    /// Why the last file stayed that did.
    stayed: Option<String>,
    /// Since the search began.
    moved: u32,
    /// How often those who wait had been decided on when nothing was left that could move.
    asked: Option<u64>,
    begun: Instant,
    /// Or the first who waited.
    last_move: Instant,
}

impl Worker {
    fn run(mut self) {
        while self.runner().has_turn() {
            self.runner().rests();
            if !self.queue.next_work(IDLE) {
                return;
            }
            let Some(pool) = self.pool.upgrade().filter(|pool| !pool.held.ended()) else {
                self.queue.end_work();
                return;
            };
            if self.queue.is_hopeless() {
                // Those who wait are about to be let go.
                drop(pool);
                self.queue.pause(COMING_OF_AGE);
                continue;
            }
            self.work(&pool);
        }
    }

    fn runner(&self) -> Runner<'_> {
        self.queue.relay.runner(self.turn)
    }

    /// Makes room until nobody wants it, or another thread does.
    fn work(&mut self, pool: &Arc<Mover>) {
        (self.last_move, self.asked) = (Instant::now(), None);
        if self.search.as_ref().is_some_and(Search::is_over) {
            // What could not move then may have been closed since.
            (self.search, self.moved) = (None, 0);
        }
        while !pool.held.ended() && self.runner().has_turn() {
            self.runner().beat();
            let view = Arc::clone(&pool.view());
            let branch = view.branch(self.queue.branch).cloned();
            let (Some(branch), Some(rule)) = (branch, view.settings.relocation.moveonenospc) else {
                self.give_up(pool, "the branch or moveonenospc is gone");
                return;
            };
            let Some(wanted) = wanted_bytes(&self.queue, &branch) else {
                return;
            };
            if wanted == 0 {
                pool.held_writers.kick();
                self.queue.pause(Duration::from_millis(50));
                continue;
            }
            if lacks_a_branch(&view) {
                self.give_up(pool, "a branch is missing");
                return;
            }
            let Some(candidate) = self.next(pool, &view, &branch, wanted) else {
                if self.queue.len() == 0 {
                    // It was for those who may come.
                    return;
                }
                if !self.is_really_needed(pool) {
                    pool.held_writers.kick();
                    self.queue.pause(COMING_OF_AGE);
                    continue;
                }
                // A file that is held up on its way makes room when it gets there.
                if self.queue.relay.left_behind() > 0 {
                    self.queue.pause(COMING_OF_AGE);
                    continue;
                }
                // Who keeps changing files keeps nobody waiting.
                let too_long = self.last_move.elapsed() > FRESH_FOR;
                if self.fresh.is_empty() || too_long {
                    if !too_long && self.has_reclaimed(&branch) {
                        pool.held_writers.kick();
                        self.queue.pause(COMING_OF_AGE);
                        continue;
                    }
                    self.give_up(pool, "no file can move");
                    return;
                }
                self.queue.pause(COMING_OF_AGE);
                self.found = std::mem::take(&mut self.fresh);
                self.found.sort();
                continue;
            };
            self.asked = None;
            if let Some(in_vain) = self.move_off(pool, &view, &branch, rule, candidate) {
                self.give_up_in_vain(pool, &branch, &in_vain);
                return;
            }
        }
    }

    /// Whether somebody waits for room, after all that was freed and taken has been looked at. Until that is
    /// known, and as long as it is only what others were allowed (which is taken or forgotten soon), no.
    fn is_really_needed(&mut self, pool: &Mover) -> bool {
        let (settled, kept_by_promises) = self.queue.settled();
        // The look that is under way may have begun before the last move was over.
        let due = self.asked.get_or_insert(settled).saturating_add(2);
        match settled < due {
            // Nobody decides any more: those who wait are let go.
            true => !pool.held.is_answering(),
            false => !kept_by_promises,
        }
    }

    /// Files move, and those who wait have nothing of it.
    fn give_up_in_vain(&mut self, pool: &Mover, branch: &Branch, in_vain: &InVain) {
        if in_vain.is_news {
            tracing::warn!(branch = %branch.path.display(), reason = %in_vain, "no more files are moved to make room");
        }
        self.give_up(pool, "moving files frees nothing");
        self.queue.rest_for(in_vain.pause);
    }

    fn give_up(&mut self, pool: &Mover, why: &str) {
        let spent = self.begun.elapsed();
        (self.search, self.moved, self.asked) = (None, 0, None);
        self.fresh.clear();
        if self.queue.len() > 0 {
            let stayed = self.stayed.take();
            tracing::info!(why, stayed, "no room can be made for those who wait");
            self.queue.give_up(spent);
        }
        pool.held_writers.kick();
    }

    /// The next file to move: of those that have a place to go, the smallest that suffices, else the
    /// largest.
    fn next(
        &mut self,
        pool: &Mover,
        view: &View,
        branch: &Arc<Branch>,
        wanted_bytes: u64,
    ) -> Option<Candidate> {
        let largest = largest_place(pool, view, branch);
        loop {
            self.found.retain(|file| file.bytes <= largest);
            if let Some(last) = self.found.len().checked_sub(1) {
                let suffices = self.found.partition_point(|file| file.bytes < wanted_bytes);
                return Some(self.found.remove(suffices.min(last)));
            }
            if self.queue.relay.left_behind() == 0 {
                // Whoever was held up is back.
                self.found = std::mem::take(&mut self.locked);
                self.found.sort();
                self.search.iter_mut().for_each(Search::look_at_left_out);
                if !self.found.is_empty() {
                    continue;
                }
            }
            if self.search.as_ref().is_none_or(Search::is_over) {
                // What others have closed, or made, since it began.
                if self.search.is_some() && self.moved == 0 {
                    return None;
                }
                self.search = Search::begin(branch);
                (self.moved, self.begun) = (0, Instant::now());
            }
            let until = Instant::now() + SEARCH;
            let runner = self.queue.relay.runner(self.turn);
            let stop = |found: usize| {
                pool.held.ended() || !runner.has_turn() || found > 0 && Instant::now() >= until
            };
            self.found = self.search.as_mut()?.go_on(branch, &stop, &runner);
            if self.found.is_empty() && (pool.held.ended() || !runner.has_turn()) {
                return None;
            }
        }
    }

    fn move_off(
        &mut self,
        pool: &Arc<Mover>,
        view: &View,
        branch: &Arc<Branch>,
        rule: Policy,
        candidate: Candidate,
    ) -> Option<InVain> {
        if !self.runner().enters(candidate.dir()) {
            self.locked.push(candidate);
            return None;
        }
        let mut in_vain = None;
        let before = room(pool, branch);
        let mut haste = Haste {
            pool,
            view,
            queue: &self.queue,
            turn: self.turn,
        };
        let begun = Instant::now();
        match move_closed(pool, view, branch, rule, &candidate, &mut haste) {
            Ok(Moved { to, bytes, trace }) => {
                self.make_freed_usable(branch);
                if let (Some(before), Some(now)) = (before, room(pool, branch)) {
                    in_vain = self
                        .queue
                        .note_gain(bytes, (&before.0, &now.0), now.1, || trace.remains(branch));
                }
                let counts = &pool.held.counts;
                counts.moved_files.fetch_add(1, Ordering::Relaxed);
                counts.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.moved += 1;
                self.last_move = Instant::now();
                let path = format!("/{}", candidate.path.display());
                tracing::info!(path, from = %branch.path.display(), to = %to.path.display(), took = ?begun.elapsed(), "moved a file to make room");
            }
            Err(reason) => {
                tracing::debug!(path = %candidate.path.display(), %reason, "a file does not make room");
                self.stayed = Some(format!("/{}: {reason}", candidate.path.display()));
                match reason {
                    MoveError::Fresh => self.fresh.push(candidate),
                    // It is not what kept it: the next who waits may have it.
                    MoveError::Called => {
                        self.found.push(candidate);
                        self.found.sort();
                    }
                    _ => {}
                }
            }
        }
        pool.held_writers.kick();
        in_vain
    }

    /// Without this it would look as if more files had to go.
    fn make_freed_usable(&self, branch: &Branch) {
        // Meanwhile it is the disk that is waited for.
        self.runner().rests();
        if let Err(errno) = branch.commit_freed() {
            tracing::warn!(branch = %branch.path.display(), %errno, "what a moved file occupied may not be free yet");
        }
    }

    /// Whether the filesystem had room put by that it gives back.
    fn has_reclaimed(&self, branch: &Branch) -> bool {
        self.runner().rests();
        let available = || branch.usable().map(|it| it.available_bytes);
        let before = available();
        match branch.reclaim() {
            Ok(()) => matches!((before, available()), (Ok(before), Ok(now)) if now > before),
            Err(errno) => {
                tracing::warn!(branch = %branch.path.display(), %errno, "what is reserved ahead of writers stays");
                false
            }
        }
    }
}

/// What there is on a branch, and its size.
fn room(pool: &Mover, branch: &Branch) -> Option<(Room, u64)> {
    let written_bytes = gain::written_bytes(pool, branch.id);
    let usable = branch.usable().ok()?;
    let room = Room {
        available_bytes: usable.available_bytes,
        written_bytes,
    };
    Some((room, usable.total_bytes))
}

/// What is to be made free: `None` if nobody wants it, 0 if it is free already.
fn wanted_bytes(queue: &Queue, branch: &Branch) -> Option<u64> {
    if !queue.is_wanted() {
        return None;
    }
    let room = branch.usable().ok()?;
    let need = queue.need_bytes();
    let beyond = BEYOND_BYTES.min(room.total_bytes / BEYOND_PART);
    let goal = need.saturating_add(need / 16).saturating_add(beyond);
    // On a small branch that part of it is less than what lets anybody go on.
    let goal = goal.max(ledger::sufficient_bytes(need, 0));
    let missing = goal.saturating_sub(room.available_bytes);
    // Beyond what is needed nobody waits for it.
    match missing == 0 && queue.len() == 0 {
        true => None,
        false => Some(missing),
    }
}

/// The largest file that another branch could take.
fn largest_place(pool: &Mover, view: &View, from: &Branch) -> u64 {
    places(pool, view, from).max().unwrap_or(0)
}

/// What each of the other branches could take.
fn places(pool: &Mover, view: &View, from: &Branch) -> impl Iterator<Item = u64> {
    let others = view
        .branches
        .iter()
        .filter(|branch| branch.id != from.id && !branch.read_only() && !branch.no_create());
    others.filter_map(|branch| {
        branch.space().forget();
        let space = choose::space(pool, view, branch).ok()?;
        if space.no_inodes {
            return None;
        }
        let spare = spare_bytes(&space);
        Some(space.available_bytes.saturating_sub(spare))
    })
}

/// Whether so much can be free on a branch at all, if everything moves off it that another can take. Asks
/// all branches.
pub(super) fn is_possible(pool: &Mover, view: &View, branch: &Branch, need_bytes: u64) -> bool {
    let Ok(room) = branch.usable() else {
        return true;
    };
    let places = places(pool, view, branch).fold(0, u64::saturating_add);
    let fits = |available: u64| need_bytes <= available.saturating_add(places);
    if need_bytes > room.total_bytes || fits(room.available_bytes) {
        return need_bytes <= room.total_bytes;
    }
    // What the filesystem has put by for other writers counts, too.
    branch.reclaim().is_ok() && branch.usable().is_ok_and(|now| fits(now.available_bytes))
}

/// What another branch keeps: its own writers may need it.
fn spare_bytes(space: &Space) -> u64 {
    let total = space.available_bytes.saturating_add(space.used_bytes);
    let beyond = BEYOND_BYTES.min(total / BEYOND_PART);
    space.min_free_bytes.max(beyond)
}

/// A move for which somebody waits.
struct Haste<'a> {
    pool: &'a Mover,
    view: &'a View,
    queue: &'a Queue,
    turn: u64,
}

impl Haste<'_> {
    fn go_on(&self, node: &Node) -> Result<(), MoveError> {
        if self.pool.held.ended()
            || self.pool.view().generation != self.view.generation
            || !self.queue.is_wanted()
        {
            return Err(MoveError::Called);
        }
        match node.opened_since.load(Ordering::Relaxed) {
            true => Err(MoveError::InUse),
            false => Ok(()),
        }
    }
}

impl MoveMode for Haste<'_> {
    fn spare_bytes(&self, space: &Space) -> u64 {
        spare_bytes(space)
    }

    fn copied(&mut self, node: &Node, _to: BorrowedFd<'_>, _bytes: u64) -> Result<(), MoveError> {
        // From here on, until all is copied and synced, it is the disk that is waited for.
        self.queue.relay.runner(self.turn).rests();
        self.go_on(node)
    }

    fn close_in<'n>(
        &mut self,
        pool: &Mover,
        node: &'n Node,
        source: &Source,
    ) -> Result<Option<ExclusiveMoveLock<'n>>, MoveError> {
        self.queue.relay.runner(self.turn).beat();
        self.go_on(node)?;
        pace::close_in(pool, node, source).map(Some)
    }
}
