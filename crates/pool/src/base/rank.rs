//! Locks that know their place in the order in which they are taken. Debug builds check it: a lock is
//! not waited for while one of a later rank is held, so that no two threads can wait for each other.
//! A thread holds one lock of a rank at most, and one side of it, except those of [`ATTRIBUTES`].

use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Options or branches are changed.
pub const CHANGES: u8 = 1;
/// A file or its names are changed (shared), or the file changes branches (exclusive).
pub const MOVE: u8 = 2;
/// A directory's attributes are changed, or a copy with them is made. Whoever holds one may take that
/// of the directory above.
pub const ATTRIBUTES: u8 = 3;
/// How a file is open.
pub const OPEN: u8 = 4;
/// The branch's side of a node's locks.
pub const LOCK_SIDE: u8 = 5;
/// All requests that wait for locks.
pub const LOCK_WAITS: u8 = 6;
/// Who holds and who waits for the locks of one node.
pub const LOCK_TABLES: u8 = 7;
/// Names and identities of a node.
pub const PLACE: u8 = 8;
/// What is held of files without a name.
pub const REMOVED_FILES: u8 = 9;
/// Threads that were told to look again.
pub const SENT_TO_LOOK: u8 = 10;

#[cfg(debug_assertions)]
thread_local! {
    /// Ranks of the locks that this thread holds.
    static HELD: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Before a lock of this rank is waited for.
fn check(rank: u8) {
    #[cfg(debug_assertions)]
    HELD.with_borrow(|held| {
        let is_later = |held: &&u8| **held > rank || **held == rank && rank != ATTRIBUTES;
        let later = held.iter().find(is_later);
        debug_assert!(later.is_none(), "a lock of rank {rank} under {held:?}");
    });
    #[cfg(not(debug_assertions))]
    let _ = rank;
}

/// What keeps a lock, and its rank.
pub struct Guard<G, const RANK: u8>(G);

impl<G, const RANK: u8> Guard<G, RANK> {
    fn new(guard: G) -> Self {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| held.push(RANK));
        Guard(guard)
    }
}

#[cfg(debug_assertions)]
impl<G, const RANK: u8> Drop for Guard<G, RANK> {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            if let Some(place) = held.iter().rposition(|held| *held == RANK) {
                held.remove(place);
            }
        });
    }
}

impl<G: Deref, const RANK: u8> Deref for Guard<G, RANK> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.0
    }
}

impl<G: DerefMut, const RANK: u8> DerefMut for Guard<G, RANK> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.0
    }
}

/// A mutex of this rank.
#[derive(Default)]
pub struct Mutex<T, const RANK: u8>(parking_lot::Mutex<T>);

/// What keeps a [`Mutex`].
pub type MutexGuard<'a, T, const RANK: u8> = Guard<parking_lot::MutexGuard<'a, T>, RANK>;

impl<T, const RANK: u8> Mutex<T, RANK> {
    /// Not locked.
    pub const fn new(value: T) -> Self {
        Mutex(parking_lot::Mutex::new(value))
    }

    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T, RANK> {
        check(RANK);
        Guard::new(self.0.lock())
    }

    /// Takes it if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, RANK>> {
        self.0.try_lock().map(Guard::new)
    }

    /// Waits for it, no longer than this.
    pub fn try_lock_for(&self, patience: Duration) -> Option<MutexGuard<'_, T, RANK>> {
        check(RANK);
        self.0.try_lock_for(patience).map(Guard::new)
    }
}

/// A lock of this rank for many readers or one writer.
#[derive(Default)]
pub struct RwLock<T, const RANK: u8>(parking_lot::RwLock<T>);

/// What keeps an [`RwLock`] for reading.
pub type ReadGuard<'a, T, const RANK: u8> = Guard<parking_lot::RwLockReadGuard<'a, T>, RANK>;
/// What keeps an [`RwLock`] for writing.
pub type WriteGuard<'a, T, const RANK: u8> = Guard<parking_lot::RwLockWriteGuard<'a, T>, RANK>;

impl<T, const RANK: u8> RwLock<T, RANK> {
    /// Not locked.
    pub const fn new(value: T) -> Self {
        RwLock(parking_lot::RwLock::new(value))
    }

    /// Waits until nobody writes.
    pub fn read(&self) -> ReadGuard<'_, T, RANK> {
        check(RANK);
        Guard::new(self.0.read())
    }

    /// Reads if nobody writes.
    pub fn try_read(&self) -> Option<ReadGuard<'_, T, RANK>> {
        self.0.try_read().map(Guard::new)
    }

    /// Takes it if nobody else has it.
    #[cfg(test)]
    pub fn try_write(&self) -> Option<WriteGuard<'_, T, RANK>> {
        self.0.try_write().map(Guard::new)
    }

    /// Waits until nobody else has it.
    pub fn write(&self) -> WriteGuard<'_, T, RANK> {
        check(RANK);
        Guard::new(self.0.write())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_their_order_and_left_in_any() {
        let (first, second) = (Mutex::<_, MOVE>::new(1), RwLock::<_, PLACE>::new(2));
        let outer = first.lock();
        let inner = second.read();
        drop(outer);
        assert!(first.try_lock().is_some(), "who does not wait may do so");
        drop(inner);
        drop(second.write());
        assert_eq!(*first.lock(), 1);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "a lock of rank 2 under [8]")]
    fn a_lock_against_the_order_is_found() {
        let (first, second) = (Mutex::<_, MOVE>::new(()), RwLock::<_, PLACE>::new(()));
        let _inner = second.write();
        let _outer = first.lock();
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "a lock of rank 2 under [2]")]
    fn a_second_side_of_the_move_lock_is_found() {
        let (one, other) = (RwLock::<_, MOVE>::new(()), RwLock::<_, MOVE>::new(()));
        let _shared = one.try_read();
        let _exclusive = other.write();
    }
}
