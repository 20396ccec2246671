//! Notices a reader, or the second, stuck in a request that did not say it may block, and hands its role on.
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

/// A thread that reads, as it was at the last look.
struct Watched {
    worker_state: Arc<WorkerState>,
    word: u64,
    /// Looks that found it in the same request.
    stuck: u32,
}

impl Watched {
    fn new(worker_state: Arc<WorkerState>) -> Self {
        Self {
            word: worker_state.word(),
            worker_state,
            stuck: 0,
        }
    }

    fn is(&self, worker_state: &Arc<WorkerState>) -> bool {
        Arc::ptr_eq(&self.worker_state, worker_state)
    }

    /// Looks at it, and hands its role on if it is stuck.
    fn look(&mut self, worker_pool: &Arc<WorkerPool>) -> Seen {
        let word = self.worker_state.word();
        if self.word != word {
            (self.word, self.stuck) = (word, 0);
            return Seen::Moving;
        }
        // A caller that goes on without asking, or somebody else, may have its CPU for long.
        self.worker_state.revive();
        if !WorkerState::is_handling(word) {
            return Seen::AtRest;
        }
        self.stuck += 1;
        if self.stuck >= BUSY_TICKS || self.worker_state.is_sleeping() {
            worker_pool.hand_off(&self.worker_state, word);
        }
        Seen::Stuck
    }

    /// Whether nothing has happened since the last look.
    fn is_unchanged(&self) -> bool {
        self.worker_state.word() == self.word
    }
}

/// What a look at a thread finds, the least first: it has not read anything since the last one, it is with
/// the same request, it is not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    AtRest,
    Stuck,
    Moving,
}

/// Looks at the reader, and the second if there is one: the least and the most that was seen. `None`: there
/// is no reader.
fn look(worker_pool: &Arc<WorkerPool>, watched: &mut Vec<Watched>) -> Option<[Seen; 2]> {
    let worker_table = worker_pool.worker_table.lock();
    let readers = [&worker_table.reader, &worker_table.second.get().cloned()].map(Option::clone);
    drop(worker_table);
    let mut readers: Vec<_> = readers.into_iter().flatten().collect();
    watched.retain(|it| readers.iter().any(|reader| it.is(reader)));
    readers.retain(|reader| !watched.iter().any(|it| it.is(reader)));
    let mut all: Vec<Seen> = watched.iter_mut().map(|it| it.look(worker_pool)).collect();
    all.extend(readers.iter().map(|_| Seen::Moving));
    watched.extend(readers.into_iter().map(Watched::new));
    Some([*all.iter().min()?, *all.iter().max()?])
}

/// Watches those who read `/dev/fuse`.
pub(super) fn watch(worker_pool: &Arc<WorkerPool>) {
    let mut watched: Vec<Watched> = Vec::new();
    let (mut quiet, mut smooth) = (0, 0);
    let mut ticks: u32 = 0;
    while !worker_pool.life.has_ended() {
        let is_smooth = smooth >= SMOOTH_TICKS;
        thread::park_timeout(if is_smooth { SMOOTH_TICK } else { TICK });
        ticks = ticks.wrapping_add(1);
        let pressing =
            ticks.is_multiple_of(INTERRUPT_EVERY_TICKS) && worker_pool.press_interrupts();
        let Some([least, most]) = look(worker_pool, &mut watched) else {
            continue;
        };
        smooth = match least {
            Seen::Moving => smooth + 1,
            _ => 0,
        };
        quiet = match most {
            Seen::Moving => 0,
            Seen::AtRest if !pressing => quiet + 1,
            _ => quiet,
        };
        if quiet >= QUIET_TICKS {
            worker_pool.watchdog.sleep(|| {
                let unchanged = watched.iter().all(Watched::is_unchanged);
                unchanged && !worker_pool.press_interrupts() && !worker_pool.life.has_ended()
            });
            quiet = 0;
        }
    }
}
