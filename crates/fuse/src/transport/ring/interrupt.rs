//! INTERRUPT for requests that came over a ring. It comes over `/dev/fuse`, to another thread, and
//! may overtake its request.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::caller;
use super::queue_worker::QueueWorker;
use super::queues::QueueState;
use super::worker_pool::RingWorkerPool;

/// How long an interrupt may be ahead of its request: as long as a request may be on its way to a
/// thread. The kernel sends no second one.
const AHEAD: Duration = Duration::from_secs(20);
/// How many may be.
const MOST: usize = 8192;

/// What is to be interrupted.
#[derive(Default)]
pub(super) struct Interrupts {
    /// Requests that threads are away with, and that go on.
    going_on: AtomicUsize,
    unmatched: Unmatched,
}

impl Interrupts {
    /// A request that was to be interrupted is over. One that is carried out again, because it has
    /// to be done, may say so twice.
    pub(super) fn end_one(&self) {
        let one_less = |count: usize| count.checked_sub(1);
        let _ = (self.going_on).fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
    }
}

/// Interrupts whose request nobody has begun, or everybody is done with.
#[derive(Default)]
pub(super) struct Unmatched {
    count: AtomicUsize,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    known: HashSet<u64>,
    /// In the order they came; those that have been taken stay until they are old.
    by_age: VecDeque<(Instant, u64)>,
}

impl Unmatched {
    fn add(&self, unique: u64) {
        let mut list = self.list.lock();
        if list.known.insert(unique) {
            list.by_age.push_back((Instant::now(), unique));
        }
        self.tidy(&mut list);
    }

    /// Whether `unique` is to be interrupted. A load when there is none at all.
    ///
    /// SeqCst: a thread says what it works on (`WorkerState::enter`) and looks here, who interrupts
    /// leaves the number here and looks at what the threads say: one of the two must see the other.
    fn take(&self, unique: u64) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut list = self.list.lock();
        let known = list.known.remove(&unique);
        self.tidy(&mut list);
        known
    }

    fn tidy(&self, list: &mut List) {
        let old = |(since, _): &(Instant, u64)| since.elapsed() > AHEAD;
        while list.by_age.len() > MOST || list.by_age.front().is_some_and(old) {
            if let Some((_, unique)) = list.by_age.pop_front() {
                list.known.remove(&unique);
            }
        }
        // SeqCst: see `take`.
        self.count.store(list.known.len(), Ordering::SeqCst);
    }
}

/// The kernel wants this request interrupted.
pub(crate) fn interrupt(worker_pool: &Arc<RingWorkerPool>, unique: u64) {
    if worker_pool.late.interrupt(unique) || interrupt_known(worker_pool, unique) {
        return;
    }
    // Its thread looks here after it has said what it works on, and we look there again.
    worker_pool.interrupts.unmatched.add(unique);
    if !interrupt_known(worker_pool, unique) && !worker_pool.late.interrupt(unique) {
        worker_pool.server.filesystem.interrupt(unique);
    }
}

/// Whether an interrupt of this request has come that nobody has seen to.
pub(super) fn was_interrupted(
    worker_pool: &RingWorkerPool,
    queue_worker: &QueueWorker,
    unique: u64,
) -> bool {
    queue_worker.was_interrupted(unique) || worker_pool.interrupts.unmatched.take(unique)
}

/// Whether a thread has the request, and knows now.
fn interrupt_known(worker_pool: &Arc<RingWorkerPool>, unique: u64) -> bool {
    for mut state in worker_pool.queues.lock_each() {
        let mut workers = state.queue_workers.iter();
        let found = workers.find(|queue_worker| queue_worker.works_on(unique));
        if let Some(queue_worker) = found.cloned() {
            let known = interrupt_in(worker_pool, &mut state, &queue_worker, unique);
            drop(state);
            worker_pool.watchdog.wake();
            return known;
        }
    }
    false
}

/// Under the queue's lock, which the thread takes before it goes on to another request once it
/// is handed off. False if it is done with this one: whoever has the request now is to be told.
fn interrupt_in(
    worker_pool: &Arc<RingWorkerPool>,
    state: &mut QueueState,
    queue_worker: &Arc<QueueWorker>,
    unique: u64,
) -> bool {
    worker_pool.hand_off_in(state, queue_worker, queue_worker.word());
    if queue_worker.handed_off_request() != unique {
        return false;
    }
    if queue_worker.interrupt(unique) {
        worker_pool
            .interrupts
            .going_on
            .fetch_add(1, Ordering::Relaxed);
    }
    if queue_worker.wants_signal() {
        queue_worker.signal();
    }
    true
}

/// Interrupts a request that a thread is away with, if its caller waits for that and the kernel
/// has not said so. Without the queue's lock.
pub(super) fn look_at_caller(
    worker_pool: &Arc<RingWorkerPool>,
    queue_worker: &Arc<QueueWorker>,
    unique: u64,
) {
    let thread = queue_worker.caller.load(Ordering::Relaxed);
    if caller::is_interrupted(thread)
        && let Some(mut state) = worker_pool.queues.lock(queue_worker.queue)
    {
        // Its thread may have gone on to another request, which the look was not about.
        if queue_worker.handed_off_request() == unique && !queue_worker.was_interrupted(unique) {
            interrupt_in(worker_pool, &mut state, queue_worker, unique);
        }
    }
}

/// A thread has begun a request: whether it was interrupted before.
pub(super) fn interrupt_early(
    worker_pool: &Arc<RingWorkerPool>,
    queue_worker: &Arc<QueueWorker>,
    unique: u64,
) {
    if worker_pool.interrupts.unmatched.take(unique)
        && let Some(mut state) = worker_pool.queues.lock(queue_worker.queue)
    {
        interrupt_in(worker_pool, &mut state, queue_worker, unique);
        drop(state);
        worker_pool.watchdog.wake();
    }
}

/// Signals again those that go on. Returns whether there is any.
pub(super) fn press(worker_pool: &RingWorkerPool) -> bool {
    if worker_pool.interrupts.going_on.load(Ordering::Relaxed) == 0 {
        return false;
    }
    for state in worker_pool.queues.lock_each() {
        let workers = state.queue_workers.iter();
        workers
            .filter(|queue_worker| queue_worker.wants_signal())
            .for_each(|queue_worker| queue_worker.signal());
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use zerocopy::IntoBytes;

    use super::*;
    use crate::abi::{InHeader, Opcode};
    use crate::connection::Connection;
    use crate::filesystem::Filesystem;
    use crate::life::Life;
    use crate::request::Dialect;
    use crate::transport::Server;
    use crate::transport::placement::Placement;
    use crate::transport::ring::entry::RingEntry;
    use crate::transport::ring::probe;

    struct Nothing;

    impl Filesystem for Nothing {}

    /// Threads that no kernel gives requests; none where io_uring is forbidden.
    fn worker_pool() -> Option<Arc<RingWorkerPool>> {
        const PAYLOAD_BYTES: usize = 8192;
        let device = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let connection = Connection::from_device(Arc::new(device));
        let prepared = probe::prepare(&connection, PAYLOAD_BYTES).ok()?;
        let server = Arc::new(Server {
            filesystem: Arc::new(Nothing),
            connection,
            dialect: Dialect::INITIAL,
            payload_bytes: PAYLOAD_BYTES,
        });
        let life = Arc::new(Life::new().unwrap());
        let (at, placement) = (Path::new("/"), Placement::default());
        RingWorkerPool::new(server, life, at, &prepared, 64, placement).ok()
    }

    fn queue_worker(worker_pool: &Arc<RingWorkerPool>) -> Arc<QueueWorker> {
        let counts = worker_pool.server.connection.counter().join();
        let queue_worker = Arc::new(QueueWorker::new(0, 0, counts));
        queue_worker.become_reader();
        // Another one waits for requests.
        let counts = worker_pool.server.connection.counter().join();
        let other = Arc::new(QueueWorker::new(0, 1, counts));
        other.become_reader();
        let mut state = worker_pool.queues.lock(0).unwrap();
        for worker in [Arc::clone(&queue_worker), other] {
            worker_pool.queues.add(&mut state, worker);
        }
        drop(state);
        queue_worker
    }

    fn note(entry: &mut RingEntry, unique: u64) {
        let header = InHeader {
            unique,
            opcode: Opcode::Open as u32,
            ..InHeader::default()
        };
        let (headers, _) = entry.parts_mut();
        headers.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
    }

    /// It takes the queue's lock when the thread has left the request already, and the request waits
    /// elsewhere in a moment.
    #[test]
    fn an_interrupt_of_a_request_that_its_thread_has_just_left_is_not_the_threads() {
        let Some(worker_pool) = worker_pool() else {
            return;
        };
        let queue_worker = queue_worker(&worker_pool);
        queue_worker.enter(2);
        assert!(queue_worker.works_on(2) && queue_worker.leave());
        let mut state = worker_pool.queues.lock(0).unwrap();
        assert!(!interrupt_in(&worker_pool, &mut state, &queue_worker, 2));
        queue_worker.enter(4);
        assert!(
            !interrupt_in(&worker_pool, &mut state, &queue_worker, 2),
            "it is at another"
        );
        assert!(
            interrupt_in(&worker_pool, &mut state, &queue_worker, 4)
                && queue_worker.was_interrupted(4)
        );
    }

    /// A request is begun, left, and waits, while the kernel wants it interrupted at any moment.
    #[test]
    fn no_interrupt_is_lost_while_a_request_moves() {
        const ROUNDS: u64 = 20_000;
        const OVER: u64 = u64::MAX;
        let Some(worker_pool) = worker_pool() else {
            return;
        };
        let queue_worker = queue_worker(&worker_pool);
        let (begun, interrupted) = (AtomicU64::new(0), AtomicU64::new(0));
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1.. {
                    if wait_for_change(&begun, 2 * (round - 1)) == OVER {
                        return;
                    }
                    pause(round, 8);
                    worker_pool.interrupt(2 * round);
                    interrupted.store(2 * round, Ordering::Release);
                }
            });
            let mut entry = RingEntry::new(0, 8192).ok();
            for round in 1..=ROUNDS {
                let Some(mut own) = entry.filter(|_| began.elapsed() < Duration::from_secs(3))
                else {
                    break;
                };
                let unique = 2 * round;
                note(&mut own, unique);
                begun.store(unique, Ordering::Release);
                pause(round, 16);
                queue_worker.enter(unique);
                interrupt_early(&worker_pool, &queue_worker, unique);
                pause(round, 24);
                if !queue_worker.leave() {
                    worker_pool.return_worker(&queue_worker);
                }
                pause(round, 32);
                let hour = Duration::from_secs(3600);
                worker_pool.late.park_for(unique, 6101, own, hour);
                if was_interrupted(&worker_pool, &queue_worker, unique) {
                    worker_pool.late.interrupt(unique);
                }
                wait_for_change(&interrupted, unique - 2);
                entry = worker_pool.late.take_replies().pop();
                if entry.is_none() {
                    begun.store(OVER, Ordering::Release);
                    panic!("round {round}: lost");
                }
            }
            begun.store(OVER, Ordering::Release);
        });
    }

    /// Both threads are to run at the same time, where there are CPUs for it.
    fn wait_for_change(what: &AtomicU64, from: u64) -> u64 {
        for turn in 1_u32.. {
            let now = what.load(Ordering::Acquire);
            if now != from {
                return now;
            }
            match turn % 4096 {
                0 => thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        from
    }

    /// Differs from round to round.
    fn pause(round: u64, part: u64) {
        for _ in 0..(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> part) % 64 {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn an_interrupt_ahead_of_its_request_is_kept_for_it() {
        let unmatched = Unmatched::default();
        assert!(!unmatched.take(4));
        unmatched.add(4);
        unmatched.add(6);
        assert!(!unmatched.take(8));
        assert!(unmatched.take(4) && !unmatched.take(4));
        for unique in 0..2 * MOST as u64 {
            unmatched.add(100 + unique);
        }
        assert_eq!(unmatched.count.load(Ordering::Relaxed), MOST, "bounded");
        assert!(unmatched.take(100 + 2 * MOST as u64 - 1), "the newest stay");
    }
}
