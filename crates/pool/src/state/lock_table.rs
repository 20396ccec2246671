//! Which owner of the pool holds what of one file, byte by byte, and which of several would stand
//! against another lock. Pure bookkeeping: branches are not asked here.

use std::collections::{BTreeMap, HashMap};

use smallvec::{SmallVec, smallvec};
use strandfs_fuse::LockOwner;

/// A run of bytes, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
}

impl Span {
    /// Every byte there can be.
    pub const ALL: Span = Span {
        start: 0,
        end: i64::MAX as u64,
    };

    /// Whether they have a byte in common.
    pub fn meets(&self, other: &Span) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// How bytes are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockMode {
    /// Others may hold the same.
    Shared,
    /// By one owner alone.
    Exclusive,
}

/// What one owner holds of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The bytes.
    pub span: Span,
    /// How.
    pub kind: LockMode,
}

/// Bytes that the same owners hold in the same way, up to `end`. Who holds them alone is the only
/// one in `owners`, which are sorted.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    end: u64,
    kind: LockMode,
    owners: SmallVec<[LockOwner; 2]>,
}

/// All that is held.
#[derive(Default, Debug)]
pub struct LockTable {
    /// By first byte; no two overlap, none is without owners.
    runs: BTreeMap<u64, Run>,
    /// What each owner holds, by first byte.
    owners: HashMap<LockOwner, BTreeMap<u64, (u64, LockMode)>>,
}

impl LockTable {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Whether this owner holds anything.
    pub fn holds(&self, owner: LockOwner) -> bool {
        self.owners.contains_key(&owner)
    }

    /// How many separate ranges this owner holds.
    pub fn count(&self, owner: LockOwner) -> usize {
        self.owners.get(&owner).map_or(0, BTreeMap::len)
    }

    /// Whether this owner holds bytes before and behind `span` as one range with it.
    pub fn is_within(&self, owner: LockOwner, span: Span) -> bool {
        let held = self.owners.get(&owner);
        let range = held.and_then(|held| held.range(..span.start).next_back());
        range.is_some_and(|(_, (end, _))| *end > span.end)
    }

    /// Everybody who holds something.
    #[cfg(test)]
    pub fn holders(&self) -> impl Iterator<Item = LockOwner> + '_ {
        self.owners.keys().copied()
    }

    /// The owners other than `owner` that stand against its locking `span`; one may come several
    /// times.
    pub fn against(
        &self,
        owner: LockOwner,
        span: Span,
        kind: LockMode,
    ) -> impl Iterator<Item = LockOwner> + '_ {
        let runs = self.runs_in(span);
        let standing = runs
            .filter(move |(_, run)| kind == LockMode::Exclusive || run.kind == LockMode::Exclusive);
        standing
            .flat_map(|(_, run)| run.owners.iter().copied())
            .filter(move |other| *other != owner)
    }

    /// The first that stands against it, and what that one holds there.
    pub fn first_against(
        &self,
        owner: LockOwner,
        span: Span,
        kind: LockMode,
    ) -> Option<(LockOwner, Piece)> {
        let other = self.against(owner, span, kind).next()?;
        let pieces = self.pieces_in(other, span);
        let conflicts =
            |piece: &Piece| kind == LockMode::Exclusive || piece.kind == LockMode::Exclusive;
        let piece = pieces.into_iter().find(conflicts)?;
        Some((other, piece))
    }

    /// What an owner holds that has to do with `span`, whole.
    fn pieces_in(&self, owner: LockOwner, span: Span) -> Vec<Piece> {
        let Some(held) = self.owners.get(&owner) else {
            return Vec::new();
        };
        let first = held.range(..=span.start).next_back();
        let first = first.filter(|(_, (end, _))| *end >= span.start);
        let rest = held.range(span.start..=span.end);
        let rest = rest.filter(|(start, _)| **start > span.start);
        first
            .into_iter()
            .chain(rest)
            .map(|(start, (end, kind))| Piece {
                span: Span {
                    start: *start,
                    end: *end,
                },
                kind: *kind,
            })
            .collect()
    }

    /// What an owner holds within `span`, cut to it: for [`put_back`](Self::put_back).
    pub fn held_within(&self, owner: LockOwner, span: Span) -> Vec<Piece> {
        let cut = |piece: Piece| Piece {
            span: Span {
                start: piece.span.start.max(span.start),
                end: piece.span.end.min(span.end),
            },
            kind: piece.kind,
        };
        let pieces = self.pieces_in(owner, span);
        pieces.into_iter().map(cut).collect()
    }

    /// All that an owner holds.
    pub fn pieces(&self, owner: LockOwner) -> Vec<Piece> {
        self.pieces_in(owner, Span::ALL)
    }

    /// Gives `span` to an owner, or takes it from it (`None`). What it held there before is
    /// replaced. Nobody may stand against it.
    pub fn set(&mut self, owner: LockOwner, span: Span, kind: Option<LockMode>) {
        self.set_of_owner(owner, span, kind);
        self.split(span.start);
        self.split(span.end.saturating_add(1));
        let mut from = span.start;
        let inside: SmallVec<[u64; 4]> = self
            .runs
            .range(span.start..=span.end)
            .map(|(start, _)| *start)
            .collect();
        for start in inside {
            if let Some(kind) = kind
                && from < start
            {
                self.insert(from, start - 1, kind, owner);
            }
            let Some(run) = self.runs.get_mut(&start) else {
                continue;
            };
            from = run.end.saturating_add(1);
            if let Ok(place) = run.owners.binary_search(&owner) {
                run.owners.remove(place);
            }
            if let Some(kind) = kind {
                let place = run
                    .owners
                    .binary_search(&owner)
                    .unwrap_or_else(|place| place);
                run.owners.insert(place, owner);
                run.kind = kind;
            } else if run.owners.is_empty() {
                self.runs.remove(&start);
            }
        }
        if let Some(kind) = kind
            && from <= span.end
        {
            self.insert(from, span.end, kind, owner);
        }
        self.join_around(span);
    }

    /// Undoes a [`set`](Self::set): `span` is as it was, of which the owner held `before`.
    pub fn put_back(&mut self, owner: LockOwner, span: Span, before: &[Piece]) {
        self.set(owner, span, None);
        for piece in before {
            self.set(owner, piece.span, Some(piece.kind));
        }
    }

    /// How the bytes of `span` are locked by whoever it is; `None` for free ones. In order,
    /// without gaps.
    pub fn union(&self, span: Span) -> Vec<(Span, Option<LockMode>)> {
        let mut parts: Vec<(Span, Option<LockMode>)> = Vec::new();
        let mut push = |start: u64, end: u64, kind: Option<LockMode>| match parts.last_mut() {
            Some((last, known)) if *known == kind => last.end = end,
            _ => parts.push((Span { start, end }, kind)),
        };
        let mut from = span.start;
        for (start, run) in self.runs_in(span) {
            let start = start.max(span.start);
            if from < start {
                push(from, start - 1, None);
            }
            let end = run.end.min(span.end);
            push(start, end, Some(run.kind));
            from = end.saturating_add(1);
        }
        if from <= span.end {
            push(from, span.end, None);
        }
        parts
    }

    fn runs_in(&self, span: Span) -> impl Iterator<Item = (u64, &Run)> {
        let first = self.runs.range(..=span.start).next_back();
        let first = first.filter(|(_, run)| run.end >= span.start);
        let rest = self.runs.range(span.start..=span.end);
        let rest = rest.filter(move |(start, _)| **start > span.start);
        first
            .into_iter()
            .chain(rest)
            .map(|(start, run)| (*start, run))
    }

    fn insert(&mut self, start: u64, end: u64, kind: LockMode, owner: LockOwner) {
        let owners = smallvec![owner];
        self.runs.insert(start, Run { end, kind, owners });
    }

    /// Sees to it that no run goes across the beginning of this byte.
    fn split(&mut self, at: u64) {
        let Some((start, run)) = self.runs.range_mut(..at).next_back() else {
            return;
        };
        if run.end < at || *start == at {
            return;
        }
        let rest = run.clone();
        run.end = at - 1;
        self.runs.insert(at, rest);
    }

    /// Joins runs that are the same, in `span` and at its ends.
    fn join_around(&mut self, span: Span) {
        let first = self.runs.range(..span.start).next_back();
        let mut from = first.map_or(span.start, |(start, _)| *start);
        let until = span.end.saturating_add(1);
        while let Some((start, run)) = self.runs.range(from..).next() {
            let (start, end) = (*start, run.end);
            let next = end.saturating_add(1);
            if start > until {
                return;
            }
            let joins = self.runs.get(&next).filter(|other| {
                let run = self.runs.get(&start);
                run.is_some_and(|run| (run.kind, &run.owners) == (other.kind, &other.owners))
            });
            let Some(end) = joins.map(|other| other.end) else {
                from = next;
                if next == end {
                    return;
                }
                continue;
            };
            self.runs.remove(&next);
            if let Some(run) = self.runs.get_mut(&start) {
                run.end = end;
            }
            from = start;
        }
    }

    fn set_of_owner(&mut self, owner: LockOwner, span: Span, kind: Option<LockMode>) {
        let held = self.owners.entry(owner).or_default();
        // What goes across the ends is cut, what lies within goes.
        let first = held.range(..span.start).next_back();
        if let Some((start, (end, known))) = first.map(|(start, rest)| (*start, *rest))
            && end >= span.start
        {
            held.insert(start, (span.start - 1, known));
            if end > span.end {
                held.insert(span.end + 1, (end, known));
            }
        }
        let inside: SmallVec<[u64; 4]> = held
            .range(span.start..=span.end)
            .map(|(start, _)| *start)
            .collect();
        for start in inside {
            if let Some((end, known)) = held.remove(&start)
                && end > span.end
            {
                held.insert(span.end + 1, (end, known));
            }
        }
        if let Some(kind) = kind {
            let (mut start, mut end) = (span.start, span.end);
            let before = held.range(..start).next_back();
            if let Some((first, (last, known))) = before.map(|(first, rest)| (*first, *rest))
                && (last + 1, known) == (start, kind)
            {
                held.remove(&first);
                start = first;
            }
            if let Some((last, known)) = held.get(&end.saturating_add(1)).copied()
                && known == kind
            {
                held.remove(&(end + 1));
                end = last;
            }
            held.insert(start, (end, kind));
        }
        if held.is_empty() {
            self.owners.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests;
