//! All requests of the pool that wait for a lock: whose they are, which of them wait for each other
//! in a circle, and when those are tried again that somebody outside the pool stands against.
//!
//! Lock order: the registry, then the tables of one node. Nothing here is locked over a call to a
//! branch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Deferred, LockOwner};

use crate::base::blocking_pool::BlockingPool;
use crate::base::rank;
use crate::base::thread;
use crate::state::lock_table::{LockMode, Span};
use crate::state::range_locks::{Answers, Asked, NodeLocks, RangeCounts, Sort, Waiter};

/// How many requests of one user may wait. Whoever has more gets ENOLCK. Not root.
const MOST_OF_USER: usize = if cfg!(test) { 2000 } else { 200_000 };
/// Owners that are looked at for a circle; the kernel gives up after ten.
const MOST_OWNERS: usize = 256;
/// Pause before a lock that somebody outside holds is tried again: doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// A node is looked at for at most one part in so many of the time.
const PART_OF_TIME: u32 = 20;

/// One request that waits, as it is known outside of its node.
#[derive(Debug)]
pub struct Wait {
    node: Weak<NodeLocks>,
    sort: Sort,
    span: Span,
    kind: LockMode,
    owner: LockOwner,
    uid: u32,
    /// Both under the lock of the node's tables, or before a look under it.
    turn: AtomicU64,
    interrupted: AtomicBool,
}

impl Wait {
    /// Whether its caller got a signal.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Its turn among those who wait for the node; under the lock of the node's tables.
    pub fn set_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Takes it out of its node, if it is there.
    fn take_out(&self) -> Option<Waiter> {
        let node = self.node.upgrade()?;
        let mut tables = node.tables();
        let waiting = &mut tables.of(self.sort).waiting;
        waiting.remove(self.span, self.kind, self.turn.load(Ordering::Relaxed))
    }

    /// Who stands against it, while it waits.
    fn blockers(&self) -> Vec<LockOwner> {
        let Some(node) = self.node.upgrade() else {
            return Vec::new();
        };
        let mut tables = node.tables();
        let table = tables.of(self.sort);
        let turn = self.turn.load(Ordering::Relaxed);
        if !table.waiting.has(self.span, self.kind, turn) {
            return Vec::new();
        }
        let against = table.held.against(self.owner, self.span, self.kind);
        let mut owners: Vec<_> = against.take(MOST_OWNERS).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }
}

#[derive(Default)]
struct Registry {
    waits: HashMap<u64, Arc<Wait>>,
    /// Those of processes, which may wait for each other in a circle.
    of_process: HashMap<LockOwner, SmallVec<[Arc<Wait>; 1]>>,
    of_user: HashMap<u32, usize>,
    ended: bool,
}

impl Registry {
    fn add(&mut self, unique: u64, wait: &Arc<Wait>, of_process: bool) {
        self.waits.insert(unique, Arc::clone(wait));
        *self.of_user.entry(wait.uid).or_default() += 1;
        if of_process {
            let waits = self.of_process.entry(wait.owner).or_default();
            waits.push(Arc::clone(wait));
        }
    }

    fn remove(&mut self, unique: u64) {
        let Some(wait) = self.waits.remove(&unique) else {
            return;
        };
        if let Some(count) = self.of_user.get_mut(&wait.uid) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&wait.uid);
            }
        }
        if let Some(waits) = self.of_process.get_mut(&wait.owner) {
            waits.retain(|known| !Arc::ptr_eq(known, &wait));
            if waits.is_empty() {
                self.of_process.remove(&wait.owner);
            }
        }
    }

    /// Whether this request waits for its own owner, by way of others that wait.
    fn is_circle(&self, wait: &Wait) -> bool {
        let mut seen = HashSet::new();
        let mut next = wait.blockers();
        while let Some(owner) = next.pop() {
            if owner == wait.owner {
                return true;
            }
            if seen.len() >= MOST_OWNERS || !seen.insert(owner) {
                continue;
            }
            let waits = self.of_process.get(&owner).into_iter().flatten();
            next.extend(waits.flat_map(|wait| wait.blockers()));
        }
        false
    }
}

/// What became of a request that was to wait.
#[derive(Debug)]
pub enum Queued {
    /// It waits, or has been answered since.
    Waits,
    /// Nobody of the pool stands against it any more.
    Free(Deferred),
    /// It must not wait, for this reason.
    Refused(Deferred, Errno),
}

/// All requests that wait for locks.
#[derive(Default)]
pub struct LockWaits {
    registry: rank::Mutex<Registry, { rank::LOCK_WAITS }>,
    clock: Mutex<Clock>,
    changed: Condvar,
    blocking_pool: BlockingPool,
    held: Arc<RangeCounts>,
}

/// Nodes to be looked at again.
#[derive(Default)]
struct Clock {
    due: BTreeMap<(Instant, u64), Weak<NodeLocks>>,
    numbers: u64,
    runs: bool,
    ended: bool,
}

impl LockWaits {
    /// The locks of one more node.
    pub fn new_node(&self) -> Arc<NodeLocks> {
        Arc::new(NodeLocks::new(Arc::clone(&self.held)))
    }

    /// Lets a request wait: `outside` if the branch said no to it. `of_process` if its owner is a
    /// process, which cannot unlock anything while it waits.
    pub fn enqueue(
        self: &Arc<Self>,
        locks: &Arc<NodeLocks>,
        asked: Asked,
        (token, of_process, outside): (Deferred, bool, bool),
    ) -> Queued {
        let Some(kind) = asked.kind else {
            return Queued::Refused(token, Errno::INVAL);
        };
        let unique = token.unique();
        let wait = Arc::new(Wait {
            node: Arc::downgrade(locks),
            sort: asked.sort,
            span: asked.span,
            kind,
            owner: asked.owner,
            uid: asked.uid,
            turn: AtomicU64::new(0),
            interrupted: AtomicBool::new(false),
        });
        let mut registry = self.registry.lock();
        let count = registry.of_user.get(&asked.uid).copied();
        if asked.uid != 0 && count.is_some_and(|count| count >= MOST_OF_USER) {
            return Queued::Refused(token, Errno::NOLCK);
        }
        if registry.ended {
            return Queued::Refused(token, Errno::IO);
        }
        let mut tables = locks.tables();
        let look_again = outside || tables.may_die_unseen(&asked);
        let table = tables.of(asked.sort);
        let mut against = table.held.against(asked.owner, asked.span, kind);
        if !outside && against.next().is_none() {
            return Queued::Free(token);
        }
        drop(against);
        if asked.uid != 0 && table.waiting.is_full_for(&asked) {
            return Queued::Refused(token, Errno::NOLCK);
        }
        let waiter = Waiter {
            asked,
            token,
            wait: Arc::clone(&wait),
        };
        table.waiting.add(waiter);
        let is_new = look_again && !std::mem::replace(&mut tables.due, true);
        if is_new {
            tables.pause = FIRST_PAUSE;
        }
        drop(tables);
        registry.add(unique, &wait, of_process);
        if of_process
            && registry.is_circle(&wait)
            && let Some(waiter) = wait.take_out()
        {
            registry.remove(unique);
            return Queued::Refused(waiter.token, Errno::DEADLK);
        }
        drop(registry);
        if is_new {
            self.look_again(locks, FIRST_PAUSE);
        }
        Queued::Waits
    }

    /// The caller of a request that waits got a signal. False if none such waits.
    pub fn interrupt(&self, unique: u64) -> bool {
        let wait = self.registry.lock().waits.get(&unique).cloned();
        let Some(wait) = wait else {
            return false;
        };
        // Before the look: who has it in hand at this moment looks for the mark afterwards.
        wait.interrupted.store(true, Ordering::Relaxed);
        if let Some(waiter) = wait.take_out() {
            self.send(&mut vec![(waiter.token, Err(Errno::INTR))]);
        }
        true
    }

    /// After something was done to the locks of a node, and no other lock is held: answers requests
    /// that wait no more, and has those tried again that somebody outside stands against.
    pub fn settle(self: &Arc<Self>, locks: &Arc<NodeLocks>, answers: &mut Answers) {
        self.send(answers);
        let mut tables = locks.tables();
        if std::mem::take(&mut tables.outside) && !std::mem::replace(&mut tables.due, true) {
            tables.pause = FIRST_PAUSE;
            drop(tables);
            self.look_again(locks, FIRST_PAUSE);
        }
    }

    /// Answers requests that wait no more. For when no other lock is held.
    fn send(&self, answers: &mut Answers) {
        if answers.is_empty() {
            return;
        }
        let mut registry = self.registry.lock();
        for (token, _) in answers.iter() {
            registry.remove(token.unique());
        }
        drop(registry);
        for (token, outcome) in answers.drain(..) {
            token.answer(outcome);
        }
    }

    /// How many wait.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.registry.lock().waits.len()
    }

    /// The mount has ended: nobody waits any more.
    pub fn end(&self) {
        let mut registry = self.registry.lock();
        registry.ended = true;
        let waits = std::mem::take(&mut registry.waits);
        drop(registry);
        self.clock.lock().ended = true;
        self.changed.notify_all();
        // Dropped, each is answered.
        waits.values().for_each(|wait| drop(wait.take_out()));
    }

    /// Has a node's requests tried again after a while.
    fn look_again(self: &Arc<Self>, locks: &Arc<NodeLocks>, pause: Duration) {
        let mut clock = self.clock.lock();
        if clock.ended {
            return;
        }
        clock.numbers += 1;
        let key = (Instant::now() + pause, clock.numbers);
        clock.due.insert(key, Arc::downgrade(locks));
        if !clock.runs {
            let waits = Arc::clone(self);
            let started = thread::start("strandfs-locks", move || waits.keep_time());
            match started {
                Ok(_) => clock.runs = true,
                Err(error) => {
                    tracing::warn!(%error, "no thread to look for locks that others give up");
                }
            }
        }
        drop(clock);
        self.changed.notify_one();
    }

    /// Until the end of the mount.
    fn keep_time(self: &Arc<Self>) {
        let mut clock = self.clock.lock();
        while !clock.ended {
            let Some(((at, number), _)) = clock.due.first_key_value() else {
                self.changed.wait(&mut clock);
                continue;
            };
            let key = (*at, *number);
            if *at > Instant::now() {
                let until = *at;
                self.changed.wait_until(&mut clock, until);
                continue;
            }
            let locks = clock.due.remove(&key).and_then(|locks| locks.upgrade());
            drop(clock);
            if let Some(locks) = locks {
                self.retry(locks);
            }
            clock = self.clock.lock();
        }
    }

    fn retry(self: &Arc<Self>, locks: Arc<NodeLocks>) {
        if !locks.may_hang() {
            return self.retry_now(&locks);
        }
        let waits = Arc::clone(self);
        self.blocking_pool.run(move || waits.retry_now(&locks));
    }

    fn retry_now(self: &Arc<Self>, locks: &Arc<NodeLocks>) {
        let began = Instant::now();
        // From here on who begins to wait has it looked at once more.
        locks.tables().due = false;
        let mut answers = Answers::new();
        let outside = locks.retry(&mut answers);
        self.send(&mut answers);
        let mut tables = locks.tables();
        if !outside || std::mem::replace(&mut tables.due, true) {
            return;
        }
        tables.pause = (tables.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        let pause = tables.pause.max(began.elapsed() * PART_OF_TIME);
        drop(tables);
        self.look_again(locks, pause);
    }
}

#[cfg(test)]
mod tests;
