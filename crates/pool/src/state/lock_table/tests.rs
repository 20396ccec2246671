//! The table against a map of single bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const BYTES: u64 = 24;
const OWNERS: u64 = 4;

/// What each owner holds of each byte.
#[derive(Default)]
struct Model(BTreeMap<(u64, u64), LockMode>);

impl Model {
    fn against(&self, owner: u64, span: Span, kind: LockMode) -> Vec<u64> {
        let mut found: Vec<u64> = (self.0.iter())
            .filter(|((byte, other), held)| {
                (span.start..=span.end).contains(byte)
                    && *other != owner
                    && (kind == LockMode::Exclusive || **held == LockMode::Exclusive)
            })
            .map(|((_, other), _)| *other)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    fn set(&mut self, owner: u64, span: Span, kind: Option<LockMode>) {
        for byte in span.start..=span.end {
            match kind {
                Some(kind) => self.0.insert((byte, owner), kind),
                None => self.0.remove(&(byte, owner)),
            };
        }
    }

    fn of(&self, byte: u64) -> Option<LockMode> {
        let held = self.0.iter().filter(|((known, _), _)| *known == byte);
        held.map(|(_, kind)| *kind).max()
    }
}

fn span() -> impl Strategy<Value = Span> {
    (0..BYTES, 0..BYTES).prop_map(|(a, b)| Span {
        start: a.min(b),
        end: a.max(b),
    })
}

fn kind() -> impl Strategy<Value = Option<LockMode>> {
    prop_oneof![
        Just(None),
        Just(Some(LockMode::Shared)),
        Just(Some(LockMode::Exclusive))
    ]
}

/// The table says what the model says, of every byte and every owner.
fn same(table: &LockTable, model: &Model) {
    let all = Span {
        start: 0,
        end: BYTES - 1,
    };
    let mut next = 0;
    for (part, kind) in table.union(all) {
        assert_eq!(part.start, next, "without gaps");
        next = part.end + 1;
        for byte in part.start..=part.end {
            assert_eq!(kind, model.of(byte), "byte {byte}");
        }
    }
    assert_eq!(next, BYTES);
    for owner in 0..OWNERS {
        let mut held = BTreeMap::new();
        let mut last: Option<Piece> = None;
        for piece in table.pieces(LockOwner(owner)) {
            let joins =
                |last: Piece| last.span.end + 1 == piece.span.start && last.kind == piece.kind;
            assert!(!last.is_some_and(joins), "pieces are joined");
            last = Some(piece);
            for byte in piece.span.start..=piece.span.end {
                held.insert((byte, owner), piece.kind);
            }
        }
        let expected: BTreeMap<_, _> = (model.0.iter())
            .filter(|((_, other), _)| *other == owner)
            .map(|(key, kind)| (*key, *kind))
            .collect();
        assert_eq!(held, expected, "owner {owner}");
        assert_eq!(table.holds(LockOwner(owner)), !expected.is_empty());
    }
    for (left, right) in table.runs.iter().zip(table.runs.iter().skip(1)) {
        let joins = left.1.end + 1 == *right.0
            && (left.1.kind, &left.1.owners) == (right.1.kind, &right.1.owners);
        assert!(!joins && left.1.end < *right.0, "{table:?}");
    }
    assert_eq!(table.is_empty(), model.0.is_empty());
}

proptest! {
    #[test]
    fn it_grants_and_takes_what_the_model_does(
        steps in prop::collection::vec((0..OWNERS, span(), kind(), any::<bool>()), 1..60),
    ) {
        let (mut table, mut model) = (LockTable::default(), Model::default());
        for (owner, span, kind, takes_back) in steps {
            let who = LockOwner(owner);
            if let Some(kind) = kind {
                let mut against: Vec<u64> =
                    table.against(who, span, kind).map(|other| other.0).collect();
                against.sort_unstable();
                against.dedup();
                let expected = model.against(owner, span, kind);
                prop_assert_eq!(&against, &expected);
                let first = table.first_against(who, span, kind);
                prop_assert_eq!(first.is_some(), !expected.is_empty());
                if let Some((other, piece)) = first {
                    prop_assert!(expected.contains(&other.0) && piece.span.meets(&span));
                }
                if !expected.is_empty() {
                    continue;
                }
            }
            let before = table.held_within(who, span);
            table.set(who, span, kind);
            if takes_back {
                table.put_back(who, span, &before);
            } else {
                model.set(owner, span, kind);
            }
            same(&table, &model);
        }
    }
}

#[test]
fn locks_reach_to_the_last_byte_there_can_be() {
    let mut table = LockTable::default();
    let (first, second) = (LockOwner(1), LockOwner(2));
    table.set(first, Span::ALL, Some(LockMode::Exclusive));
    let last = Span {
        start: i64::MAX as u64,
        end: i64::MAX as u64,
    };
    assert_eq!(table.against(second, last, LockMode::Shared).count(), 1);
    table.set(first, last, None);
    assert_eq!(table.against(second, last, LockMode::Exclusive).count(), 0);
    table.set(second, last, Some(LockMode::Shared));
    assert_eq!(table.union(Span::ALL).len(), 2);
    assert_eq!(table.holders().count(), 2);
}
