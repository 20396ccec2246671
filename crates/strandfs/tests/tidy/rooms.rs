//! The rooms of the pool, from the bottom up: a room uses those below it and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::source::Source;

/// From the bottom up.
const ROOMS: [&str; 10] = [
    "base",
    "state",
    "coherence",
    "directory",
    "watch",
    "mover",
    "health",
    "ops",
    "admin",
    "pool",
];

fn rank(room: &str) -> Option<usize> {
    ROOMS.iter().position(|known| *known == room)
}

/// The rooms that a file names, outside comments and tests.
fn named(text: &str) -> BTreeSet<&'static str> {
    let source = Source::new(text);
    let mut found = BTreeSet::new();
    for (number, line) in source.code.iter().enumerate() {
        if source.test_only[number] {
            continue;
        }
        for part in line.split("crate::").skip(1) {
            let end = part.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            let word = &part[..end.unwrap_or(part.len())];
            found.extend(ROOMS.iter().find(|room| **room == word));
        }
    }
    found
}

/// The room of a file below `src`, if it is in one.
fn room_of(path: &Path) -> Option<String> {
    let first = path.components().next()?.as_os_str().to_str()?;
    let room = first.strip_suffix(".rs").unwrap_or(first);
    (room != "lib").then(|| room.to_owned())
}

#[test]
fn no_room_of_the_pool_uses_one_above_it() {
    let src = crate::repo_root().join("crates/pool/src");
    let mut files = Vec::new();
    crate::rust_files(&src, &mut files);
    let mut against = BTreeSet::new();
    let mut unknown = BTreeSet::new();
    for file in &files {
        let Some(room) = room_of(file.strip_prefix(&src).unwrap()) else {
            continue;
        };
        let Some(own) = rank(&room) else {
            unknown.insert(room);
            continue;
        };
        if file.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        let text = fs::read_to_string(file).unwrap();
        let above = named(&text).into_iter().filter(|to| rank(to) > Some(own));
        against.extend(above.map(|to| (room.clone(), to)));
    }
    assert!(unknown.is_empty(), "not rooms of this house: {unknown:?}");
    assert!(against.is_empty(), "arrows against the order: {against:?}");
}

#[test]
fn what_a_file_names_is_seen_outside_comments_and_tests() {
    let text = "//! crate::admin\nuse crate::base::sys;\nfn f() { crate::ops::g() } // crate::mover\n\
                #[cfg(test)]\nmod tests {\n    use crate::pool::Pool;\n}\n";
    assert_eq!(Vec::from_iter(named(text)), ["base", "ops"]);
}
