//! What happens to a request of `/dev/fuse` when no thread stays with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::kept::KeptRequest;
use super::shares::{ends_waits, is_never_kept, user, user_of};
use super::worker_pool::{Next, WorkerPool, WorkerTable};
use super::worker_state::{WakeReason, WorkerState};
use crate::abi::{InHeader, OutHeader};
use crate::connection::Connection;
use crate::deferred::AnswerLater;

/// Answers by a write to the device, which any thread may do.
pub(super) struct OverDevice(pub(super) Connection);

impl AnswerLater for OverDevice {
    fn answer(&self, unique: u64, result: Result<(), Errno>) {
        let error = result.err().map_or(0, |errno| match errno.raw_os_error() {
            known @ 1..512 => -known,
            _ => -Errno::IO.raw_os_error(),
        });
        let header = OutHeader {
            len: size_of::<OutHeader>() as u32,
            error,
            unique,
        };
        let device = self.0.device();
        let sent = rustix::io::retry_on_intr(|| rustix::io::write(device, header.as_bytes()));
        match sent {
            // Nobody waits any more, or the connection is gone.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::NOTCONN) => {}
            Err(refusal) => tracing::error!(%refusal, unique, "the kernel refused a late reply"),
        }
    }
}

impl WorkerPool {
    /// Whether a request was put aside, or refused, because its user's requests block as many
    /// threads as they may. A load, while few threads are blocked.
    pub(super) fn puts_aside(
        self: &Arc<Self>,
        worker_state: &WorkerState,
        header: &InHeader,
        bytes: &[u8],
    ) -> bool {
        if !self.crowded.load(Ordering::Relaxed) || is_never_kept(header.opcode) {
            return false;
        }
        let uid = user_of(header);
        let worker_table = self.worker_table.lock();
        let most = self.max_threads.load(Ordering::Relaxed);
        if worker_table
            .blocked
            .may_begin(uid, most, ends_waits(header.opcode))
        {
            return false;
        }
        let request = KeptRequest {
            unique: header.unique,
            uid,
            since: Instant::now(),
            bytes: bytes.into(),
        };
        // Another thread reads already, if this one was slow.
        if worker_state.was_interrupted(request.unique) && !request.has_to_be_done() {
            drop(worker_table);
            self.late.answer(header.unique, Err(Errno::INTR));
            return true;
        }
        // With the worker table's lock: the thread whose end it waits for has not ended yet.
        let kept = self.kept.lock().keep_for_share(request);
        drop(worker_table);
        if kept.is_err() {
            self.late.answer(header.unique, Err(Errno::AGAIN));
        }
        true
    }

    /// Keeps a request that asked to be carried out once more, unless it was interrupted.
    pub(super) fn keep(
        self: &Arc<Self>,
        worker_state: &WorkerState,
        request: KeptRequest,
        after: Duration,
    ) {
        let unique = request.unique;
        let worker_table = self.worker_table.lock();
        if worker_state.was_interrupted(unique) {
            drop(worker_table);
            return self.late.answer(unique, Err(Errno::INTR));
        }
        let kept = self.kept.lock().keep_for(request, after);
        drop(worker_table);
        match kept {
            Ok(()) => self.wake_clock(),
            Err(_) => self.late.answer(unique, Err(Errno::AGAIN)),
        }
    }

    /// Starts the thread that looks when kept requests are due, or has it look again.
    fn wake_clock(self: &Arc<Self>) {
        if !self.kept.needs_clock() {
            return;
        }
        let worker_pool = self.clone();
        let clock = thread::Builder::new()
            .name("strandfs-later".to_owned())
            .spawn(move || {
                crate::affinity::run_anywhere();
                worker_pool.keep_time()
            });
        if let Err(error) = clock {
            // What is kept goes on when the next thread is done, or with the next that is kept.
            tracing::warn!(%error, "no thread to look when requests are due");
            self.kept.clock_ended();
        }
    }

    /// Until the end of the mount.
    fn keep_time(self: &Arc<Self>) {
        while !self.life.has_ended() {
            let ripe = self.kept.ripen_or_sleep();
            if ripe > 0 {
                self.put_to_work(ripe);
            }
        }
    }

    /// Has so many threads carry out what was kept; those that are busy do so when they are done.
    fn put_to_work(self: &Arc<Self>, threads: usize) {
        let mut worker_table = self.worker_table.lock();
        for _ in 0..threads {
            if worker_table.closed {
                return;
            }
            let Some(worker_state) = self.successor_for_kept(&mut worker_table) else {
                return;
            };
            worker_state.hand(WakeReason::Work);
        }
    }

    /// The next of the kept requests for a thread that is no reader, into its buffer: its
    /// length, and when it came.
    pub(super) fn begin_kept(
        &self,
        worker_state: &WorkerState,
        room: &mut [u8],
    ) -> Option<(usize, Instant)> {
        let mut worker_table = self.worker_table.lock();
        if worker_table.closed {
            return None;
        }
        let request = self.kept.lock().take_ready()?;
        let len = request.bytes.len();
        room.get_mut(..len)?.copy_from_slice(&request.bytes);
        self.count_blocked(&mut worker_table, worker_state, request.uid);
        worker_state.enter_handed_off(request.unique);
        Some((len, request.since))
    }

    /// A thread's request blocks from now on; under the worker table's lock.
    pub(super) fn note_blocked(&self, worker_table: &mut WorkerTable, worker_state: &WorkerState) {
        let (uid, pid) = worker_state.asker();
        self.count_blocked(worker_table, worker_state, user(uid, pid));
    }

    fn count_blocked(&self, worker_table: &mut WorkerTable, worker_state: &WorkerState, uid: u32) {
        worker_state.note_asker(uid, 0);
        worker_state.set_counted(true);
        worker_table.blocked.add(uid);
        self.note_crowd(worker_table);
    }

    /// A further reader's request says that it may block: it counts, once.
    pub(super) fn note_may_block(&self, worker_state: &WorkerState) {
        let mut worker_table = self.worker_table.lock();
        if !worker_state.is_counted() {
            self.note_blocked(&mut worker_table, worker_state);
        }
    }

    /// It is over: who waits for it may go on, by the thread that was with it.
    pub(super) fn note_unblocked(
        &self,
        worker_table: &mut WorkerTable,
        worker_state: &WorkerState,
    ) {
        if !worker_state.set_counted(false) {
            return;
        }
        let (uid, _) = worker_state.asker();
        worker_table.blocked.remove(uid);
        let mut kept = self.kept.lock();
        kept.let_go(uid);
        drop(kept);
        self.note_crowd(worker_table);
    }

    fn note_crowd(&self, worker_table: &WorkerTable) {
        let most = self.max_threads.load(Ordering::Relaxed);
        let crowded = worker_table.blocked.is_crowded(most);
        self.crowded.store(crowded, Ordering::Relaxed);
    }

    /// What a thread without role does while requests are kept for it.
    pub(super) fn next_kept(&self) -> Option<Next> {
        self.kept.lock().is_ready().then_some(Next::Work)
    }

    /// Ends a kept request with EINTR, unless it gives back what others wait for; false if it is not
    /// kept. Under the worker table's lock.
    pub(super) fn interrupt_kept(&self, unique: u64) -> bool {
        let mut kept = self.kept.lock();
        let Some(request) = kept.get(unique) else {
            return false;
        };
        if !request.has_to_be_done() && kept.take(unique) {
            drop(kept);
            self.late.answer(unique, Err(Errno::INTR));
        }
        true
    }
}
