//! Writes in passthrough that wait while room is made for them.
//!
//! The kernel writes such files by itself, and where their branch is full it fails the write. Those of a
//! branch that runs out of room are therefore *armed*: each access waits until it is answered. One that
//! fits into what is free goes on at once, one that does not is *held*: closed files move off the branch
//! until it fits. Who is held holds locks of the kernel on the pool's inode, so whatever makes room works
//! on the branches and never waits for the pool's own mount.
//!
//! Three kinds of threads: one for the pool answers and looks at the branches' room (`answer`). It never
//! waits for anything but its descriptors, since the server's own accesses may have to be answered, too.
//! One for each branch where somebody waits moves files (`room`). Others find out what a held thread is
//! about (`caller`), which may take as long as that likes. If the server dies the kernel lets all go.

mod answer;
mod caller;
mod lateness;
mod ledger;
mod queue;
mod room;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use strandfs_fuse::Context;

use crate::base::blocking_pool::BlockingPool;
use crate::base::branch::BranchId;
use crate::base::error::Result;
use crate::base::status::HeldWrites;
use crate::base::sys;
use crate::base::thread;
use crate::mover::{Mover, Refused};
use crate::state::held_writers::not_held;
use crate::state::node::Node;
use queue::Queue;

/// How long the end of the pool waits for the threads.
const PATIENCE: Duration = Duration::from_millis(600);

/// What the threads share with the pool.
#[derive(Default)]
pub(crate) struct Held {
    pool: OnceLock<Weak<Mover>>,
    queues: Mutex<BTreeMap<BranchId, Arc<Queue>>>,
    /// Makes what may take any time.
    lookers: BlockingPool,
    ended: AtomicBool,
    answering: Mutex<bool>,
    gone: Condvar,
    counts: Counts,
}

/// For `strandfs status`.
#[derive(Default)]
struct Counts {
    held: AtomicU64,
    longest_ms: AtomicU64,
    without_room: AtomicU64,
    moved_files: AtomicU64,
    moved_bytes: AtomicU64,
}

impl Held {
    fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether the thread that answers is there.
    fn is_answering(&self) -> bool {
        *self.answering.lock()
    }

    /// Who waits for room on a branch.
    fn queue(&self, branch: BranchId) -> Arc<Queue> {
        let mut queues = self.queues.lock();
        Arc::clone(queues.entry(branch).or_insert_with(|| Queue::new(branch)))
    }

    /// Whether somebody waits for room on a branch, or did a moment ago.
    pub(crate) fn is_wanted(&self, branch: BranchId) -> bool {
        let queue = self.queues.lock().get(&branch).cloned();
        queue.is_some_and(|queue| queue.is_wanted())
    }
}

/// Lets everybody go and ends the threads.
pub(crate) fn end(pool: &Mover) {
    let held = &pool.held;
    held.ended.store(true, Ordering::Release);
    pool.held_writers.kick();
    let queues: Vec<_> = held.queues.lock().values().cloned().collect();
    queues.iter().for_each(|queue| queue.wake());
    let mut answering = held.answering.lock();
    let deadline = Instant::now() + PATIENCE;
    while *answering && !held.gone.wait_until(&mut answering, deadline).timed_out() {}
}

/// Starts the thread that answers, which sleeps until a file is open that can be held.
///
/// # Errors
/// The thread cannot be started, or there are too many open files.
pub fn start(pool: &Arc<Mover>) -> std::io::Result<()> {
    let kick = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    pool.held_writers.set_kick(Arc::clone(&kick));
    let _ = pool.held.pool.set(Arc::downgrade(pool));
    let answerer = answer::Answerer::new(pool, kick);
    *pool.held.answering.lock() = true;
    let started = thread::start("strandfs-held", move || answerer.run());
    if started.is_err() {
        *pool.held.answering.lock() = false;
    }
    started.map(drop)
}

/// Waits until the branch of a file that cannot move has room for what a request changes in it. Must be
/// called without locks of any node.
///
/// # Errors
/// The refusal, if no room can be made.
pub(super) fn wait_for_room(
    pool: &Mover,
    cx: &Context<'_>,
    node: &Node,
    refused: &Refused<'_>,
) -> Result<()> {
    let refusal = refused.refusal;
    let view = Arc::clone(&pool.view());
    let on = node.primary().ok_or(refusal)?.branch;
    let branch = view.branch(on).ok_or(refusal)?;
    let room_maker = pool.held.pool.get().and_then(Weak::upgrade);
    let room_maker = room_maker.filter(|_| !pool.held.ended()).ok_or(refusal)?;
    if not_held(&view, branch).is_some() {
        return Err(refusal);
    }
    cx.may_block();
    let (offset, len) = (refused.offset_bytes, refused.need_bytes);
    let mapped = refused
        .file
        .and_then(Weak::upgrade)
        .and_then(|file| sys::mapped_bytes(file.as_fd(), offset, len).ok());
    let need_bytes = len.saturating_sub(mapped.unwrap_or(0));
    if !room::is_possible(pool, &view, branch, need_bytes) {
        // Nobody's files move for that, and nobody waits behind it.
        return Err(refusal);
    }
    let queue = pool.held.queue(on);
    let longest = view.settings.relocation.hold;
    match queue.wait(&room_maker, need_bytes, longest) {
        true => Ok(()),
        false => Err(refusal),
    }
}

/// For `strandfs status`.
pub(crate) fn held_status(pool: &Mover) -> HeldWrites {
    let counts = &pool.held.counts;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let view = pool.view();
    let writers = pool.held_writers.branches();
    let armed = writers.iter().filter(|(_, writers)| writers.is_armed());
    let queues: Vec<_> = pool.held.queues.lock().values().cloned().collect();
    HeldWrites {
        open_files: writers
            .iter()
            .map(|(_, writers)| writers.len() as u64)
            .sum(),
        armed: armed
            .filter_map(|(id, _)| Some(view.branch(*id)?.path.to_string_lossy().into_owned()))
            .collect(),
        waiting: queues.iter().map(|queue| queue.len() as u64).sum(),
        held: read(&counts.held),
        longest_ms: read(&counts.longest_ms),
        without_room: read(&counts.without_room),
        moved_files: read(&counts.moved_files),
        moved_bytes: read(&counts.moved_bytes),
    }
}
