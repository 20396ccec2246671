//! Which tests there are, by reading the sources: a test that does not exist observes nothing.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Every behaviour test with the text of its file.
pub fn tests() -> HashMap<String, String> {
    let mut files = Vec::new();
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests");
    rust_files(&tests, &mut files);
    let mut found = HashMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for name in names(&text) {
            found.insert(name.to_owned(), text.clone());
        }
    }
    found
}

/// The functions directly below a `#[test]`; what is ignored has something in between.
pub fn names(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let below = lines.windows(2).filter(|pair| pair[0] == "#[test]");
    below
        .filter_map(|pair| pair[1].strip_prefix("fn ")?.split('(').next())
        .collect()
}

/// This harness does not observe effects, so its own tests do not count.
fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let own = path.file_stem().is_some_and(|stem| stem == "every_option");
        if path.is_dir() && !own {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !own {
            found.push(path);
        }
    }
}
