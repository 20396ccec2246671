//! The explanation as text.

use std::fmt::Write;

use serde_json::Value;
use strandfs_options::show_size;

use crate::status::{number, text as field};
use crate::units::time;

/// What each category does, as a heading.
const HEADINGS: [(&str, &str); 3] = [
    ("search", "Looking at it"),
    ("action", "Changing it"),
    ("create", "Making something new"),
];

/// Everything, for people.
pub fn text(answer: &Value) -> String {
    let mut out = String::new();
    let missing = field(answer, "missing");
    if missing.is_empty() {
        copies(answer, &mut out);
    } else {
        let _ = writeln!(
            out,
            "{} does not exist; this is about {}",
            field(answer, "asked"),
            field(answer, "answered")
        );
    }
    branches(answer, &mut out);
    for (category, heading) in HEADINGS {
        if !missing.is_empty() && category != "create" {
            continue;
        }
        let title = match (category, field(answer, "kind")) {
            ("create", "directory") => format!("{heading} in the directory"),
            ("create", _) => format!("{heading} beside it"),
            _ => heading.to_owned(),
        };
        let _ = writeln!(out, "{title}:");
        for decision in list(answer, "decisions") {
            if field(decision, "category") == category {
                decided(decision, &mut out);
            }
        }
    }
    out
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn copies(answer: &Value, out: &mut String) {
    let _ = writeln!(
        out,
        "{} ({})",
        field(answer, "asked"),
        field(answer, "kind")
    );
    for copy in list(answer, "copies") {
        let path = field(copy, "path");
        if copy.get("error").is_some() {
            let _ = writeln!(out, "  {path}: cannot be read: {}", field(copy, "error"));
            continue;
        }
        let is = |key: &str| copy.get(key).and_then(Value::as_bool) == Some(true);
        let remark = match (is("shown"), is("hidden")) {
            (true, _) => "  <- shown",
            (_, true) => "  (hidden: of another kind)",
            _ => "",
        };
        let _ = writeln!(
            out,
            "  {path}: {}, mode {}, owner {}:{}, modified {}, inode {}{remark}",
            show_size(number(copy, "size_bytes")),
            field(copy, "mode"),
            number(copy, "uid"),
            number(copy, "gid"),
            time(copy.get("modified_s").and_then(Value::as_i64).unwrap_or(0)),
            number(copy, "inode"),
        );
    }
    let differences: Vec<&str> = list(answer, "differences")
        .filter_map(Value::as_str)
        .collect();
    if !differences.is_empty() {
        let _ = writeln!(out, "  the copies differ in {}", differences.join(", "));
    }
}

fn branches(answer: &Value, out: &mut String) {
    let _ = writeln!(out, "Branches:");
    for branch in list(answer, "branches") {
        let _ = writeln!(
            out,
            "  {} {} ({}): {} available, minfreespace {}",
            field(branch, "path"),
            field(branch, "mode"),
            field(branch, "health"),
            show_size(number(branch, "available_bytes")),
            show_size(number(branch, "min_free_bytes")),
        );
    }
}

fn decided(decision: &Value, out: &mut String) {
    let functions: Vec<&str> = list(decision, "functions")
        .filter_map(Value::as_str)
        .collect();
    let _ = writeln!(
        out,
        "  {} (policy {}): {}",
        functions.join(", "),
        field(decision, "policy"),
        outcome(decision),
    );
    for branch in list(decision, "branches") {
        if let Some(reason) = branch.get("reason").and_then(Value::as_str) {
            let _ = writeln!(
                out,
                "    {}: {}, {reason}",
                field(branch, "path"),
                field(branch, "verdict")
            );
        }
    }
}

fn outcome(decision: &Value) -> String {
    if let Some(error) = decision.get("error").and_then(Value::as_str) {
        return match decision.get("note").and_then(Value::as_str) {
            Some(note) => format!("fails with {error}, because {note}"),
            None => format!("fails with {error}"),
        };
    }
    let used: Vec<String> = list(decision, "branches")
        .filter_map(|branch| {
            let chance = branch.get("chance").and_then(Value::as_f64)?;
            let path = field(branch, "path");
            match field(branch, "verdict") {
                "used" => Some(path.to_owned()),
                "possible" => Some(format!("{path} ({:.0} %)", chance * 100.0)),
                _ => None,
            }
        })
        .collect();
    let random = list(decision, "branches").any(|branch| field(branch, "verdict") == "possible");
    let from = match number(decision, "directories_up") {
        0 => String::new(),
        1 => ", by what the directory above it has".to_owned(),
        up => format!(", by what the directory {up} levels above it has"),
    };
    match random {
        true => format!("one of {}{from}", used.join(", ")),
        false => format!("{}{from}", used.join(", ")),
    }
}
