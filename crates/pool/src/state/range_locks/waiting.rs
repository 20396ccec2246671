//! Who waits for a lock, in the order they came. Those who want the same of the same bytes are one
//! class: of a hundred thousand who wait for one lock, one is looked at when it becomes free.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use strandfs_fuse::{Deferred, LockOwner};

use crate::state::lock_table::{LockMode, LockTable, Span};
use crate::state::lock_waits::Wait;
use crate::state::range_locks::Asked;

/// Who want the same.
type Class = (Span, LockMode);

/// So many different wishes of one user may wait for one file. Not root. All that may have become
/// free are looked at with each unlock, while others wait to lock the file.
const MOST_WISHES_OF_USER: usize = if cfg!(test) { 1000 } else { 4096 };

/// A request that waits.
pub struct Waiter {
    /// What for.
    pub asked: Asked,
    /// How it is answered.
    pub token: Deferred,
    /// What is known of it elsewhere.
    pub wait: Arc<Wait>,
}

impl Waiter {
    /// Whether its caller got a signal.
    pub(super) fn is_interrupted(&self) -> bool {
        self.wait.is_interrupted()
    }
}

/// Those who want the same, by turn, and the turns of each owner.
#[derive(Default)]
struct Members {
    /// The user who was the first to want it.
    uid: u32,
    by_turn: BTreeMap<u64, Waiter>,
    of_owner: HashMap<LockOwner, BTreeSet<u64>>,
}

impl Members {
    fn insert(&mut self, turn: u64, waiter: Waiter) {
        let turns = self.of_owner.entry(waiter.asked.owner).or_default();
        turns.insert(turn);
        self.by_turn.insert(turn, waiter);
    }

    fn remove(&mut self, turn: u64) -> Option<Waiter> {
        let waiter = self.by_turn.remove(&turn)?;
        let owner = waiter.asked.owner;
        if let Some(turns) = self.of_owner.get_mut(&owner) {
            turns.remove(&turn);
            if turns.is_empty() {
                self.of_owner.remove(&owner);
            }
        }
        Some(waiter)
    }

    fn first(&self) -> Option<(u64, &Waiter)> {
        let (turn, waiter) = self.by_turn.first_key_value()?;
        Some((*turn, waiter))
    }

    /// The first request of an owner.
    fn first_of(&self, owner: LockOwner) -> Option<u64> {
        self.of_owner.get(&owner)?.first().copied()
    }
}

/// All who wait for locks of one sort on one node.
#[derive(Default)]
pub struct Waiting {
    classes: HashMap<Class, Members>,
    /// The classes by their bytes: by the binary logarithm of how many, then by the first one.
    by_size: BTreeMap<u32, BTreeSet<Class>>,
    /// How many classes a user was the first to want.
    of_user: HashMap<u32, usize>,
    turns: u64,
}

impl Waiting {
    /// Adds one behind all others; its turn. It must want to lock.
    pub fn add(&mut self, waiter: Waiter) -> u64 {
        self.turns += 1;
        let turn = self.turns;
        self.put_back(turn, waiter);
        turn
    }

    /// Puts one back to where it was.
    pub(super) fn put_back(&mut self, turn: u64, waiter: Waiter) {
        let kind = waiter.asked.kind.unwrap_or(LockMode::Exclusive);
        let class = (waiter.asked.span, kind);
        waiter.wait.set_turn(turn);
        let members = self.classes.entry(class).or_insert_with(|| {
            let uid = waiter.asked.uid;
            *self.of_user.entry(uid).or_default() += 1;
            self.by_size
                .entry(size(&class.0))
                .or_default()
                .insert(class);
            Members {
                uid,
                ..Members::default()
            }
        });
        members.insert(turn, waiter);
    }

    /// Whether this user may not want one more thing that nobody wants so far.
    pub fn is_full_for(&self, asked: &Asked) -> bool {
        let class = (asked.span, asked.kind.unwrap_or(LockMode::Exclusive));
        let count = self.of_user.get(&asked.uid);
        count.is_some_and(|count| *count >= MOST_WISHES_OF_USER)
            && !self.classes.contains_key(&class)
    }

    /// Takes this one out, if it is (still) here.
    pub fn remove(&mut self, span: Span, kind: LockMode, turn: u64) -> Option<Waiter> {
        let class = (span, kind);
        let members = self.classes.get_mut(&class)?;
        let waiter = members.remove(turn);
        if !members.by_turn.is_empty() {
            return waiter;
        }
        if let Some(count) = self.of_user.get_mut(&members.uid) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&members.uid);
            }
        }
        self.classes.remove(&class);
        if let Some(classes) = self.by_size.get_mut(&size(&span)) {
            classes.remove(&class);
            if classes.is_empty() {
                self.by_size.remove(&size(&span));
            }
        }
        waiter
    }

    /// Whether this one is here.
    pub fn has(&self, span: Span, kind: LockMode, turn: u64) -> bool {
        let members = self.classes.get(&(span, kind));
        members.is_some_and(|members| members.by_turn.contains_key(&turn))
    }

    /// The first of a class.
    pub(super) fn front(&self, class: &Class) -> Option<u64> {
        let (turn, _) = self.classes.get(class)?.first()?;
        Some(turn)
    }

    /// The first of each class that wants any of these bytes, in the order they came.
    pub(super) fn fronts<'a>(&'a self, span: &Span) -> BTreeSet<(u64, Class)> {
        let of_size = |(size, classes): (&u32, &'a BTreeSet<Class>)| {
            // No longer than this, so the others of this size end before.
            let longest = u64::MAX >> (u64::BITS - 1 - size);
            let at = |start, end| (Span { start, end }, LockMode::Shared);
            let from = at(span.start.saturating_sub(longest), 0);
            classes.range(from..at(span.end.saturating_add(1), 0))
        };
        let classes = self.by_size.iter().flat_map(of_size);
        let classes = classes.filter(|(wanted, _)| wanted.meets(span));
        classes
            .filter_map(|class| Some((self.front(class)?, *class)))
            .collect()
    }

    /// What the first of each class wants.
    pub(super) fn front_requests(&self) -> Vec<Asked> {
        let firsts = self.classes.values().filter_map(Members::first);
        firsts.map(|(_, waiter)| waiter.asked.clone()).collect()
    }

    /// The first of a class that nobody stands against. Where one owner stands against all others,
    /// its own requests are free to go: those of other threads of the same process.
    pub(super) fn grantable(&self, class: &Class, held: &LockTable) -> Option<u64> {
        let members = self.classes.get(class)?;
        let (first, waiter) = members.first()?;
        let (span, kind) = *class;
        let mut against = held.against(waiter.asked.owner, span, kind);
        let Some(blocker) = against.next() else {
            return Some(first);
        };
        if against.any(|other| other != blocker) {
            return None;
        }
        members.first_of(blocker)
    }
}

/// The binary logarithm of how many bytes it has.
fn size(span: &Span) -> u32 {
    let last = span.end.saturating_sub(span.start);
    last.saturating_add(1).ilog2()
}
