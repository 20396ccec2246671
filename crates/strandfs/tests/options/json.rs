//! `docs/json.md` says what the commands print: every field of real answers is on the page with its
//! type, and every field on the page is in some real answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::put;
use crate::support::{Pool, run, strandfs};
use crate::{need_root, need_tool};

use super::status_keys::pool;

/// Fields of the page that need a machine or an accident that is not to be had here, each with the
/// reason.
const NOT_TO_BE_HAD: &[(&str, &str)] = &[
    ("guardian.reason", "without /sys/fs/fuse/connections"),
    ("passthrough.reason", "where passthrough works"),
    ("branches[].passthrough.reason", "where passthrough works"),
    ("branches[].holds.reason", "where writes can be held"),
    ("branches[].watched.reason", "where branches are watched"),
    ("branches[].mounts[].mountpoint", "with a mount below"),
    ("branches[].mounts[].filesystem", "with a mount below"),
    ("branches[].mounts[].user", "with a mount below"),
    ("branches[].mounts[].crossed", "with a mount below"),
    ("branches[].mounts[].forbids", "with a mount below"),
    ("connection.ring.queues", "over io_uring"),
    ("connection.ring.buffer_bytes", "over io_uring"),
    ("descriptors.most_open_files.uid", "with files of users"),
    ("descriptors.most_open_files.files", "with files of users"),
    ("records.left_alone[].branch", "with a foreign record"),
    ("records.left_alone[].name", "with a foreign record"),
    ("records.left_alone[].reason", "with a foreign record"),
    ("copies[].error", "with a branch that fails"),
];

/// Objects whose keys are names of options, operations or branches.
const MAPS: [&str; 6] = [
    "options",
    "origins",
    "connection.requests",
    "relocate_ahead.held_up",
    "values",
    "units",
];

/// The fields of a section with the types that the page gives them.
fn documented(section: &str) -> BTreeMap<String, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = fs::read_to_string(page).unwrap();
    let heading = format!("## `strandfs {section} --json`\n");
    let start = page.find(&heading).unwrap_or_else(|| panic!("{heading}"));
    let body = &page[start + heading.len()..];
    let body = &body[..body.find("\n## ").unwrap_or(body.len())];
    let rows = body.lines().filter(|line| line.starts_with("| `"));
    let fields = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{row}");
        let field = cells[1].trim_matches('`').to_owned();
        assert_unit(&field, cells[3]);
        (field, cells[2].to_owned())
    });
    fields.collect()
}

/// What a name promises is in the column of units.
#[track_caller]
fn assert_unit(field: &str, unit: &str) {
    for (end, promised) in [
        ("_bytes", "bytes"),
        ("_ms", "milliseconds"),
        ("_ns", "nanoseconds"),
        ("_seconds", "seconds since 1970"),
    ] {
        assert!(!field.ends_with(end) || unit == promised, "{field}: {unit}");
    }
}

/// Every field of an answer with the kinds of its values.
fn collect(value: &Value, at: &str, found: &mut BTreeMap<String, BTreeSet<&'static str>>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(items) if items.iter().any(Value::is_string) => "list of texts",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    };
    if !at.is_empty() && !at.ends_with("[]") {
        found.entry(at.to_owned()).or_default().insert(kind);
    }
    match value {
        Value::Object(fields) if !MAPS.contains(&at) => {
            for (name, value) in fields {
                let dot = if at.is_empty() { "" } else { "." };
                collect(value, &format!("{at}{dot}{name}"), found);
            }
        }
        Value::Array(items) => {
            for item in items {
                collect(item, &format!("{at}[]"), found);
            }
        }
        _ => {}
    }
}

/// What a command prints, as one object or several.
fn answers(args: &[&str]) -> Vec<Value> {
    let ran = strandfs(args);
    let answer: Value = serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: {error}: {ran:?}"));
    match answer {
        Value::Array(items) => items,
        one => vec![one],
    }
}

/// Compares the page with answers.
#[track_caller]
fn compare(section: &str, answers: &[Value]) {
    let page = documented(section);
    assert!(!answers.is_empty(), "{section}");
    let mut found = BTreeMap::new();
    for answer in answers {
        assert_eq!(answer["schema"], 1, "{section}: {answer:#}");
        collect(answer, "", &mut found);
    }
    for (field, kinds) in &found {
        let told = page.get(field);
        let told = told.unwrap_or_else(|| panic!("{section}: {field} is not on the page"));
        for kind in kinds {
            let is_told = told == "any"
                || told.split(" or ").any(|one| one == *kind)
                || told.contains("true or false") && *kind == "true or false"
                // An empty list has no kind of item.
                || told.starts_with("list") && *kind == "list";
            assert!(
                is_told,
                "{section}: {field} is {kind}, the page says {told}"
            );
        }
    }
    let not_here = |field: &str| NOT_TO_BE_HAD.iter().any(|(known, _)| *known == field);
    let stale: Vec<&String> = page
        .keys()
        .filter(|field| !found.contains_key(*field) && !not_here(field))
        .collect();
    assert!(stale.is_empty(), "{section}: no answer has {stale:?}");
}

#[test]
fn the_page_has_every_field_of_a_status_and_of_branches() {
    need_root!();
    let pool = pool();
    let root = pool.root().to_str().unwrap();
    compare("status", &answers(&["status", root, "--json"]));
    let listed = answers(&["branch", "list", root, "--json"]);
    let mut status = documented("status");
    status.insert("branches[].schema".to_owned(), "number".to_owned());
    let mut found = BTreeMap::new();
    collect(&serde_json::json!({ "branches": listed }), "", &mut found);
    for field in found.keys() {
        assert!(status.contains_key(field), "{field}");
    }
    assert_eq!(listed[1]["schema"], 1);
}

#[test]
fn a_branchs_own_reserve_is_listed() {
    let pool = Pool::tmpfs(2).mount();
    let (root, branch) = (pool.root().to_str().unwrap(), pool.on(1, ""));
    let branch = branch.to_str().unwrap();
    strandfs(["branch", "set", root, branch, "--minfreespace=1M"]).ok();
    let listed = strandfs(["branch", "list", root]).ok().stdout;
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].ends_with("=RW"), "{listed}");
    assert!(lines[1].ends_with("=RW,1M"), "{listed}");
    let json = answers(&["branch", "list", root, "--json"]);
    assert_eq!(json[0]["minfreespace"], Value::Null);
    assert_eq!(json[1]["minfreespace"], "1M");
    assert_eq!(json[1]["min_free_bytes"], 1 << 20);
}

#[test]
fn the_page_has_every_field_of_other_answers() {
    need_root!();
    let pool = pool();
    let root = pool.root().to_str().unwrap();
    let file = pool.path("f");
    let mut explained = answers(&["explain", "--json", file.to_str().unwrap()]);
    for answer in &mut explained {
        // They are those of a status.
        answer["branches"] = Value::Array(Vec::new());
    }
    compare("explain", &explained);
    compare("doctor", &answers(&["doctor", root, "--json"]));
    let shown = answers(&["config", "show", root, "--json"]);
    let named = |setting: &Value| serde_json::json!({ "schema": 1, "source": "x", "options": {}, "options.NAME": setting });
    let options = shown[0]["options"].as_object().unwrap();
    let mut flat: Vec<Value> = options.values().map(named).collect();
    flat.push(shown[0].clone());
    let mut page = documented("config show");
    for answer in &flat {
        let mut found = BTreeMap::new();
        collect(answer, "", &mut found);
        found.remove("options.NAME");
        for field in found.keys() {
            assert!(page.contains_key(field), "{field}");
        }
    }
    page.retain(|field, _| field.starts_with("options.NAME."));
    assert_eq!(page.len(), options["cache.attr"].as_object().unwrap().len());
}

#[test]
fn values_have_their_own_types_and_units() {
    let pool = Pool::tmpfs(1).option("cache.entry=500ms").mount();
    let root = pool.root().to_str().unwrap();
    let got = answers(&["get", root, "--json"]);
    compare("get", &got);
    let (values, units) = (&got[0]["values"], &got[0]["units"]);
    assert_eq!(values["ro"], false);
    assert_eq!(values["cache.entry"], 0.5);
    assert_eq!(units["cache.entry"], "seconds");
    assert_eq!(values["cache.attr"], "auto");
    assert_eq!(values["minfreespace"], 0);
    assert_eq!(units["minfreespace"], "bytes");
    assert_eq!(values["category.create"], "pfrd");
    assert_eq!(units["ro"], Value::Null);
    let one = answers(&["get", root, "--json", "pid"]);
    assert_eq!(one[0]["values"]["pid"], pool.pid());
    // Nothing is lost: whatever is text in one is what the other says.
    let texts = &answers(&["config", "show", root, "--json"])[0]["options"];
    for (name, value) in values.as_object().unwrap() {
        assert_eq!(texts[name]["typed"], *value, "{name}");
        if value.is_string() {
            assert_eq!(texts[name]["value"], *value, "{name}");
        }
    }
}

#[test]
fn times_are_those_of_rfc_3339() {
    need_tool!("date");
    let pool = pool();
    let file = pool.path("f");
    let explained = answers(&["explain", "--json", file.to_str().unwrap()]);
    let copy = &explained[0]["copies"][0];
    let date = run("date", ["-d", copy["modified"].as_str().unwrap(), "+%s"]).ok();
    assert_eq!(date.stdout.trim(), copy["modified_s"].to_string());
    let condition = &pool.status_json()["branches"][0]["condition"];
    let date = run("date", ["-d", condition["since"].as_str().unwrap(), "+%s"]).ok();
    assert_eq!(date.stdout.trim(), condition["since_seconds"].to_string());
}

#[test]
fn the_page_has_every_field_of_records_and_volumes() {
    need_root!();
    need_tool!("losetup");
    let pool = Pool::tmpfs(1).prepare();
    let branch = pool.on(0, "");
    put(
        branch.join(".strandfs-move-0000000000000001-6d41eaf0"),
        "{}",
    );
    let records = answers(&["records", "list", "--json", branch.to_str().unwrap()]);
    compare("records list", &records);
    let image = pool.outside("volume.img");
    let image = image.to_str().unwrap();
    strandfs(["volume", "attach", image, "--size", "16M"]).ok();
    let _volume = Attached(image);
    compare("volume list", &answers(&["volume", "list", "--json"]));
}

/// Of each verdict one: of requests to a branch that is delayed, to one that is not, and of none.
#[test]
fn the_page_has_every_field_of_a_live_verdict_and_an_example() {
    need_root!();
    let (mut pool, delay) = DelayFs::beside_memory(
        "cache.attr=0,cache.entry=0,cache.negative-entry=0,coherence=timeout,category.create=ff,\
         func.getattr=newest",
    );
    put(pool.outside("behind/far/f"), "far");
    put(pool.on(0, "near/f"), "near");
    pool.start();
    let root = pool.root().to_str().unwrap();
    let watch = |file: Option<&str>| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let (Some(file), false) = (file, stop.load(Ordering::Relaxed)) {
                        let _ = fs::metadata(pool.path(file));
                    }
                });
            }
            let found = answers(&["bench", "live", root, "--seconds=3", "--json"]);
            stop.store(true, Ordering::Relaxed);
            found
        })
    };
    let mut all = watch(None);
    // On a machine that others keep busy a request takes longer than what counts as slow, or there are too
    // few of them.
    let until = |verdict: &str, file| {
        let mut found = watch(Some(file));
        for _ in 0..9 {
            if found[0]["verdict"] == verdict {
                break;
            }
            found = watch(Some(file));
        }
        found
    };
    all.extend(until("nothing-slow", "near/f"));
    delay.set(Mood::Slow(Duration::from_millis(3)));
    all.extend(until("slow", "far/f"));
    delay.set(Mood::Well);
    let verdicts: Vec<&Value> = all.iter().map(|it| &it["verdict"]).collect();
    assert_eq!(
        verdicts,
        ["cannot-tell", "nothing-slow", "slow"],
        "{all:#?}"
    );
    compare("bench live", &all);
    // The page's example is such an answer.
    let example = example("bench live");
    let mut fields = BTreeMap::new();
    collect(&example, "", &mut fields);
    let mut real = BTreeMap::new();
    collect(&all[2], "", &mut real);
    assert!(fields.keys().eq(real.keys()), "{fields:?}, {real:?}");
}

/// The section's example.
fn example(section: &str) -> Value {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, body) = page
        .split_once(&format!("## `strandfs {section} --json`\n"))
        .unwrap();
    let (_, text) = body.split_once("```json\n").unwrap();
    let (text, _) = text.split_once("```").unwrap();
    serde_json::from_str(text).unwrap()
}

/// A volume that goes whichever way a test ends.
struct Attached<'a>(&'a str);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        strandfs(["volume", "detach", self.0]);
    }
}
