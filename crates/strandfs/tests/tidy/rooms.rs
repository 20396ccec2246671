//! The crates, and the rooms in them, from the bottom up: each uses those below it and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::source::Source;

/// The rooms of the pool, from the bottom up.
const POOL: [&str; 10] = [
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

/// Those of `crates/fuse`.
const FUSE: [&str; 18] = [
    "read_lossy",
    "sys",
    "signals",
    "page_limit",
    "abort_helper",
    "affinity",
    "latency",
    "traffic",
    "report",
    "mount",
    "connection",
    "deferred",
    "filesystem",
    "dispatch",
    "life",
    "transport",
    "ring",
    "session",
];

/// The rooms that a file names, outside comments and tests.
fn named(text: &str, rooms: &'static [&'static str]) -> BTreeSet<&'static str> {
    let source = Source::new(text);
    let mut found = BTreeSet::new();
    for (number, line) in source.code.iter().enumerate() {
        if source.test_only[number] {
            continue;
        }
        for part in line.split("crate::").skip(1) {
            let end = part.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            let word = &part[..end.unwrap_or(part.len())];
            found.extend(rooms.iter().find(|room| **room == word));
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
    no_room_uses_one_above_it("crates/pool/src", &POOL);
}

#[test]
fn no_room_of_the_protocol_uses_one_above_it() {
    no_room_uses_one_above_it("crates/fuse/src", &FUSE);
}

fn no_room_uses_one_above_it(src: &str, rooms: &'static [&'static str]) {
    let rank = |room: &str| rooms.iter().position(|known| *known == room);
    let src = crate::repo_root().join(src);
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
        let above = named(&text, rooms)
            .into_iter()
            .filter(|to| rank(to) > Some(own));
        against.extend(above.map(|to| (room.clone(), to)));
    }
    assert!(unknown.is_empty(), "not rooms of this house: {unknown:?}");
    assert!(against.is_empty(), "arrows against the order: {against:?}");
}

#[test]
fn what_a_file_names_is_seen_outside_comments_and_tests() {
    let text = "//! crate::admin\nuse crate::base::sys;\nfn f() { crate::ops::g() } // crate::mover\n\
                #[cfg(test)]\nmod tests {\n    use crate::pool::Pool;\n}\n";
    assert_eq!(Vec::from_iter(named(text, &POOL)), ["base", "ops"]);
}

/// From the bottom up; with those that are published.
const CRATES: [(&str, bool); 11] = [
    ("strandfs-options", true),
    ("strandfs-fuse-abi", true),
    ("strandfs-fuse", true),
    ("strandfs-preload-abi", false),
    ("strandfs-preload", false),
    ("strandfs-pool", false),
    ("strandfs-volume", false),
    ("strandfs-lab", false),
    ("strandfs-testkit", false),
    ("strandfs-fuzz", false),
    ("strandfs", false),
];

/// Name, manifest and folder of each crate of the workspace.
fn manifests() -> Vec<(String, String, std::path::PathBuf)> {
    let root = crate::repo_root();
    let crates = fs::read_dir(root.join("crates")).unwrap();
    let mut folders: Vec<_> = crates.map(|found| found.unwrap().path()).collect();
    folders.extend([root.join("lab"), root.join("fuzz/harness")]);
    let read = |folder: std::path::PathBuf| {
        let text = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("name = "));
        (
            name.unwrap().trim_matches('"').to_owned(),
            text.clone(),
            folder,
        )
    };
    folders.into_iter().map(read).collect()
}

#[test]
fn no_crate_uses_one_above_it() {
    let place = |name: &str| CRATES.iter().position(|(known, _)| *known == name);
    let mut against = Vec::new();
    for (name, text, _) in manifests() {
        let Some(own) = place(&name) else {
            panic!("{name} has no place in the order");
        };
        let uses = text
            .split_once("\n[dependencies]")
            .map_or("", |(_, rest)| rest);
        let uses = uses.split("\n[").next().unwrap_or_default();
        let used = uses
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next());
        let above = used.filter(|used| place(used).is_some_and(|place| place >= own));
        against.extend(above.map(|used| format!("{name} -> {used}")));
    }
    assert!(against.is_empty(), "{against:?}");
}

#[test]
fn what_is_published_has_a_face_and_the_rest_is_not_published() {
    for (name, text, folder) in manifests() {
        let has = |key: &str| {
            text.lines()
                .any(|line| line.starts_with(&format!("{key} = ")))
        };
        if CRATES.contains(&(name.as_str(), true)) {
            for key in ["description", "keywords", "categories"] {
                assert!(has(key), "{name} has no {key}");
            }
            for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
                assert!(folder.join(file).exists(), "{name} has no {file}");
            }
            assert!(!has("publish"), "{name}");
        } else {
            assert!(
                text.contains("\npublish = false\n"),
                "{name} would be published"
            );
        }
    }
}
