//! INTERRUPT for requests that came over a ring. It comes over `/dev/fuse`, to another thread, and
//! may overtake its request.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::caller;
use super::crew::{QueueState, RingCrew};
use super::post::Post;

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

impl RingCrew {
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
    pub(super) fn was_interrupted(&self, post: &Post, unique: u64) -> bool {
        post.was_interrupted(unique) || self.unmatched.take(unique)
    }

    /// Whether a thread has the request, and knows now.
    fn interrupt_known(self: &Arc<Self>, unique: u64) -> bool {
        for number in 0..self.queues.len() {
            let Some(mut state) = self.queue(number) else {
                break;
            };
            let post = state.posts.iter().find(|post| post.works_on(unique));
            if let Some(post) = post.cloned() {
                let known = self.interrupt_in(&mut state, &post, unique);
                drop(state);
                self.watchdog.wake();
                return known;
            }
        }
        false
    }

    /// Under the queue's lock, which the thread takes before it goes on to another request once it
    /// is relieved. False if it is done with this one: whoever has the request now is to be told.
    fn interrupt_in(
        self: &Arc<Self>,
        state: &mut QueueState,
        post: &Arc<Post>,
        unique: u64,
    ) -> bool {
        self.relieve_in(state, post, post.word());
        if post.relieved_request() != unique {
            return false;
        }
        if post.interrupt(unique) {
            self.interrupts.fetch_add(1, Ordering::Relaxed);
        }
        if post.wants_signal() {
            post.signal();
        }
        true
    }

    /// Interrupts a request that a thread is away with, if its caller waits for that and the kernel
    /// has not said so. Without the queue's lock.
    pub(super) fn look_at_caller(self: &Arc<Self>, post: &Arc<Post>, unique: u64) {
        let thread = post.caller.load(Ordering::Relaxed);
        if caller::is_interrupted(thread)
            && let Some(mut state) = self.queue(post.queue)
        {
            // Its thread may have gone on to another request, which the look was not about.
            if post.relieved_request() == unique && !post.was_interrupted(unique) {
                self.interrupt_in(&mut state, post, unique);
            }
        }
    }

    /// A thread has begun a request: whether it was interrupted before.
    pub(super) fn interrupt_early(self: &Arc<Self>, post: &Arc<Post>, unique: u64) {
        if self.unmatched.take(unique)
            && let Some(mut state) = self.queue(post.queue)
        {
            self.interrupt_in(&mut state, post, unique);
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
            for post in state.posts.iter().filter(|post| post.wants_signal()) {
                post.signal();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
