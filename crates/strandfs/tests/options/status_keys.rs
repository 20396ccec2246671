//! The shape of what `--json` says: programs read it, so keys are added and never taken away.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::need_root;
use crate::support::files::put;
use crate::support::{Kind, Pool, strandfs};
use serde_json::Value;

/// The keys of a pool as they were when the answer got its types.
const OF_STATUS: &[&str] = &[
    "branches",
    "branches[].available_bytes",
    "branches[].condition",
    "branches[].condition.io_errors",
    "branches[].condition.last_error",
    "branches[].condition.reason",
    "branches[].condition.since_seconds",
    "branches[].condition.state",
    "branches[].filesystem",
    "branches[].forbids",
    "branches[].health",
    "branches[].holds",
    "branches[].holds.on",
    "branches[].latency",
    "branches[].min_free_bytes",
    "branches[].mode",
    "branches[].mounts",
    "branches[].passthrough",
    "branches[].passthrough.on",
    "branches[].path",
    "branches[].source",
    "branches[].total_bytes",
    "branches[].watched",
    "branches[].watched.on",
    "coherence",
    "coherence.directories_remembered",
    "coherence.events",
    "coherence.invalidations",
    "connection",
    "connection.features",
    "connection.max_background",
    "connection.max_pages",
    "connection.max_write_bytes",
    "connection.most_threads",
    "connection.most_threads_at_once",
    "connection.number",
    "connection.protocol_minor",
    "connection.reliefs",
    "connection.requests",
    "connection.ring",
    "connection.ring.buffer_bytes",
    "connection.ring.queues",
    "connection.threads",
    "connection.transport",
    "connection.transport_reason",
    "connection.unknown_requests",
    "descriptors",
    "descriptors.directories",
    "descriptors.directories_limit",
    "descriptors.files",
    "descriptors.files_in_other_tables",
    "descriptors.files_limit",
    "descriptors.limit",
    "descriptors.most_open_files",
    "descriptors.open_files_limit",
    "descriptors.open_files_of_one_user_limit",
    "descriptors.other_tables",
    "descriptors.other_tables_refused",
    "directory_descriptors",
    "files_told_to_preload",
    "guardian",
    "guardian.on",
    "guardian.pid",
    "held_writes",
    "held_writes.armed",
    "held_writes.held",
    "held_writes.longest_ms",
    "held_writes.moved_bytes",
    "held_writes.moved_files",
    "held_writes.open_files",
    "held_writes.waiting",
    "held_writes.without_room",
    "mountpoint",
    "moved_files",
    "nodes",
    "open_files",
    "options",
    "origins",
    "passthrough",
    "passthrough.on",
    "pid",
    "records",
    "records.key",
    "records.left_alone",
    "records.trouble",
    "redirected_creates",
    "relocate_ahead",
    "relocate_ahead.held_up",
    "relocate_ahead.moved_bytes",
    "relocate_ahead.moved_files",
    "relocate_ahead.moving",
    "version",
];

/// And those of an explanation, without its branches, which are those of a status.
const OF_EXPLAIN: &[&str] = &[
    "answered",
    "asked",
    "branches",
    "copies",
    "copies[].allocated_bytes",
    "copies[].branch",
    "copies[].gid",
    "copies[].hidden",
    "copies[].inode",
    "copies[].kind",
    "copies[].links",
    "copies[].mode",
    "copies[].modified_ns",
    "copies[].modified_s",
    "copies[].path",
    "copies[].shown",
    "copies[].size_bytes",
    "copies[].uid",
    "decisions",
    "decisions[].branches",
    "decisions[].branches[].branch",
    "decisions[].branches[].chance",
    "decisions[].branches[].path",
    "decisions[].branches[].reason",
    "decisions[].branches[].verdict",
    "decisions[].category",
    "decisions[].directories_up",
    "decisions[].error",
    "decisions[].functions",
    "decisions[].note",
    "decisions[].policy",
    "differences",
    "kind",
    "missing",
    "mountpoint",
    "path",
];

/// Whose keys are names of options, operations or branches.
const MAPS: [&str; 4] = [
    "options",
    "origins",
    "connection.requests",
    "relocate_ahead.held_up",
];

fn collect(value: &Value, at: &str, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !MAPS.contains(&at) => {
            for (name, value) in fields {
                let dot = if at.is_empty() { "" } else { "." };
                let key = format!("{at}{dot}{name}");
                collect(value, &key, keys);
                keys.insert(key);
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect(item, &format!("{at}[]"), keys)),
        _ => {}
    }
}

fn keys_of(value: &Value) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    collect(value, "", &mut keys);
    keys
}

#[track_caller]
fn assert_has(found: &BTreeSet<String>, recorded: &[&str]) {
    let gone: Vec<&&str> = recorded
        .iter()
        .filter(|key| !found.contains(**key))
        .collect();
    assert!(gone.is_empty(), "programs read these keys: {gone:?}");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = fs::read_to_string(page).unwrap();
    let untold: Vec<&String> = found
        .iter()
        .filter(|key| !page.contains(&format!("| `{key}` |")))
        .collect();
    assert!(untold.is_empty(), "not in docs/json.md: {untold:?}");
}

/// Two small branches with a file each of the same name.
pub fn pool() -> Pool {
    let pool = Pool::build()
        .branches([Kind::Tmpfs("16m"), Kind::Tmpfs("16m")])
        .mount();
    put(pool.on(0, "f"), "x");
    put(pool.on(1, "f"), "xy");
    pool
}

#[test]
fn status_keeps_the_keys_that_programs_read() {
    need_root!();
    let pool = pool();
    let answer = pool.status_json();
    let mut found = keys_of(&answer);
    if pool.connection().ring.is_none() {
        // Over /dev/fuse there is no ring.
        found.extend(["connection.ring.buffer_bytes", "connection.ring.queues"].map(String::from));
    }
    assert_has(&found, OF_STATUS);
    // What has a key of its own is text in both maps.
    for option in ["branches", "cache.attr", "category.create"] {
        assert!(answer["options"][option].is_string(), "{answer:#}");
        assert!(answer["origins"][option].is_string(), "{answer:#}");
    }
    // The types lose nothing of it, and make nothing up.
    let read = serde_json::to_value(pool.status()).unwrap();
    assert_eq!(keys_of(&read), keys_of(&answer));
}

#[test]
fn explain_keeps_the_keys_that_programs_read() {
    need_root!();
    let pool = pool();
    let told = strandfs(["explain", "--json", pool.path("f").to_str().unwrap()]).ok();
    let answer: Value = serde_json::from_str(&told.stdout).unwrap();
    let found = keys_of(&answer).into_iter();
    let found = found.filter(|key| !key.starts_with("branches[]")).collect();
    assert_has(&found, OF_EXPLAIN);
}
