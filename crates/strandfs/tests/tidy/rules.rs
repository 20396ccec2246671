//! The house rules, each a function from one file to its complaints.

use crate::source::{Source, item_end, words};

/// Lines of one file outside tests, where it is one subject.
pub const FILE_LINES: usize = 800;
/// Lines of one function.
pub const FUNCTION_LINES: usize = 90;

/// Where `unsafe` may be written at all; everything else goes through these.
const UNSAFE_MODULES: &[&str] = &[
    "crates/fuse/src/sys",
    "crates/fuse/src/transport",
    "crates/fuse/src/mount",
    "crates/pool/src/base/sys",
    "crates/strandfs/src/sys",
    "crates/preload/src/sys",
    "crates/volume/src/sys",
];

/// What must not be called outside tests: each ends the server, and with it everyone's files.
const ENDS_THE_SERVER: &[&str] = &[
    ".unwrap()",
    ".expect(",
    "panic!",
    concat!("to", "do!"),
    "unimplemented!",
];

/// The clock that jumps. Whatever waits, expires or is compared with what was before, goes by the
/// monotonic one (`Instant`).
const WALL_CLOCK: &[&str] = &[
    "SystemTime",
    "UNIX_EPOCH",
    "ClockId::Realtime",
    "CLOCK_REALTIME",
];

/// Crates that serve.
const SERVERS: &[&str] = &[
    "crates/fuse/src",
    "crates/pool/src",
    "crates/preload/src",
    "crates/volume/src",
    "crates/strandfs/src",
];

/// Where the wall clock is meant. Tests of these have it jump.
const WALL_CLOCK_MODULES: &[&str] = &[
    // How old a file is, by its own times.
    "crates/pool/src/directory/symlinkify.rs",
    "crates/pool/src/mover/ahead.rs",
    // Times that are shown, and nothing else: of the mount, and of a branch's last change of state.
    "crates/pool/src/ops.rs",
    "crates/pool/src/base/branch/health.rs",
    "crates/pool/src/base/rfc3339.rs",
    // Of a line of the log.
    "crates/strandfs/src/logging/sink.rs",
];

/// Marks of unfinished work. Spelt in halves so that this file passes its own rule.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];

/// Everything wrong with the file at `path` (relative to the repository).
pub fn complaints(path: &str, text: &str) -> Vec<String> {
    let source = Source::new(text);
    let in_tests = is_test_path(path);
    let mut found = Vec::new();
    let mut say = |line: usize, what: String| found.push(format!("{path}:{}: {what}", line + 1));

    let lines = text.lines().count();
    let own_lines = (0..lines).filter(|&line| !source.test_only[line]).count();
    if own_lines > FILE_LINES {
        say(
            0,
            format!("{own_lines} lines outside tests, at most {FILE_LINES}"),
        );
    }
    for (line, name, length) in functions(&source) {
        if length > FUNCTION_LINES {
            say(
                line,
                format!("fn {name} has {length} lines, at most {FUNCTION_LINES}"),
            );
        }
    }
    for line in 0..lines {
        let test_code = in_tests || source.test_only[line];
        if !test_code {
            for word in ENDS_THE_SERVER
                .iter()
                .filter(|word| contains(&source.code[line], word))
            {
                say(line, format!("{word} outside tests: return an error"));
            }
        }
        if !test_code
            && SERVERS.iter().any(|server| path.starts_with(server))
            && !WALL_CLOCK_MODULES.contains(&path)
        {
            for word in WALL_CLOCK
                .iter()
                .filter(|word| source.code[line].contains(*word))
            {
                say(line, format!("{word} jumps: use Instant"));
            }
        }
        for word in unfinished(&source, line) {
            say(line, format!("{word}: finish it or open an issue"));
        }
        if let Some(what) = unsafe_use(&source, line) {
            if !test_code && !UNSAFE_MODULES.iter().any(|module| path.starts_with(module)) {
                say(line, format!("{what} outside the modules that may hold it"));
            }
            if !has_reason(&source, line, what) {
                say(line, format!("{what} without a SAFETY: comment"));
            }
        }
    }
    found
}

/// Integration tests and their helpers, benches, fuzz targets and `tests.rs` modules are test code as a whole.
fn is_test_path(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.any(|part| {
        matches!(
            part,
            "tests" | "testkit" | "benches" | "fuzz" | "tests.rs" | "testing.rs"
        )
    })
}

/// `needle` in a line of code, not as the tail of a longer word (`dont_panic!`).
fn contains(code: &str, needle: &str) -> bool {
    code.match_indices(needle).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        needle.starts_with('.') || !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn unfinished(source: &Source, line: usize) -> Vec<&str> {
    let has_one = |text: &str| UNFINISHED.iter().any(|word| text.contains(word));
    if !has_one(&source.comments[line]) && !has_one(&source.code[line]) {
        return Vec::new();
    }
    let both = words(&source.comments[line])
        .into_iter()
        .chain(words(&source.code[line]));
    both.map(|(_, word)| word)
        .filter(|word| UNFINISHED.contains(word))
        .collect()
}

/// Line, name and length of every function with a body.
fn functions(source: &Source) -> Vec<(usize, String, usize)> {
    let mut found = Vec::new();
    for (line, code) in source.code.iter().enumerate() {
        if !code.contains("fn") {
            continue;
        }
        let names = words(code);
        for pair in names.windows(2).filter(|pair| pair[0].1 == "fn") {
            let end = item_end(&source.code, line);
            found.push((line, pair[1].1.to_owned(), end - line + 1));
        }
    }
    found
}

/// What kind of `unsafe` a line opens, if any. Types (`unsafe extern "C" fn(...)`) and attributes
/// (`#[unsafe(...)]`) do nothing by themselves.
fn unsafe_use(source: &Source, line: usize) -> Option<&'static str> {
    let code = &source.code[line];
    if !code.contains("unsafe") {
        return None;
    }
    for (at, _) in words(code)
        .into_iter()
        .filter(|(_, word)| *word == "unsafe")
    {
        let mut after = code[at + "unsafe".len()..].trim_start().to_owned();
        if after.is_empty() {
            after = source
                .code
                .get(line + 1)
                .map(|next| next.trim_start().to_owned())?;
        }
        let next = words(&after)
            .first()
            .map(|(from, word)| (*from, (*word).to_owned()));
        match next {
            _ if after.starts_with('{') => return Some("unsafe block"),
            _ if after.starts_with('(') => {}
            Some((0, word)) if word == "impl" => return Some("unsafe impl"),
            Some((0, word)) if word == "trait" => return Some("unsafe trait"),
            Some((0, word)) if word == "fn" && is_named(&after[2..]) => return Some("unsafe fn"),
            Some((0, word)) if word == "extern" => {
                let tail = after["extern".len()..]
                    .trim_start()
                    .trim_start_matches(['"', ' ']);
                if tail.starts_with('{') {
                    return Some("unsafe extern block");
                }
                if tail.strip_prefix("fn").is_some_and(is_named) {
                    return Some("unsafe fn");
                }
            }
            _ => {}
        }
    }
    None
}

/// A function with a name follows, rather than the parenthesis of a function pointer type.
fn is_named(after_fn: &str) -> bool {
    after_fn
        .trim_start()
        .starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// A `SAFETY:` comment on the line itself or right above the statement it belongs to; for
/// `unsafe fn` and traits a `# Safety` section in the docs says it to the caller.
fn has_reason(source: &Source, line: usize, what: &str) -> bool {
    let says = |at: usize| {
        let comment = &source.comments[at];
        comment.contains("SAFETY:")
            || (matches!(what, "unsafe fn" | "unsafe trait") && comment.contains("# Safety"))
    };
    if says(line) {
        return true;
    }
    let mut comment_seen = false;
    for above in (0..line).rev().take(40) {
        let code = source.code[above].trim();
        if code.is_empty() {
            if source.comments[above].trim().is_empty() {
                return false;
            }
            if says(above) {
                return true;
            }
            comment_seen = true;
            continue;
        }
        // Attributes and the earlier lines of the same statement stand between comment and use.
        let goes_on = code.starts_with("#[") || !code.ends_with([';', '{', '}', ',']);
        if comment_seen || !goes_on {
            return false;
        }
    }
    false
}
