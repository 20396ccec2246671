//! How much of something limited each user holds, so that no user takes what is left for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whose shares are not counted.
const ROOT: u32 = 0;

/// One part in so many, for [`FairShares::take_unasked`].
const UNASKED: usize = 16;

/// Counts by user. Root, who could stop the server anyway, is not counted.
#[derive(Default)]
pub struct Shares {
    /// Read without a lock. A user who was ever seen stays: 16 bytes each.
    users: papaya::HashMap<u32, Arc<AtomicUsize>>,
}

/// A part of what a user has, given back when this is dropped.
#[must_use]
pub struct Share {
    held: Option<Arc<AtomicUsize>>,
    count: usize,
}

impl Shares {
    /// One more for the user, who may have `most`; `None` if that is reached.
    pub fn take(&self, uid: u32, most: usize) -> Option<Share> {
        self.take_several(uid, 1, most)
    }

    fn take_several(&self, uid: u32, count: usize, most: usize) -> Option<Share> {
        if uid == ROOT {
            return Some(Share { held: None, count });
        }
        let users = self.users.pin();
        let held = match users.get(&uid) {
            Some(held) => held,
            None => users.get_or_insert_with(uid, Arc::default),
        };
        let more = |held: usize| held.checked_add(count).filter(|held| *held <= most);
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        Some(Share {
            held: Some(Arc::clone(held)),
            count,
        })
    }

    /// How much the user has.
    pub fn of(&self, uid: u32) -> usize {
        let users = self.users.pin();
        users
            .get(&uid)
            .map_or(0, |held| held.load(Ordering::Relaxed))
    }

    /// The user who has most, and how much.
    pub fn largest(&self) -> Option<(u32, usize)> {
        let users = self.users.pin();
        let held = users
            .iter()
            .map(|(uid, held)| (*uid, held.load(Ordering::Relaxed)));
        held.filter(|(_, held)| *held > 0)
            .max_by_key(|(_, held)| *held)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.fetch_sub(self.count, Ordering::Relaxed);
        }
    }
}

/// Something of which there is so much for all, and for each user a fair share of what is free.
#[derive(Default)]
pub struct FairShares {
    taken: Arc<AtomicUsize>,
    users: Shares,
}

/// A part of that, given back when this is dropped.
#[must_use]
pub struct FairShare {
    taken: Arc<AtomicUsize>,
    share: Share,
}

impl FairShares {
    /// So many more for the user, of a `capacity` for all; `None` if that is more than the user may have.
    pub fn take(&self, uid: u32, count: usize, capacity: usize) -> Option<FairShare> {
        let free = capacity.saturating_sub(self.taken.load(Ordering::Relaxed));
        if count > free {
            return None;
        }
        let most = fair_share(free, capacity);
        let share = self.users.take_several(uid, count, most)?;
        self.taken.fetch_add(count, Ordering::Relaxed);
        Some(FairShare {
            taken: Arc::clone(&self.taken),
            share,
        })
    }

    /// The same of what is mostly held for a moment: as long as no more than one part in sixteen is taken, nobody
    /// asks who the user is, which takes longer than all the rest.
    pub fn take_unasked(
        &self,
        user: impl FnOnce() -> u32,
        count: usize,
        capacity: usize,
    ) -> Option<FairShare> {
        let taken = self.taken.load(Ordering::Relaxed).saturating_add(count);
        let uid = match taken <= capacity / UNASKED {
            true => ROOT,
            false => user(),
        };
        self.take(uid, count, capacity)
    }
}

impl Drop for FairShare {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.share.count, Ordering::Relaxed);
    }
}

/// What one user may have of `capacity` while `free` of it is left. A user alone gets 38 in a
/// hundred; a hundred users in league, one after the other, still leave a hundredth. Were it what
/// is free, or a part of that, ten or a few dozen would do to take the last.
pub fn fair_share(free: usize, capacity: usize) -> usize {
    let (free, capacity) = (free.min(capacity), capacity.max(1));
    match free.checked_mul(free) {
        Some(square) => square.div_ceil(capacity),
        None => free / capacity.div_ceil(free),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_at_most_the_share_and_gets_back_what_was_given_back() {
        let shares = Shares::default();
        let mut taken: Vec<Share> = (0..3).map(|_| shares.take(7, 3).unwrap()).collect();
        assert!(shares.take(7, 3).is_none());
        assert!(shares.take(8, 3).is_some(), "another user has a share too");
        assert_eq!((shares.of(7), shares.of(8)), (3, 0));
        assert_eq!(shares.largest(), Some((7, 3)));
        taken.pop();
        assert!(shares.take(7, 3).is_some());
        drop(taken);
        assert_eq!((shares.of(7), shares.largest()), (0, None));
    }

    #[test]
    fn root_is_not_counted() {
        let shares = Shares::default();
        let taken: Vec<_> = (0..100).map(|_| shares.take(0, 0)).collect();
        assert!(taken.iter().all(Option::is_some));
        assert_eq!(shares.of(0), 0);
    }

    #[test]
    fn a_hundred_users_in_league_leave_a_hundredth() {
        let (shares, capacity) = (Shares::default(), 100_000);
        let mut taken = Vec::new();
        let fill = |uid, taken: &mut Vec<Share>| {
            let before = taken.len();
            while let Some(share) = shares.take(uid, fair_share(capacity - taken.len(), capacity)) {
                taken.push(share);
            }
            taken.len() - before
        };
        assert_eq!(fill(1, &mut taken), 38_197);
        assert!(fill(2, &mut taken) > 10_000, "a second user has enough");
        (3..=100).for_each(|uid| {
            fill(uid, &mut taken);
        });
        assert!(capacity - taken.len() >= 950, "{}", taken.len());
        assert!(fill(101, &mut taken) > 5);
    }

    #[test]
    fn no_user_takes_all_that_there_is_for_all_and_root_takes_no_more_than_that() {
        let shares = FairShares::default();
        let take_all =
            |uid| -> Vec<_> { std::iter::from_fn(|| shares.take(uid, 2, 256)).collect() };
        let first = take_all(7);
        assert!((40..100).contains(&first.len()), "{}", first.len());
        let second = take_all(8);
        assert!(second.len() > 10, "{}", second.len());
        let roots = take_all(0);
        assert_eq!(first.len() + second.len() + roots.len(), 128);
        drop((first, second, roots));
        assert!(shares.take(9, 3, 256).is_some(), "all was given back");
    }

    #[test]
    fn of_the_first_sixteenth_nobody_asks_whose_it_is() {
        let shares = FairShares::default();
        let unasked = || -> u32 { panic!("asked") };
        let first: Vec<_> = (0..16)
            .map(|_| shares.take_unasked(unasked, 1, 256).unwrap())
            .collect();
        let more: Vec<_> = std::iter::from_fn(|| shares.take_unasked(|| 7, 1, 256)).collect();
        assert!((80..100).contains(&more.len()), "{}", more.len());
        assert_eq!(shares.users.of(7), more.len());
        drop(first);
        assert!(shares.take_unasked(|| 7, 1, 256).is_some());
    }

    #[test]
    fn shares_of_nothing_and_of_everything() {
        assert_eq!(fair_share(0, 0), 0);
        assert_eq!(fair_share(0, 10), 0);
        assert_eq!(fair_share(10, 10), 10);
        assert_eq!(fair_share(1, 1000), 1, "what is left can be had");
        assert_eq!(fair_share(usize::MAX, usize::MAX), usize::MAX);
    }
}
