//! INTERRUPT for requests that came over a ring. It comes over `/dev/fuse`, to another thread, and
//! may overtake its request.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::caller;
use super::queue_worker::QueueWorker;
use super::worker_pool::{QueueState, RingWorkerPool};

/// How long an interrupt may be ahead of its request: as long as a request may be on its way to a
/// thread. The kernel sends no second one.
const AHEAD: Duration = Duration::from_secs(20);
/// How many may be.
const MOST: usize = 8192;

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
        self.count.store(list.known.len(), Ordering::SeqCst);
    }
}

impl RingWorkerPool {
    /// The kernel wants this request interrupted.
    pub(crate) fn interrupt(self: &Arc<Self>, unique: u64) {
        if self.late.interrupt(unique) || self.interrupt_known(unique) {
            return;
        }
        // Its thread looks here after it has said what it works on, and we look there again.
        self.unmatched.add(unique);
        if !self.interrupt_known(unique) && !self.late.interrupt(unique) {
            self.server.filesystem.interrupt(unique);
        }
    }

    /// Whether an interrupt of this request has come that nobody has seen to.
    pub(super) fn was_interrupted(&self, queue_worker: &QueueWorker, unique: u64) -> bool {
        queue_worker.was_interrupted(unique) || self.unmatched.take(unique)
    }

    /// Whether a thread has the request, and knows now.
    fn interrupt_known(self: &Arc<Self>, unique: u64) -> bool {
        for number in 0..self.queues.len() {
            let Some(mut state) = self.queue(number) else {
                break;
            };
            let queue_worker = state
                .queue_workers
                .iter()
                .find(|queue_worker| queue_worker.works_on(unique));
            if let Some(queue_worker) = queue_worker.cloned() {
                let known = self.interrupt_in(&mut state, &queue_worker, unique);
                drop(state);
                self.watchdog.wake();
                return known;
            }
        }
        false
    }

    /// Under the queue's lock, which the thread takes before it goes on to another request once it
    /// is handed off. False if it is done with this one: whoever has the request now is to be told.
    fn interrupt_in(
        self: &Arc<Self>,
        state: &mut QueueState,
        queue_worker: &Arc<QueueWorker>,
        unique: u64,
    ) -> bool {
        self.hand_off_in(state, queue_worker, queue_worker.word());
        if queue_worker.handed_off_request() != unique {
            return false;
        }
        if queue_worker.interrupt(unique) {
            self.interrupts.fetch_add(1, Ordering::Relaxed);
        }
        if queue_worker.wants_signal() {
            queue_worker.signal();
        }
        true
    }

    /// Interrupts a request that a thread is away with, if its caller waits for that and the kernel
    /// has not said so. Without the queue's lock.
    pub(super) fn look_at_caller(self: &Arc<Self>, queue_worker: &Arc<QueueWorker>, unique: u64) {
        let thread = queue_worker.caller.load(Ordering::Relaxed);
        if caller::is_interrupted(thread)
            && let Some(mut state) = self.queue(queue_worker.queue)
        {
            // Its thread may have gone on to another request, which the look was not about.
            if queue_worker.handed_off_request() == unique && !queue_worker.was_interrupted(unique)
            {
                self.interrupt_in(&mut state, queue_worker, unique);
            }
        }
    }

    /// A thread has begun a request: whether it was interrupted before.
    pub(super) fn interrupt_early(self: &Arc<Self>, queue_worker: &Arc<QueueWorker>, unique: u64) {
        if self.unmatched.take(unique)
            && let Some(mut state) = self.queue(queue_worker.queue)
        {
            self.interrupt_in(&mut state, queue_worker, unique);
            drop(state);
            self.watchdog.wake();
        }
    }

    /// Signals again those that go on. Returns whether there is any.
    pub(super) fn press_interrupts(&self) -> bool {
        if self.interrupts.load(Ordering::Relaxed) == 0 {
            return false;
        }
        for number in 0..self.queues.len() {
            let Some(state) = self.queue(number) else {
                break;
            };
            for queue_worker in state
                .queue_workers
                .iter()
                .filter(|queue_worker| queue_worker.wants_signal())
            {
                queue_worker.signal();
            }
        }
        true
    }
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
    use crate::request::Dialect;
    use crate::session::Life;
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
        let mut state = worker_pool.queue(0).unwrap();
        state.queue_workers.push(Arc::clone(&queue_worker));
        // Another one waits for requests.
        state.present += 2;
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
        let mut state = worker_pool.queue(0).unwrap();
        assert!(!worker_pool.interrupt_in(&mut state, &queue_worker, 2));
        queue_worker.enter(4);
        assert!(
            !worker_pool.interrupt_in(&mut state, &queue_worker, 2),
            "it is at another"
        );
        assert!(
            worker_pool.interrupt_in(&mut state, &queue_worker, 4)
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
                    interrupted.store(2 * round, Ordering::SeqCst);
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
                begun.store(unique, Ordering::SeqCst);
                pause(round, 16);
                queue_worker.enter(unique);
                worker_pool.interrupt_early(&queue_worker, unique);
                pause(round, 24);
                if !queue_worker.leave() {
                    worker_pool.return_worker(&queue_worker);
                }
                pause(round, 32);
                let hour = Duration::from_secs(3600);
                worker_pool.late.park_for(unique, 6101, own, hour);
                if worker_pool.was_interrupted(&queue_worker, unique) {
                    worker_pool.late.interrupt(unique);
                }
                wait_for_change(&interrupted, unique - 2);
                entry = worker_pool.late.take_replies().pop();
                if entry.is_none() {
                    begun.store(OVER, Ordering::SeqCst);
                    panic!("round {round}: lost");
                }
            }
            begun.store(OVER, Ordering::SeqCst);
        });
    }

    /// Both threads are to run at the same time, where there are CPUs for it.
    fn wait_for_change(what: &AtomicU64, from: u64) -> u64 {
        for turn in 1_u32.. {
            let now = what.load(Ordering::SeqCst);
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
        assert_eq!(unmatched.count.load(Ordering::SeqCst), MOST, "bounded");
        assert!(unmatched.take(100 + 2 * MOST as u64 - 1), "the newest stay");
    }
}
