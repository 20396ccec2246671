//! Notices a reader stuck in a request that did not say it may block, and hands its role on.
//!
//! While requests come it looks every millisecond whether the reader is still at the same one, and
//! every four while it never was: each look wakes a CPU. After a pause it sleeps until the reader
//! wakes it: that costs one system call after a pause, and a load per request.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use super::worker_pool::WorkerPool;
use super::worker_state::WorkerState;

/// Time between looks; a sleeping reader is handed off after one to two of them.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// Time between looks while every one of the last [`SMOOTH_TICKS`] found another request.
const SMOOTH_TICK: Duration = Duration::from_millis(4);
const SMOOTH_TICKS: u32 = 16;
/// Looks after which even a reader that is running, or waiting for a CPU, is handed off. One that
/// sleeps is handed off at the first: to the others a new reader helps only if there is a CPU for
/// it, and it moves the work to another one.
pub(super) const BUSY_TICKS: u32 = 8;
/// Looks without any new request after which it sleeps.
pub(super) const QUIET_TICKS: u32 = 100;
/// Looks between signals to interrupted requests.
pub(super) const INTERRUPT_EVERY_TICKS: u32 = 5;

/// The watchdog as others see it.
pub(super) struct Watchdog {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Watchdog {
    pub(super) fn new() -> Self {
        Self {
            asleep: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Starts it with what it does until the mount ends.
    pub(super) fn start(&self, watch: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let handle = thread::Builder::new()
            .name("strandfs-watch".to_owned())
            .spawn(watch)?;
        // Set once: a worker pool starts once.
        let _ = self.thread.set(handle.thread().clone());
        Ok(())
    }

    /// For its own thread: sleeps until a request starts, unless it finds that one has meanwhile.
    pub(super) fn sleep(&self, is_quiet: impl FnOnce() -> bool) {
        // SeqCst: this comes before the looks of `is_quiet` at what threads do (`WorkerState::word`),
        // as what a thread says comes before its look here. A swap: it sees what was done before the
        // last `wake`.
        self.asleep.swap(true, Ordering::SeqCst);
        // A request that started before was not going to wake anybody.
        if !is_quiet() {
            self.asleep.swap(false, Ordering::Relaxed);
            return;
        }
        // Whoever ends the sleep unparks after that, which orders the two.
        while self.asleep.load(Ordering::Relaxed) {
            thread::park();
        }
    }

    /// A request has started: after `WorkerState::enter`, whose store is ordered before this load.
    pub(super) fn note_work(&self) {
        // SeqCst: see `sleep`.
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Ends its sleep.
    pub(super) fn wake(&self) {
        self.asleep.swap(false, Ordering::AcqRel);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Watches the reader of `/dev/fuse`.
pub(super) fn watch(worker_pool: &Arc<WorkerPool>) {
    let mut seen: Option<(Arc<WorkerState>, u64)> = None;
    let (mut quiet, mut stuck, mut smooth) = (0, 0, 0);
    let mut ticks: u32 = 0;
    while !worker_pool.life.has_ended() {
        let is_smooth = smooth >= SMOOTH_TICKS;
        thread::park_timeout(if is_smooth { SMOOTH_TICK } else { TICK });
        ticks = ticks.wrapping_add(1);
        let pressing =
            ticks.is_multiple_of(INTERRUPT_EVERY_TICKS) && worker_pool.press_interrupts();
        let Some(reader) = worker_pool.worker_table.lock().reader.clone() else {
            continue;
        };
        let word = reader.word();
        let same = matches!(&seen, Some((worker_state, last)) if Arc::ptr_eq(worker_state, &reader) && *last == word);
        smooth = if same { 0 } else { smooth + 1 };
        if same {
            // A caller that goes on without asking, or somebody else, may have its CPU for long.
            reader.revive();
        }
        if !same {
            (quiet, stuck) = (0, 0);
        } else if WorkerState::is_handling(word) {
            stuck += 1;
            if stuck >= BUSY_TICKS || reader.is_sleeping() {
                worker_pool.hand_off(&reader, word);
            }
        } else if !pressing {
            quiet += 1;
        }
        seen = Some((reader, word));
        if quiet >= QUIET_TICKS {
            worker_pool.watchdog.sleep(|| {
                let unchanged =
                    matches!(&seen, Some((worker_state, word)) if worker_state.word() == *word);
                unchanged && !worker_pool.press_interrupts() && !worker_pool.life.has_ended()
            });
            quiet = 0;
        }
    }
}
