//! How many separate ranges the owners of one user hold in the whole pool. Each of them is memory of
//! the server and of the branch's kernel, so there is an end to it: ENOLCK.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Ranges of one owner on one file that are not counted: ordinary programs never get to the counter,
/// and how many owners a user may have is bounded with processes and open files.
pub(super) const FREE_OF_OWNER: usize = 16;
/// Counted ranges of one user. Not root.
const MOST_OF_USER: usize = if cfg!(test) { 1000 } else { 200_000 };

/// By user.
#[derive(Default)]
pub struct RangeCounts(Mutex<HashMap<u32, usize>>);

impl RangeCounts {
    /// Whether a user may not have another one.
    pub(super) fn is_full(&self, uid: u32) -> bool {
        let counts = self.0.lock();
        uid != 0 && counts.get(&uid).is_some_and(|count| *count >= MOST_OF_USER)
    }

    /// An owner of this user had `before` counted ranges and has `after`.
    pub(super) fn change(&self, uid: u32, before: usize, after: usize) {
        let mut counts = self.0.lock();
        let count = counts.entry(uid).or_default();
        *count = (*count + after).saturating_sub(before);
        if *count == 0 {
            counts.remove(&uid);
        }
    }

    /// Of all users.
    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        self.0.lock().values().sum()
    }
}
