//! Who listens. To tell the kernel of a change means to wait for requests on the same directory, and
//! such a request may wait for a branch that does not answer, or for a user who keeps the directory
//! locked. So nobody counts on a listener's coming back: one that is held up is handed off. Another one
//! goes on with the reports; what concerns the node that the first is held up at is left to that one.
//! The last of as many as there may be waits for nothing: see [`Listeners::may_wait`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use strandfs_fuse::NodeId;

use crate::coherence::queue::Repeat;

/// A listener that has been at one call for so long is held up: not by a disk that has to seek, after
/// which nobody would know whether what it was about was understood.
const HELD_UP_MS: u64 = 100;
/// The same from that many on that are held up already: then it is no disk.
const MANY_HELD_UP_MS: (usize, u64) = (8, 10);
/// Listeners held up at once: each is a thread, at a directory of its own.
const HELD_UP_MAX: usize = 512;
/// How often the present one is looked at while there are calls.
const LOOK: Duration = Duration::from_millis(10);
/// Looks without a call after which nobody looks any more until there is one.
const IDLE_LOOKS: u32 = 50;
/// Of what is left to a listener more is kept as: everything.
const LEFT_MAX: usize = 1 << 16;
/// No node.
const NOTHING: u64 = 0;

/// One listener's.
#[derive(Default)]
pub(crate) struct ListenerState {
    /// Since when (coarse monotonic milliseconds) it has been at a call that may take for ever; 0:
    /// it is at none.
    since_ms: AtomicU64,
    /// The node that it tells the kernel of. Whoever hands the listener off looks at this afterwards;
    /// the listener clears this and then looks whether it is handed off. One of them sees the other
    /// (hence `SeqCst` for both).
    node: AtomicU64,
    handed_off: AtomicBool,
    left: Mutex<Left>,
}

/// What the kernel is to be told when a node is free again.
#[derive(Default)]
pub(crate) struct Left {
    pub list: Vec<Repeat>,
    pub everything: bool,
}

impl ListenerState {
    /// A call begins that may take for ever; `node` is what it tells the kernel of, if anything.
    pub fn begin(&self, node: Option<NodeId>, now_ms: u64) {
        let node = node.map_or(NOTHING, |node| node.0);
        self.node.store(node, Ordering::SeqCst);
        self.since_ms.store(now_ms.max(1), Ordering::SeqCst);
    }

    /// Whether another one listens now.
    pub fn is_handed_off(&self) -> bool {
        self.handed_off.load(Ordering::SeqCst)
    }

    fn is_at_a_call(&self) -> bool {
        self.since_ms.load(Ordering::SeqCst) != 0
    }

    fn is_held_up(&self, now_ms: u64, patience_ms: u64) -> bool {
        let since_ms = self.since_ms.load(Ordering::Relaxed);
        since_ms != 0 && now_ms.saturating_sub(since_ms) >= patience_ms
    }
}

/// All listeners, the one whose turn it is last.
#[derive(Default)]
pub(crate) struct Listeners {
    all: Mutex<Vec<Arc<ListenerState>>>,
    handed_off: AtomicUsize,
    /// Who looks after the present one sleeps. Whoever begins a call looks at this afterwards; who goes
    /// to sleep looks for a call afterwards (hence `SeqCst`).
    nobody_looks: AtomicBool,
    call: Condvar,
    /// Changed under the lock of `all`.
    over: AtomicBool,
}

impl Listeners {
    /// The first listener's.
    pub fn first(&self) -> Arc<ListenerState> {
        let listener_state = Arc::new(ListenerState::default());
        self.all.lock().push(Arc::clone(&listener_state));
        listener_state
    }

    /// The present listener begins a call that may take for ever; `node` is what it tells the kernel of,
    /// if anything.
    pub fn begin(&self, listener_state: &ListenerState, node: Option<NodeId>, now_ms: u64) {
        listener_state.begin(node, now_ms);
        if self.nobody_looks.load(Ordering::SeqCst) {
            let _all = self.all.lock();
            self.call.notify_one();
        }
    }

    /// Whether the present listener may wait for a node: there may be another one after it.
    pub fn may_wait(&self) -> bool {
        self.handed_off.load(Ordering::Acquire) < HELD_UP_MAX
    }

    /// Whether there are few enough of those that are held up for all to be as it was.
    pub fn are_few(&self) -> bool {
        self.handed_off.load(Ordering::Acquire) < HELD_UP_MAX / 2
    }

    /// Until the present listener is to be looked at again: a moment, while there are calls; sleeps until
    /// there is one after a while without. False if nobody listens any more.
    pub fn until_next_look(&self, idle: &mut u32) -> bool {
        std::thread::sleep(LOOK);
        let mut all = self.all.lock();
        if self.over.load(Ordering::Relaxed) {
            return false;
        }
        let is_at_a_call = || all.last().is_some_and(|last| last.is_at_a_call());
        if is_at_a_call() {
            *idle = 0;
            return true;
        }
        *idle += 1;
        if *idle < IDLE_LOOKS {
            return true;
        }
        *idle = 0;
        self.nobody_looks.store(true, Ordering::SeqCst);
        if !is_at_a_call() {
            self.call.wait(&mut all);
        }
        self.nobody_looks.store(false, Ordering::SeqCst);
        !self.over.load(Ordering::Relaxed)
    }

    /// Nobody listens any more.
    pub fn are_over(&self) {
        let _all = self.all.lock();
        self.over.store(true, Ordering::Relaxed);
        self.call.notify_all();
    }

    /// A place for another listener, if the present one is held up.
    pub fn hand_off(&self, now_ms: u64) -> Option<Arc<ListenerState>> {
        let mut all = self.all.lock();
        let last = all.last()?;
        let (many, hurry_ms) = MANY_HELD_UP_MS;
        let patience_ms = match all.len() > many {
            true => hurry_ms,
            false => HELD_UP_MS,
        };
        if !last.is_held_up(now_ms, patience_ms) || all.len() > HELD_UP_MAX {
            return None;
        }
        last.handed_off.store(true, Ordering::SeqCst);
        self.handed_off.fetch_add(1, Ordering::AcqRel);
        let listener_state = Arc::new(ListenerState::default());
        all.push(Arc::clone(&listener_state));
        Some(listener_state)
    }

    /// The listener for this place could not be started.
    pub fn give_up(&self, listener_state: &Arc<ListenerState>) {
        let mut all = self.all.lock();
        all.retain(|other| !Arc::ptr_eq(other, listener_state));
        if let Some(last) = all.last() {
            last.handed_off.store(false, Ordering::SeqCst);
            self.handed_off.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Leaves something to the listener that is held up at the node; false if none is.
    pub fn leave(&self, node: NodeId, what: impl FnOnce() -> Repeat) -> bool {
        if self.handed_off.load(Ordering::Acquire) == 0 {
            return false;
        }
        let all = self.all.lock();
        let at_it = |listener_state: &&Arc<ListenerState>| {
            listener_state.is_handed_off() && listener_state.node.load(Ordering::SeqCst) == node.0
        };
        let Some(listener_state) = all.iter().find(at_it) else {
            return false;
        };
        let mut left = listener_state.left.lock();
        match left.list.len() < LEFT_MAX {
            true => left.list.push(what()),
            false => left.everything = true,
        }
        true
    }

    /// The call that began last is over. What was left to the listener meanwhile.
    pub fn finish(&self, listener_state: &ListenerState) -> Left {
        listener_state.since_ms.store(0, Ordering::Relaxed);
        // Before the look: who finds the node here finds it handed off, too.
        listener_state.node.store(NOTHING, Ordering::SeqCst);
        if !listener_state.is_handed_off() {
            return Left::default();
        }
        let _all = self.all.lock();
        std::mem::take(&mut *listener_state.left.lock())
    }

    /// A handed off listener ends. What was left to it.
    pub fn end(&self, listener_state: &Arc<ListenerState>) -> Left {
        let mut all = self.all.lock();
        all.retain(|other| !Arc::ptr_eq(other, listener_state));
        self.handed_off.fetch_sub(1, Ordering::AcqRel);
        std::mem::take(&mut *listener_state.left.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(7);

    #[test]
    fn who_is_held_up_is_relieved_and_keeps_what_waits_for_the_same_node() {
        let listeners = Listeners::default();
        let first = listeners.first();
        assert!(listeners.hand_off(1000).is_none(), "it waits for nothing");
        first.begin(Some(NODE), 1000);
        assert!(listeners.hand_off(1000 + HELD_UP_MS - 1).is_none());
        assert!(
            !listeners.leave(NODE, || Repeat::Inode(NODE)),
            "its own turn"
        );
        let second = listeners.hand_off(1000 + HELD_UP_MS).unwrap();
        assert!(first.is_handed_off() && !second.is_handed_off());
        assert!(listeners.leave(NODE, || Repeat::Inode(NODE)));
        assert!(!listeners.leave(NodeId(8), || Repeat::Inode(NodeId(8))));
        assert_eq!(listeners.finish(&first).list.len(), 1);
        assert!(!listeners.leave(NODE, || Repeat::Inode(NODE)), "it is free");
        assert!(listeners.end(&first).list.is_empty());
        second.begin(None, 5000);
        let third = listeners.hand_off(9000).unwrap();
        listeners.give_up(&third);
        assert!(!second.is_handed_off());
        listeners.finish(&second);
        assert!(listeners.hand_off(9000).is_none());
    }

    #[test]
    fn what_is_left_is_bounded_and_so_are_the_listeners() {
        let listeners = Listeners::default();
        let first = listeners.first();
        first.begin(Some(NODE), 1);
        let mut last = listeners.hand_off(1000).unwrap();
        for _ in 0..LEFT_MAX + 1 {
            listeners.leave(NODE, || Repeat::Inode(NODE));
        }
        let left = listeners.finish(&first);
        assert!(left.everything && left.list.len() == LEFT_MAX);
        let mut held_up = 1;
        loop {
            last.begin(None, 1);
            match listeners.hand_off(1000) {
                Some(listener_state) => last = listener_state,
                None => break,
            }
            held_up += 1;
        }
        assert_eq!(held_up, HELD_UP_MAX);
    }
}
