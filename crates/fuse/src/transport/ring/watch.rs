//! Notices a queue all of whose threads are stuck in requests that did not say they may block.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use super::super::seat::Seat;
use super::super::watchdog::{BUSY_TICKS, PRESS_TICKS, QUIET_TICKS, TICK};
use super::crew::RingCrew;

/// Looks at a thread that is away with the same request, after which it is asked once whether the
/// caller still waits.
const CALLER_TICKS: u32 = 32;

/// Until the mount ends.
pub(super) fn watch(crew: &Arc<RingCrew>) {
    let (mut quiet, mut ticks) = (0, 0_u32);
    while !crew.life.has_ended() {
        thread::park_timeout(TICK);
        ticks = ticks.wrapping_add(1);
        let pressing = ticks.is_multiple_of(PRESS_TICKS) && crew.press_interrupts();
        let mut moved = pressing;
        for queue in 0..crew.queues.len() {
            moved |= look(crew, queue);
        }
        quiet = if moved { 0 } else { quiet + 1 };
        if quiet >= QUIET_TICKS {
            crew.watchdog.sleep(|| {
                let moved = (0..crew.queues.len()).any(|queue| look(crew, queue));
                !moved && !crew.press_interrupts() && !crew.life.has_ended()
            });
            quiet = 0;
        }
    }
}

/// Looks at a queue's threads; relieves one if all of them are stuck. Whether anything happened
/// there since the last time, or is to be looked at again.
fn look(crew: &Arc<RingCrew>, queue: usize) -> bool {
    let Some(mut state) = crew.queue(queue) else {
        return false;
    };
    let mut moved = false;
    let mut stuck = None;
    let mut away = Vec::new();
    for post in &state.posts {
        let word = post.word();
        let same = if post.seen.swap(word, Ordering::Relaxed) == word {
            post.same.load(Ordering::Relaxed).saturating_add(1)
        } else {
            moved = true;
            0
        };
        post.same.store(same, Ordering::Relaxed);
        if Seat::is_handling(word) {
            moved = true;
            if same > 0 {
                stuck = Some((post.clone(), word, same));
            }
        } else if same == CALLER_TICKS && post.relieved_request() != 0 {
            away.push((post.clone(), post.relieved_request()));
        }
    }
    if let Some((post, word, same)) = stuck
        && (same >= BUSY_TICKS || state.is_busy() && post.is_sleeping())
    {
        crew.relieve_in(&mut state, &post, word);
    }
    drop(state);
    for (post, unique) in away {
        crew.look_at_caller(&post, unique);
    }
    moved
}
