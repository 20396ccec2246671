//! Notices a queue all of whose threads are stuck in requests that did not say they may block.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use super::super::watchdog::{BUSY_TICKS, INTERRUPT_EVERY_TICKS, QUIET_TICKS, TICK};
use super::super::worker_state::WorkerState;
use super::interrupt;
use super::worker_pool::RingWorkerPool;

/// Looks at a thread that is away with the same request, after which it is asked once whether the
/// caller still waits.
const CALLER_TICKS: u32 = 32;

/// Until the mount ends.
pub(super) fn watch(worker_pool: &Arc<RingWorkerPool>) {
    let (mut quiet, mut ticks) = (0, 0_u32);
    while !worker_pool.life.has_ended() {
        thread::park_timeout(TICK);
        ticks = ticks.wrapping_add(1);
        let pressing = ticks.is_multiple_of(INTERRUPT_EVERY_TICKS) && interrupt::press(worker_pool);
        let mut moved = pressing;
        for queue in 0..worker_pool.queues.len() {
            moved |= look(worker_pool, queue);
        }
        quiet = if moved { 0 } else { quiet + 1 };
        if quiet >= QUIET_TICKS {
            worker_pool.watchdog.sleep(|| {
                let moved = (0..worker_pool.queues.len()).any(|queue| look(worker_pool, queue));
                !moved && !interrupt::press(worker_pool) && !worker_pool.life.has_ended()
            });
            quiet = 0;
        }
    }
}

/// Looks at a queue's threads; hands off one if all of them are stuck. Whether anything happened
/// there since the last time, or is to be looked at again.
fn look(worker_pool: &Arc<RingWorkerPool>, queue: usize) -> bool {
    let Some(mut state) = worker_pool.queues.lock(queue) else {
        return false;
    };
    let mut moved = false;
    let mut stuck = None;
    let mut away = Vec::new();
    for queue_worker in &state.queue_workers {
        let word = queue_worker.word();
        let same = if queue_worker.seen.swap(word, Ordering::Relaxed) == word {
            queue_worker.same.load(Ordering::Relaxed).saturating_add(1)
        } else {
            moved = true;
            0
        };
        queue_worker.same.store(same, Ordering::Relaxed);
        if WorkerState::is_handling(word) {
            moved = true;
            if same > 0 {
                stuck = Some((queue_worker.clone(), word, same));
            }
        } else if same == CALLER_TICKS && queue_worker.handed_off_request() != 0 {
            away.push((queue_worker.clone(), queue_worker.handed_off_request()));
        }
    }
    if let Some((queue_worker, word, same)) = stuck
        && (same >= BUSY_TICKS || state.is_busy() && queue_worker.is_sleeping())
    {
        worker_pool.hand_off_in(&mut state, &queue_worker, word);
    }
    drop(state);
    for (queue_worker, unique) in away {
        interrupt::look_at_caller(worker_pool, &queue_worker, unique);
    }
    moved
}
