//! The differences from the bare filesystem that `docs/semantics.md` gives reasons for. What is not
//! in its table fails the test, and so does a row of it that nothing here is about.

use super::record::Record;

/// Whether what happened on the bare filesystem and in the pool is a certain difference.
type Is = fn(&Record, &Record) -> bool;

/// By the name in the table.
const KNOWN: &[(&str, Is)] = &[
    ("chown-of-nothing", |bare, _| {
        bare.trial.ends_with("chown of nothing")
    }),
    ("chown-without-fowner", |bare, pool| {
        let changes = ["chown user", "chgrp", "chgrp same", "chown to itself"];
        let change = bare.trial.rsplit_once(", ").unwrap().1;
        let powers = ["stranger with CHOWN", "root with all but FOWNER"];
        changes.contains(&change)
            && powers.contains(&bare.person.as_str())
            && (bare.outcome.as_str(), pool.outcome.as_str()) == ("E1", "ok")
    }),
    ("mapped-write-drops-capability", |bare, pool| {
        bare.trial.ends_with("with a capability, mapped write") && bare.outcome == pool.outcome
    }),
    ("set-group-id-without-execute", |bare, pool| {
        bare.trial.contains("file 2767") && bare.outcome == pool.outcome
    }),
    ("set-id-while-open", |bare, pool| {
        bare.trial.ends_with("open for writing as set-id bits come") && bare.outcome == pool.outcome
    }),
];

/// The names in the first column of the table.
fn documented() -> Vec<&'static str> {
    include_str!("../../../../../docs/semantics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `permissions ")?.split_once('`'))
        .map(|(name, _)| name)
        .collect()
}

/// The name of the documented difference that this is.
pub fn difference(bare: &Record, pool: &Record) -> Option<&'static str> {
    let documented = documented();
    let known = KNOWN.iter().find(|(_, is)| is(bare, pool));
    known
        .map(|(name, _)| *name)
        .filter(|name| documented.contains(name))
}

#[test]
fn the_documented_differences_are_those_the_tests_know() {
    let known: Vec<_> = KNOWN.iter().map(|(name, _)| *name).collect();
    assert_eq!(documented(), known);
}
