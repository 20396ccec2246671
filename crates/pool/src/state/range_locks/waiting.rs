//! Who waits for a lock, in the order they came. Those who want the same of the same bytes are one
//! class: of a hundred thousand who wait for one lock, one is looked at when it becomes free.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use strandfs_fuse::{Deferred, LockOwner};

use super::Asked;
use crate::state::lock_table::{Kind, LockTable, Span};
use crate::state::lock_waits::Wait;

/// Who want the same.
type Class = (Span, Kind);

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
        let kind = waiter.asked.kind.unwrap_or(Kind::Exclusive);
        let class = (waiter.asked.span, kind);
        waiter.wait.set_turn(turn);
        self.classes.entry(class).or_default().insert(turn, waiter);
    }

    /// Takes this one out, if it is (still) here.
    pub fn remove(&mut self, span: Span, kind: Kind, turn: u64) -> Option<Waiter> {
        let class = (span, kind);
        let members = self.classes.get_mut(&class)?;
        let waiter = members.remove(turn);
        if members.by_turn.is_empty() {
            self.classes.remove(&class);
        }
        waiter
    }

    /// Whether this one is here.
    pub fn has(&self, span: Span, kind: Kind, turn: u64) -> bool {
        let members = self.classes.get(&(span, kind));
        members.is_some_and(|members| members.by_turn.contains_key(&turn))
    }

    /// The first of a class.
    pub(super) fn front(&self, class: &Class) -> Option<u64> {
        let (turn, _) = self.classes.get(class)?.first()?;
        Some(turn)
    }

    /// The first of each class that wants any of these bytes, in the order they came.
    pub(super) fn fronts(&self, span: &Span) -> BTreeSet<(u64, Class)> {
        let classes = self.classes.keys().filter(|(wanted, _)| wanted.meets(span));
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
