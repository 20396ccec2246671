//! How large a type may be: its fields, and the functions of its own (those of traits do not count).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::source::{Source, words};

const MOST_FIELDS: usize = 15;
const MOST_METHODS: usize = 40;
/// Types with more fields, each with the reason. Each must be larger: one that is not any more goes
/// from the list.
const LARGER: [(&str, &str, &str); 8] = [
    (
        "crates/fuse-abi/src/kernel/attr.rs",
        "Attr",
        "the kernel's layout",
    ),
    (
        "crates/fuse-abi/src/kernel/attr.rs",
        "SetattrIn",
        "the kernel's layout",
    ),
    (
        "crates/fuse-abi/src/kernel/statx.rs",
        "Statx",
        "the kernel's layout",
    ),
    (
        "crates/pool/src/base/metrics.rs",
        "Metrics",
        "a field is a key of the JSON that users read",
    ),
    (
        "crates/pool/src/base/status.rs",
        "Status",
        "a field is a key of the JSON that users read",
    ),
    (
        "crates/pool/src/base/status.rs",
        "Branch",
        "a field is a key of the JSON that users read",
    ),
    (
        "lab/src/layers/plan.rs",
        "LayersPlan",
        "a field is an argument of the benchmark",
    ),
    (
        "lab/src/result.rs",
        "Report",
        "a field is a key of the JSON that users read",
    ),
];

/// Fields of each struct of a file, and methods of each type, outside tests.
#[derive(Default)]
struct Sizes {
    fields: Vec<(String, usize)>,
    methods: BTreeMap<String, usize>,
}

/// What the line that begins an item begins.
enum Item {
    Struct(String),
    Impl(String),
}

fn sizes(text: &str) -> Sizes {
    let source = Source::new(text);
    let mut found = Sizes::default();
    // The item that is read, the braces around its members, and the number of members so far.
    let mut item: Option<(Item, usize, usize)> = None;
    let (mut depth, mut head) = (0_usize, String::new());
    // Parentheses, brackets and angle brackets open inside a member.
    let mut nested = 0_i32;
    let mut before = ' ';
    for (number, line) in source.code.iter().enumerate() {
        if source.test_only[number] {
            continue;
        }
        for c in line.chars().chain(['\n']) {
            let at_members = item.as_ref().is_some_and(|(_, inside, _)| *inside == depth);
            match c {
                '(' | '[' | '<' => nested += 1,
                ')' | ']' => nested -= 1,
                '>' if before != '-' && before != '=' => nested -= 1,
                _ => {}
            }
            match c {
                '{' => {
                    if at_members && let Some((Item::Impl(_), _, count)) = &mut item {
                        *count += usize::from(words(&head).iter().any(|(_, word)| *word == "fn"));
                    }
                    depth += 1;
                    if item.is_none() {
                        item = begins(&head).map(|begun| (begun, depth, 0));
                    }
                    (head, nested) = (String::new(), 0);
                }
                '}' => {
                    if at_members && let Some((ended, _, count)) = item.take() {
                        // The last field may stand without a comma.
                        let last = usize::from(head.contains(':'));
                        match ended {
                            Item::Struct(name) => found.fields.push((name, count + last)),
                            Item::Impl(name) => *found.methods.entry(name).or_default() += count,
                        }
                    }
                    depth = depth.saturating_sub(1);
                    (head, nested) = (String::new(), 0);
                }
                ',' if at_members && nested == 0 => {
                    if let Some((Item::Struct(_), _, count)) = &mut item {
                        *count += 1;
                    }
                    head.clear();
                }
                ';' if nested == 0 => head.clear(),
                _ => head.push(c),
            }
            before = c;
        }
    }
    found
}

/// The struct or the implementation that a head (the code before a brace) begins; none for those of
/// traits and for all else.
fn begins(head: &str) -> Option<Item> {
    let words: Vec<&str> = words(head).into_iter().map(|(_, word)| word).collect();
    if let Some(at) = words.iter().position(|word| *word == "struct") {
        return words
            .get(at + 1)
            .map(|name| Item::Struct((*name).to_owned()));
    }
    let at = head
        .split("impl")
        .next()
        .filter(|before| before.len() < head.len())?
        .len();
    let is_item = words
        .iter()
        .take_while(|word| **word != "impl")
        .all(|word| *word != "fn");
    let rest = after_generics(head.get(at + "impl".len()..)?);
    if !is_item || words.contains(&"macro_rules") || rest.contains(" for ") {
        return None;
    }
    let path = rest.split(['<', '{']).next()?.split(" where ").next()?;
    let name = path.rsplit("::").next()?.trim();
    Some(Item::Impl(name.to_owned()))
}

/// What follows the angle brackets with which `text` begins, if it does.
fn after_generics(text: &str) -> &str {
    let mut open = 0_i32;
    for (at, c) in text.char_indices() {
        match c {
            '<' => open += 1,
            '>' if !text[..at].ends_with('-') => open -= 1,
            _ => {}
        }
        if open == 0 && !c.is_whitespace() {
            return text.get(at + usize::from(c == '>')..).unwrap_or_default();
        }
    }
    text
}

/// The crate of a path below the root: `crates/pool`, `lab`.
fn crate_of(path: &str) -> &str {
    path.split("/src/").next().unwrap_or(path)
}

/// What is wrong with the types of these files: paths below the root, and texts.
fn complaints(files: &[(String, Sizes)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut methods: BTreeMap<(String, String), (usize, String)> = BTreeMap::new();
    for (path, found) in files {
        for (name, count) in &found.fields {
            let count = *count;
            let larger = LARGER
                .iter()
                .any(|(file, it, _)| file == path && it == name);
            if count > MOST_FIELDS && !larger {
                wrong.push(format!(
                    "{path}: {name} has {count} fields, more than {MOST_FIELDS}"
                ));
            } else if larger && count <= MOST_FIELDS {
                wrong.push(format!(
                    "{path}: {name} has {count} fields: take it from LARGER"
                ));
            }
        }
        // Files of one crate add to one type. Types of one name share a count, which errs to the
        // strict side.
        for (name, count) in &found.methods {
            let key = (crate_of(path).to_owned(), name.clone());
            let sum = methods.entry(key).or_insert_with(|| (0, path.clone()));
            sum.0 += count;
        }
    }
    for ((_, name), (count, path)) in methods {
        if count > MOST_METHODS {
            wrong.push(format!(
                "{path}: {name} has {count} methods, more than {MOST_METHODS}"
            ));
        }
    }
    wrong
}

#[test]
fn no_type_has_too_many_fields_or_methods() {
    let root = crate::repo_root();
    let mut paths = Vec::new();
    for dir in ["crates", "lab/src"] {
        crate::rust_files(&root.join(dir), &mut paths);
    }
    let files: Vec<(String, Sizes)> = paths
        .iter()
        .filter_map(|path| {
            let below = path.strip_prefix(&root).unwrap_or(Path::new(""));
            let below = below.to_string_lossy().into_owned();
            let text = || fs::read_to_string(path).expect("a readable file");
            below.contains("src/").then(|| (below, sizes(&text())))
        })
        .collect();
    let fields: usize = files.iter().map(|(_, found)| found.fields.len()).sum();
    assert!(fields > 300, "found only {fields} structs");
    for (file, name, _) in LARGER {
        let known = files.iter().find(|(path, _)| path == file);
        let is_there = known.is_some_and(|(_, all)| all.fields.iter().any(|(it, _)| it == name));
        assert!(is_there, "{file} has no {name}: take it from LARGER");
    }
    let wrong = complaints(&files);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn large_types_are_refused() {
    let draws = |text: String| complaints(&[("crates/pool/src/x.rs".to_owned(), sizes(&text))]);
    let fields = |count| {
        "    /// Words, and: more.\n    pub(super) f: HashMap<u8, fn(u8, u8) -> u8>,\n"
            .repeat(count)
    };
    let of_struct = |count| {
        format!(
            "#[derive(Debug)]\npub struct S<T: Ord> {{\n{}}}\n",
            fields(count)
        )
    };
    assert!(draws(of_struct(MOST_FIELDS)).is_empty());
    let wrong = draws(of_struct(MOST_FIELDS + 1));
    assert!(
        wrong.len() == 1 && wrong[0].contains("S has 16 fields"),
        "{wrong:?}"
    );

    let functions = |count| {
        "    pub const fn f<T>(&self) -> [u8; 2] {\n        if a { b }\n    }\n".repeat(count)
    };
    let of_impl = |head: &str, count| format!("{head} {{\n{}}}\n", functions(count));
    let halves = of_impl("impl S", 20) + &of_impl("impl<'a, T: Into<U>> super::S<T>", 21);
    let wrong = draws(halves);
    assert!(
        wrong.len() == 1 && wrong[0].contains("S has 41 methods"),
        "{wrong:?}"
    );
    assert!(draws(of_impl("impl S", MOST_METHODS)).is_empty());
    assert!(draws(of_impl("impl<T> Filesystem for S<T>", 60)).is_empty());
    // Those of tests do not count.
    assert!(draws(format!("#[cfg(test)]\n{}", of_struct(30))).is_empty());
}
