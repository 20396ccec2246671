//! Moves go on in another thread where one is held up.
//!
//! Whoever may list a directory of a branch keeps its lock, in the kernel, for as long as they like: by
//! listing it into memory that is slow to appear. A thread that takes a name out of that directory, or
//! looks one up in it, waits until then, and cannot be called back. So somebody looks after the thread
//! that moves files, leaves it behind where it does not come on, and has another one go on elsewhere.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A thread that has not come on for so long is left behind. One that only waits for a slow disk does no
/// harm there: it finishes what it is at.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many are left behind at most.
const LEFT_BEHIND_MAX: usize = 8;

/// Which thread has the turn, and where others are held up.
#[derive(Default)]
pub(super) struct Relay {
    state: Mutex<RelayState>,
    news: Condvar,
}

#[derive(Default)]
struct RelayState {
    turn: u64,
    /// When the thread whose turn it is last came on; `None` while it has nothing to do.
    beat: Option<Instant>,
    /// The directory it is at, below the branch's root.
    at: PathBuf,
    /// The threads that were left behind, with the directory of each.
    left: Vec<(u64, PathBuf)>,
    ended: bool,
}

/// What a thread that has or had the turn says of itself.
pub(super) struct Runner<'a> {
    relay: &'a Relay,
    turn: u64,
}

/// Another thread is to go on.
pub(super) struct PassedOn {
    pub(super) turn: u64,
    /// Where the one before is held up.
    pub(super) at: PathBuf,
}

impl Relay {
    /// The turn of the thread that is to be started now.
    pub(super) fn turn(&self) -> u64 {
        self.state.lock().turn
    }

    pub(super) fn runner(&self, turn: u64) -> Runner<'_> {
        Runner { relay: self, turn }
    }

    /// How many are left behind, and not back.
    pub(super) fn left_behind(&self) -> usize {
        self.state.lock().left.len()
    }

    /// Takes the turn from a thread that is held up.
    pub(super) fn pass_on(&self) -> Option<PassedOn> {
        self.state.lock().pass_on(PATIENCE)
    }

    /// Waits until a thread is held up, and takes the turn from it. `None` at the end.
    pub(super) fn wait_to_pass_on(&self) -> Option<PassedOn> {
        let mut state = self.state.lock();
        while !state.ended {
            if let Some(passed_on) = state.pass_on(PATIENCE) {
                return Some(passed_on);
            }
            match state.beat {
                Some(beat) if state.left.len() < LEFT_BEHIND_MAX => {
                    let due = beat + PATIENCE + Duration::from_millis(1);
                    self.news.wait_until(&mut state, due);
                }
                _ => self.news.wait(&mut state),
            }
        }
        None
    }

    /// Nobody has to look after the threads any more.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.news.notify_all();
    }
}

impl RelayState {
    fn pass_on(&mut self, patience: Duration) -> Option<PassedOn> {
        let held_up = self.beat.is_some_and(|beat| beat.elapsed() > patience);
        if !held_up || self.left.len() >= LEFT_BEHIND_MAX {
            return None;
        }
        let at = std::mem::take(&mut self.at);
        self.left.push((self.turn, at.clone()));
        self.turn += 1;
        // The next one has all the time it needs to start.
        self.beat = None;
        Some(PassedOn {
            turn: self.turn,
            at,
        })
    }
}

impl Runner<'_> {
    /// The thread begins something in a directory. False: somebody is held up there, or the turn is
    /// another's.
    pub(super) fn enters(&self, dir: &Path) -> bool {
        let mut state = self.relay.state.lock();
        let is_left = |(_, left): &(u64, PathBuf)| match left.as_os_str().is_empty() {
            // What lies below the root is found without its lock.
            true => dir.as_os_str().is_empty(),
            false => dir.starts_with(left),
        };
        if state.turn != self.turn || state.left.iter().any(is_left) {
            return false;
        }
        state.at = dir.to_owned();
        self.beat_in(&mut state);
        true
    }

    /// The thread comes on.
    pub(super) fn beat(&self) {
        let mut state = self.relay.state.lock();
        if state.turn == self.turn {
            self.beat_in(&mut state);
        }
    }

    fn beat_in(&self, state: &mut RelayState) {
        let rested = state.beat.is_none();
        state.beat = Some(Instant::now());
        if rested {
            self.relay.news.notify_all();
        }
    }

    /// The thread has nothing to do.
    pub(super) fn rests(&self) {
        let mut state = self.relay.state.lock();
        if state.turn == self.turn {
            state.beat = None;
        }
    }

    /// Whether the thread still has the turn; one that has not is back by asking, and ends.
    pub(super) fn has_turn(&self) -> bool {
        let mut state = self.relay.state.lock();
        if state.turn == self.turn {
            return true;
        }
        state.left.retain(|(turn, _)| *turn != self.turn);
        self.relay.news.notify_all();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_up(relay: &Relay) {
        let mut state = relay.state.lock();
        state.beat = Instant::now().checked_sub(PATIENCE * 2);
        assert!(state.beat.is_some(), "the machine has only just started");
    }

    #[test]
    fn the_turn_of_a_thread_that_does_not_come_on_is_passed_on() {
        let relay = Relay::default();
        let first = relay.runner(relay.turn());
        assert!(first.enters(Path::new("a/b")) && relay.pass_on().is_none());
        held_up(&relay);
        let passed_on = relay.pass_on().unwrap();
        assert_eq!(passed_on.at, Path::new("a/b"));
        assert!(relay.pass_on().is_none(), "the next one has not begun");
        let second = relay.runner(passed_on.turn);
        assert!(!second.enters(Path::new("a/b")) && !second.enters(Path::new("a/b/c")));
        assert!(second.enters(Path::new("a")) && second.enters(Path::new("a/bc")));
        // The first one's signs of life count for nothing, until it is back.
        held_up(&relay);
        first.beat();
        assert!(!first.enters(Path::new("x")) && relay.left_behind() == 1);
        assert!(!first.has_turn() && relay.left_behind() == 0);
        assert!(second.has_turn() && relay.pass_on().is_some());
    }

    #[test]
    fn a_thread_that_rests_keeps_the_turn() {
        let relay = Relay::default();
        let runner = relay.runner(relay.turn());
        runner.beat();
        held_up(&relay);
        runner.rests();
        assert!(relay.pass_on().is_none() && runner.has_turn());
    }

    #[test]
    fn a_locked_root_leaves_what_is_below_it() {
        let relay = Relay::default();
        relay.runner(0).enters(Path::new(""));
        held_up(&relay);
        let next = relay.pass_on().unwrap().turn;
        assert!(!relay.runner(next).enters(Path::new("")));
        assert!(relay.runner(next).enters(Path::new("a")));
    }

    #[test]
    fn so_many_are_left_behind_and_no_more() {
        let relay = Relay::default();
        for number in 0..LEFT_BEHIND_MAX {
            let runner = relay.runner(relay.turn());
            assert!(runner.enters(Path::new(&number.to_string())));
            held_up(&relay);
            assert!(relay.pass_on().is_some());
        }
        relay.runner(relay.turn()).beat();
        held_up(&relay);
        assert!(relay.pass_on().is_none());
        // With the first one back another may go.
        assert!(!relay.runner(0).has_turn());
        assert!(relay.pass_on().is_some());
    }
}
