//! The house rules as a test: sizes of files and functions, no call that ends the server outside
//! tests, every `unsafe` with its reason and only where it belongs, no clock that jumps where files
//! are served, nothing marked unfinished.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod licences;
mod links;
mod rooms;
mod rules;
mod source;
mod types;

use std::fs;
use std::path::{Path, PathBuf};

use rules::{FILE_LINES, FUNCTION_LINES, complaints};

fn repo_root() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository exists")
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            // Build output and hidden directories hold nothing we wrote.
            if name != "target" && !name.starts_with('.') {
                rust_files(&path, found);
            }
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_repository_keeps_the_house_rules() {
    let root = repo_root();
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    files.sort();
    assert!(
        files.len() > 10,
        "found only {} files below {root:?}",
        files.len()
    );

    let mut wrong = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).expect("a readable file");
        let path = file
            .strip_prefix(&root)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        wrong.extend(complaints(&path, &text));
    }
    assert!(
        wrong.is_empty(),
        "{} complaints:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn crates_without_unsafe_forbid_it() {
    let root = repo_root();
    let mut promised = vec!["crates/options/src/lib.rs"];
    // The binary may grow a `sys` module; until then it promises too.
    let cli = root.join("crates/strandfs/src");
    if !cli.join("sys.rs").exists() && !cli.join("sys").exists() {
        promised.push("crates/strandfs/src/main.rs");
    }
    for file in promised {
        let text = fs::read_to_string(root.join(file)).unwrap();
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "{file} does not forbid unsafe code"
        );
    }
}

/// Asserts that `text` at `path` draws exactly one complaint, containing `expected`.
fn draws(path: &str, text: &str, expected: &str) {
    let found = complaints(path, text);
    assert_eq!(found.len(), 1, "{text}\ndrew {found:?}");
    assert!(
        found[0].contains(expected),
        "{text}\ndrew {found:?}, not {expected}"
    );
}

fn passes(path: &str, text: &str) {
    assert_eq!(complaints(path, text), Vec::<String>::new(), "{text}");
}

const LIB: &str = "crates/pool/src/state/node.rs";
const SYS: &str = "crates/pool/src/base/sys.rs";

#[test]
fn long_files_and_functions_are_refused() {
    draws(
        LIB,
        &"// line\n".repeat(FILE_LINES + 1),
        "lines outside tests",
    );
    passes(LIB, &"// line\n".repeat(FILE_LINES));
    let tests = format!(
        "#[cfg(test)]\nmod tests {{\n{}}}\n",
        "    // line\n".repeat(FILE_LINES)
    );
    passes(LIB, &tests);
    let function = |lines| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines));
    draws(LIB, &function(FUNCTION_LINES), "fn f has");
    passes(LIB, &function(FUNCTION_LINES - 2));
    // A brace in a literal or a comment must not end the function early.
    let braces = format!(
        "fn f() {{\n    g(\"}}\", '}}'); // }}\n{}}}\n",
        "    g();\n".repeat(90)
    );
    draws(LIB, &braces, "fn f has 93");
    // A declaration has no body to measure.
    let declared = format!(
        "trait T {{\n    fn f();\n{}}}\n",
        "    // line\n".repeat(100)
    );
    passes(LIB, &declared);
}

#[test]
fn calls_that_end_the_server_are_refused_outside_tests() {
    for call in [
        "x.unwrap()",
        "x.expect(\"why\")",
        "panic!(\"no\")",
        concat!("to", "do!()"),
    ] {
        let text = format!("fn f() {{\n    {call};\n}}\n");
        draws(LIB, &text, "outside tests");
        passes("crates/pool/tests/x.rs", &text);
        passes(LIB, &format!("#[cfg(test)]\nmod tests {{\n    {text}}}\n"));
        passes(LIB, &format!("// {call}\nconst S: &str = r#\"{call}\"#;\n"));
        // The module after the tests is ordinary code again.
        draws(
            LIB,
            &format!("#[cfg(test)]\nmod tests {{\n}}\n{text}"),
            "outside tests",
        );
        draws(
            LIB,
            &format!("#[cfg(test)]\nmod tests;\n{text}"),
            "outside tests",
        );
    }
    passes(
        LIB,
        "fn f() {\n    x.unwrap_or(1);\n    x.unwrap_or_default();\n}\n",
    );
}

#[test]
fn unsafe_needs_its_place_and_its_reason() {
    let bare = "fn f() {\n    unsafe { g() }\n}\n";
    let reasoned = "fn f() {\n    // SAFETY: g has no precondition.\n    unsafe { g() }\n}\n";
    draws(SYS, bare, "without a SAFETY: comment");
    passes(SYS, reasoned);
    draws(LIB, reasoned, "outside the modules");
    assert_eq!(complaints(LIB, bare).len(), 2);
    draws(SYS, "unsafe impl Send for X {}\n", "unsafe impl without");
    passes(
        SYS,
        "// SAFETY: X owns its pointer.\nunsafe impl Send for X {}\n",
    );
    draws(SYS, "pub unsafe fn f() {}\n", "unsafe fn without");
    passes(
        SYS,
        "/// # Safety\n/// `p` is valid.\n#[inline]\npub unsafe fn f() {}\n",
    );
    draws(
        SYS,
        "unsafe extern \"C\" {\n}\n",
        "unsafe extern block without",
    );
    passes(SYS, "type F = unsafe extern \"C\" fn(i32) -> i32;\n");
    passes(
        SYS,
        "// the word unsafe in prose\nconst S: &str = \"unsafe {\";\n",
    );
    // The reason may stand above a statement that runs over several lines …
    passes(
        SYS,
        "fn f() {\n    // SAFETY: fine.\n    let x =\n        unsafe { g() };\n}\n",
    );
    // … but one reason does not cover the next statement.
    let second = "fn f() {\n    // SAFETY: ok.\n    unsafe { g() };\n    unsafe { g() };\n}\n";
    draws(SYS, second, "without a SAFETY: comment");
}

#[test]
fn unfinished_work_is_refused() {
    for mark in [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ] {
        draws(LIB, &format!("// {mark}: later\n"), "finish it");
    }
    passes(LIB, "// a template: name.XXXXXX\n");
}

#[test]
fn the_wall_clock_is_refused_where_files_are_served() {
    let now = "fn f() {\n    let now = SystemTime::now();\n}\n";
    draws(LIB, now, "SystemTime jumps");
    let time = "fn f() {\n    let now = clock_gettime(ClockId::RealtimeCoarse);\n}\n";
    draws(
        "crates/fuse/src/session.rs",
        time,
        "ClockId::Realtime jumps",
    );
    passes(LIB, "fn f() {\n    let now = Instant::now();\n}\n");
    passes("crates/pool/src/directory/symlinkify.rs", now);
    passes("crates/strandfs/src/logging/sink.rs", now);
}
