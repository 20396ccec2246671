//! Writing options as TOML, in the form that is read back.

use std::fmt::Write;

use toml_edit::{Array, InlineTable, Key, Value};

use crate::branch::{self, BranchMode, RawBranch};
use crate::table::{self, Kind};
use crate::words::parse_bool;

/// One option to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionLine {
    /// Canonical name.
    pub name: String,
    /// In the text form of the table.
    pub value: String,
    /// Behind the value, if not empty.
    pub comment: String,
}

/// The options as a TOML file that sets just them.
pub fn to_toml(lines: &[OptionLine]) -> String {
    let mut text = String::new();
    for line in lines {
        let key = Key::new(line.name.as_str());
        let value = value(&line.name, &line.value);
        let comment = match line.comment.as_str() {
            "" => String::new(),
            // A line end would end the comment.
            words => format!("  # {}", words.replace(['\n', '\r'], " ")),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} = {value}{comment}", key.display_repr());
    }
    text
}

/// In the type that reads best.
pub(super) fn value(name: &str, text: &str) -> String {
    let kind = table::find(name).map_or(Kind::Text, |(option, _)| option.value.kind);
    match kind {
        Kind::Branches => match branch::parse(text) {
            Ok(list) => branches(&list),
            Err(_) => plain(text),
        },
        Kind::Bool | Kind::AutoBool => match parse_bool(text) {
            Ok(truth) => truth.to_string(),
            Err(_) => plain(text),
        },
        Kind::Names => Array::from_iter(text.split('|')).to_string(),
        Kind::Count => match text.parse::<i64>() {
            Ok(number) => number.to_string(),
            Err(_) => plain(text),
        },
        _ => plain(text),
    }
}

fn plain(text: &str) -> String {
    Value::from(text).to_string()
}

/// A line for each branch.
fn branches(list: &[RawBranch]) -> String {
    let mut text = "[\n".to_owned();
    for item in list {
        let _ = writeln!(text, "    {},", branch(item));
    }
    text.push(']');
    text
}

fn branch(item: &RawBranch) -> Value {
    let literal = item.literal();
    let glob = literal.is_none();
    let path = literal.unwrap_or_else(|| item.pattern.clone());
    if !glob && item.mode == BranchMode::ReadWrite && item.min_free_space.is_none() {
        return Value::from(path);
    }
    let mut table = InlineTable::new();
    table.insert("path", path.into());
    if glob {
        table.insert("glob", true.into());
    }
    table.insert("mode", item.mode.name().into());
    if let Some(reserve) = item.min_free_space {
        table.insert("minfreespace", reserve.to_string().into());
    }
    Value::from(table)
}
