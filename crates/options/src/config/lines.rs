//! The form mergerfs reads: a line `NAME=VALUE` for each option.

use std::path::Path;

use super::{ConfigError, Entry};

/// Blanks around names and values do not count; empty lines and those that begin with `#` neither.
pub(super) fn entries(path: &Path, text: &str) -> (Vec<Entry>, Vec<ConfigError>) {
    let mut entries = Vec::new();
    let mut errors = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let (line, number) = (line.trim(), number + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim().to_owned())),
            None => (line, None),
        };
        if name.is_empty() {
            errors.push(ConfigError {
                path: path.to_owned(),
                line: Some(number),
                may_pass: false,
                text: format!("{line:?} has no name: write NAME=VALUE"),
            });
            continue;
        }
        entries.push(Entry {
            name: name.to_owned(),
            value,
            line: number,
        });
    }
    (entries, errors)
}
