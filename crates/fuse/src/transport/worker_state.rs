//! One thread's place in the worker pool: what it is doing, in words other threads may read and change.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::process::Pid;

use super::placement::{Placement, Role};
use super::yielding::Yielding;
use crate::affinity;
use crate::sys;
use crate::traffic::Counts;

/// Reading, or waiting to: no request is being carried out.
const READING: u64 = 0;
/// Carrying a request out, and a reader of the worker pool still.
const HANDLING: u64 = 1;
/// Carrying a request out while another thread reads, or parked.
const RELIEVED: u64 = 2;
const PHASE: u64 = 3;
const NEXT_REQUEST: u64 = PHASE + 1;

/// What a parked thread is woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// Nothing yet: the time is over.
    Nothing,
    /// Become the reader.
    Read,
    /// End.
    Leave,
    /// Carry out requests that were kept.
    Work,
    /// Read beside the reader.
    Assist,
}

/// One thread's place. On its own cache lines: its thread writes it with every request.
#[repr(align(128))]
pub(super) struct WorkerState {
    /// A count of requests, and the phase in the low bits. The thread moves it on from and to
    /// READING; only HANDLING to RELIEVED is done by others, too.
    word: AtomicU64,
    /// The request being carried out; other threads rely on it only while RELIEVED, under the
    /// worker pool's lock. 0: none.
    unique: AtomicU64,
    /// The last request that said it may block.
    may_block: AtomicU64,
    /// Its request was answered in its place; under the worker pool's lock.
    lost: AtomicBool,
    /// Its request counts as one that blocks; under the worker pool's lock.
    counted: AtomicBool,
    /// The last request the kernel wants interrupted.
    interrupted: AtomicU64,
    /// Who asked for the request: the user's id, and the thread's.
    asker: [AtomicU32; 2],
    wake_reason: AtomicU8,
    thread: OnceLock<Thread>,
    /// The kernel's name of the thread, 0 before it runs.
    tid: AtomicU32,
    /// The CPU that the thread is bound to, and 1 more; 0: none.
    bound: AtomicU32,
    /// Whether it gives its CPU to whoever wants it.
    yielding: Yielding,
    /// Threads are numbered as they start.
    number: usize,
    /// Its requests.
    pub(super) counts: Arc<Counts>,
}

impl WorkerState {
    /// A place for a thread about to start, the `number`th.
    pub(super) fn new(number: usize, counts: Arc<Counts>) -> Self {
        Self {
            word: AtomicU64::new(RELIEVED),
            unique: AtomicU64::new(0),
            may_block: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            counted: AtomicBool::new(false),
            interrupted: AtomicU64::new(0),
            asker: [AtomicU32::new(0), AtomicU32::new(0)],
            wake_reason: AtomicU8::new(WakeReason::Nothing as u8),
            thread: OnceLock::new(),
            tid: AtomicU32::new(0),
            bound: AtomicU32::new(0),
            yielding: Yielding::default(),
            number,
            counts,
        }
    }

    /// The thread takes its place.
    pub(super) fn take(&self) {
        // Only this thread takes this place, once.
        let _ = self.thread.set(thread::current());
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.tid.store(tid.cast_unsigned(), Ordering::Release);
    }

    /// The thread becomes a reader.
    pub(super) fn become_reader(&self) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word & !PHASE | READING, Ordering::Release);
    }

    /// A reader starts a request. The store is ordered before the look at the watchdog's
    /// sleep, which therefore is to be SeqCst as well.
    pub(super) fn enter(&self, unique: u64) {
        self.unique.store(unique, Ordering::Relaxed);
        let word = self.word.load(Ordering::Relaxed) & !PHASE;
        let next = word.wrapping_add(NEXT_REQUEST) | HANDLING;
        self.word.store(next, Ordering::SeqCst);
    }

    /// A thread that is no reader starts a request. SeqCst as in [`enter`](Self::enter).
    pub(super) fn enter_handed_off(&self, unique: u64) {
        self.unique.store(unique, Ordering::Relaxed);
        let word = self.word.load(Ordering::Relaxed) & !PHASE;
        let next = word.wrapping_add(NEXT_REQUEST) | RELIEVED;
        self.word.store(next, Ordering::SeqCst);
    }

    /// Notes who asks: before [`enter`](Self::enter).
    pub(super) fn note_asker(&self, uid: u32, pid: u32) {
        let [user, thread] = &self.asker;
        user.store(uid, Ordering::Relaxed);
        thread.store(pid, Ordering::Relaxed);
    }

    /// Who asked for the request that runs, or ran last.
    pub(super) fn asker(&self) -> (u32, u32) {
        let [user, thread] = &self.asker;
        (user.load(Ordering::Relaxed), thread.load(Ordering::Relaxed))
    }

    /// The reader, at rest, reads no more: under the worker pool's lock.
    pub(super) fn step_back(&self) {
        self.unique.store(0, Ordering::Release);
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word & !PHASE | RELIEVED, Ordering::Release);
    }

    /// The request is done: true if the thread is a reader still. SeqCst: a thread that finds it at its
    /// request says so before it looks again, and this thread looks after this.
    pub(super) fn leave(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        if word & PHASE != HANDLING {
            return false;
        }
        let reading = word & !PHASE | READING;
        self.word
            .compare_exchange(word, reading, Ordering::SeqCst, Ordering::Acquire)
            .is_ok()
    }

    /// The word as it is. SeqCst: for the watchdog and whoever interrupts, who have said before that
    /// they look, as [`enter`](Self::enter) says before its thread looks at what they said.
    pub(super) fn word(&self) -> u64 {
        self.word.load(Ordering::SeqCst)
    }

    /// Whether a word says that a reader is carrying a request out.
    pub(super) fn is_handling(word: u64) -> bool {
        word & PHASE == HANDLING
    }

    /// Whether no request is being carried out.
    pub(super) fn is_at_rest(&self) -> bool {
        self.word() & PHASE == READING
    }

    /// Takes the role of reader away while the request of this word runs; false if it is over.
    pub(super) fn hand_off(&self, word: u64) -> bool {
        Self::is_handling(word)
            && self
                .word
                .compare_exchange(
                    word,
                    word & !PHASE | RELIEVED,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    }

    /// Whether this request is being carried out, whoever reads.
    pub(super) fn works_on(&self, unique: u64) -> bool {
        self.word() & PHASE != READING && self.unique.load(Ordering::Acquire) == unique
    }

    /// The request that runs while others read; 0 if none does.
    pub(super) fn handed_off_request(&self) -> u64 {
        if self.word() & PHASE == RELIEVED {
            self.unique.load(Ordering::Acquire)
        } else {
            0
        }
    }

    /// The handed off request was answered in the thread's place.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Notes whether its request counts as one that blocks; whether it did.
    pub(super) fn set_counted(&self, counted: bool) -> bool {
        self.counted.swap(counted, Ordering::Relaxed)
    }

    /// Whether its request counts as one that blocks.
    pub(super) fn is_counted(&self) -> bool {
        self.counted.load(Ordering::Relaxed)
    }

    /// The thread has come back; whether its request was answered in its place.
    pub(super) fn is_back(&self) -> bool {
        self.lost.swap(false, Ordering::Relaxed)
    }

    /// The handed off request is over; returns whether it was to be interrupted.
    pub(super) fn finish_handed_off(&self) -> bool {
        let unique = self.unique.swap(0, Ordering::AcqRel);
        unique != 0 && self.was_interrupted(unique)
    }

    /// Whether this request was to be interrupted, the last one that was. SeqCst: see [`leave`](Self::leave).
    pub(super) fn was_interrupted(&self, unique: u64) -> bool {
        self.interrupted.load(Ordering::SeqCst) == unique
    }

    /// The thread's request says it may block: interrupting it is worth a signal.
    pub(super) fn set_may_block(&self) {
        let unique = self.unique.load(Ordering::Relaxed);
        self.may_block.store(unique, Ordering::Release);
    }

    /// Whether this is the place of the thread that the kernel calls so.
    pub(super) fn is_thread(&self, tid: u32) -> bool {
        self.tid.load(Ordering::Acquire) == tid
    }

    /// Marks the request as interrupted; false if it was already. SeqCst: see [`leave`](Self::leave).
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        self.interrupted.swap(unique, Ordering::SeqCst) != unique
    }

    /// Whether the thread's own request is to be interrupted.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire) == self.unique.load(Ordering::Relaxed)
    }

    /// Whether the handed off request is interrupted and expects its system calls to be.
    pub(super) fn wants_signal(&self) -> bool {
        let unique = self.handed_off_request();
        unique != 0
            && self.interrupted.load(Ordering::Acquire) == unique
            && self.may_block.load(Ordering::Acquire) == unique
    }

    /// Whether the thread sleeps in the kernel, rather than running or waiting for a CPU. True if
    /// that cannot be told. Opens a file: not for the usual way of a request.
    pub(super) fn is_sleeping(&self) -> bool {
        let tid = self.tid.load(Ordering::Acquire);
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"));
        // `TID (NAME) STATE …`; the name may hold anything.
        let state = stat.as_deref().ok().and_then(|line| line.rsplit_once(')'));
        !state.is_some_and(|(_, rest)| rest.trim_start().starts_with('R'))
    }

    /// Puts the thread on the CPUs of a role that is new to it. Under the worker pool's lock, or by the
    /// thread itself while it has the role: the last one to place it must be right.
    pub(super) fn place(&self, placement: &Placement, role: Role) {
        if placement.is_free() {
            return self.release();
        }
        if let Some(thread) = self.kernel_thread() {
            placement.place(thread, self.number, role);
        }
    }

    /// Binds the thread, which is the calling one, to a CPU. Only while it is a reader at rest: who
    /// takes that role from it lets it run anywhere.
    pub(super) fn bind(&self, cpu: usize) {
        let bound = self.bound_to();
        if bound != Some(cpu) {
            let now = affinity::bind(bound, cpu).and_then(|cpu| u32::try_from(cpu).ok());
            self.bound
                .store(now.map_or(0, |cpu| cpu + 1), Ordering::Release);
        }
    }

    /// Has the thread, which is the calling one and bound, give its CPU to whoever wants it, or not.
    pub(super) fn set_yielding(&self, yields: bool) {
        // Somebody else may have given it other CPUs since.
        let yields = yields && self.bound_to().is_some() && sys::can_yield();
        if self.yields() != yields {
            self.change_yielding(yields);
        }
    }

    /// For another thread: this one, which gives its CPU away, has done nothing for a while. It runs as
    /// others do again; if it was not asleep, that is noted.
    pub(super) fn revive(&self) {
        if self.yields() {
            let is_starved = !self.is_sleeping();
            self.change_yielding(false);
            self.yielding.note_starved(is_starved);
        }
    }

    /// Whether giving its CPU away has kept the thread from running; told once.
    pub(super) fn was_starved(&self) -> bool {
        self.yielding.was_starved()
    }

    /// Whether it does.
    pub(super) fn yields(&self) -> bool {
        self.yielding.is_on()
    }

    fn change_yielding(&self, yields: bool) {
        self.yielding.set(self.kernel_thread(), yields);
    }

    /// Lets the thread run anywhere, if it is bound.
    pub(super) fn release(&self) {
        if self.yields() {
            self.change_yielding(false);
        }
        let bound = self.bound_to();
        if bound.is_some() {
            affinity::release(self.kernel_thread(), bound);
            self.bound.store(0, Ordering::Release);
        }
    }

    fn bound_to(&self) -> Option<usize> {
        let bound = self.bound.load(Ordering::Acquire);
        bound.checked_sub(1).map(|cpu| cpu as usize)
    }

    fn kernel_thread(&self) -> Option<Pid> {
        Pid::from_raw(self.tid.load(Ordering::Acquire).cast_signed())
    }

    /// Makes a blocked system call of the thread return EINTR.
    pub(super) fn signal(&self) {
        if let Some(thread) = self.kernel_thread()
            && let Err(errno) = sys::wake_thread(thread)
        {
            tracing::debug!(%errno, "waking a thread");
        }
    }

    /// Wakes the parked thread.
    pub(super) fn hand(&self, wake_reason: WakeReason) {
        self.wake_reason.store(wake_reason as u8, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Parks the thread until it is handed something, at most for `patience`.
    pub(super) fn wait(&self, patience: Option<Duration>) -> WakeReason {
        loop {
            match self
                .wake_reason
                .swap(WakeReason::Nothing as u8, Ordering::AcqRel)
            {
                wake_reason if wake_reason == WakeReason::Read as u8 => return WakeReason::Read,
                wake_reason if wake_reason == WakeReason::Leave as u8 => return WakeReason::Leave,
                wake_reason if wake_reason == WakeReason::Work as u8 => return WakeReason::Work,
                wake_reason if wake_reason == WakeReason::Assist as u8 => {
                    return WakeReason::Assist;
                }
                _ => {}
            }
            match patience {
                None => thread::park(),
                Some(time) => {
                    thread::park_timeout(time);
                    if self.wake_reason.load(Ordering::Acquire) == WakeReason::Nothing as u8 {
                        return WakeReason::Nothing;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Traffic;

    fn worker_state() -> WorkerState {
        WorkerState::new(0, Traffic::new().join())
    }

    #[test]
    fn the_role_is_lost_only_while_its_request_runs() {
        let worker_state = worker_state();
        worker_state.become_reader();
        assert!(
            !worker_state.hand_off(worker_state.word()),
            "a reader at rest keeps its role"
        );
        worker_state.enter(1);
        let first = worker_state.word();
        assert!(worker_state.leave());
        worker_state.enter(2);
        assert!(!worker_state.hand_off(first), "that request is over");
        assert!(worker_state.hand_off(worker_state.word()));
        assert_eq!(worker_state.handed_off_request(), 2);
        assert!(!worker_state.leave());
        assert!(!worker_state.finish_handed_off());
        assert_eq!(worker_state.handed_off_request(), 0);
    }

    #[test]
    fn an_interrupt_counts_for_its_request_only() {
        let worker_state = worker_state();
        worker_state.become_reader();
        worker_state.enter(10);
        worker_state.set_may_block();
        assert!(worker_state.hand_off(worker_state.word()));
        assert!(!worker_state.wants_signal());
        assert!(worker_state.interrupt(10));
        assert!(!worker_state.interrupt(10));
        assert!(worker_state.is_interrupted() && worker_state.wants_signal());
        assert!(worker_state.finish_handed_off());
        worker_state.become_reader();
        worker_state.enter(12);
        assert!(!worker_state.is_interrupted() && !worker_state.wants_signal());
    }

    /// As when `taskset -p` has put it elsewhere.
    #[test]
    fn a_thread_that_is_bound_no_more_does_not_give_way() {
        if !sys::can_yield() {
            return;
        }
        affinity::note_allowed();
        let cpu = rustix::thread::sched_getcpu();
        let worker_state = worker_state();
        worker_state.take();
        let give_way = || {
            affinity::run_anywhere();
            worker_state.bind(cpu);
            worker_state.set_yielding(true);
            let yields = worker_state.yields();
            worker_state.bound.store(0, Ordering::Release);
            yields
        };
        if !give_way() {
            return; // There is one CPU alone.
        }
        worker_state.set_yielding(true);
        assert!(!worker_state.yields());
        assert!(give_way());
        worker_state.release();
        assert!(!worker_state.yields());
    }

    #[test]
    fn a_wake_up_before_the_wait_is_not_lost() {
        let worker_state = worker_state();
        worker_state.take();
        worker_state.hand(WakeReason::Read);
        assert_eq!(worker_state.wait(None), WakeReason::Read);
        assert_eq!(
            worker_state.wait(Some(Duration::from_millis(1))),
            WakeReason::Nothing
        );
    }
}
