//! The explanation as text.

use std::fmt::Write;

use strandfs_options::show_size;
use strandfs_pool::status::{Branch, Decision, Explanation, FoundCopy};

use super::Explained;
use crate::units::time;

/// What each category does, as a heading.
const HEADINGS: [(&str, &str); 3] = [
    ("search", "Looking at it"),
    ("action", "Changing it"),
    ("create", "Making something new"),
];

/// Everything, for people.
pub fn text(explained: &Explained<Explanation>) -> String {
    let Explained {
        asked,
        answered,
        missing,
        answer,
        ..
    } = explained;
    let mut out = String::new();
    if missing.is_empty() {
        let _ = writeln!(out, "{asked} ({})", answer.kind);
        copies(answer, &mut out);
    } else {
        let _ = writeln!(out, "{asked} does not exist; this is about {answered}");
    }
    branches(&answer.branches, &mut out);
    for (category, heading) in HEADINGS {
        if !missing.is_empty() && category != "create" {
            continue;
        }
        let title = match (category, answer.kind.as_str()) {
            ("create", "directory") => format!("{heading} in the directory"),
            ("create", _) => format!("{heading} beside it"),
            _ => heading.to_owned(),
        };
        let _ = writeln!(out, "{title}:");
        for decision in &answer.decisions {
            if decision.category == category {
                decided(decision, &mut out);
            }
        }
    }
    out
}

fn copies(answer: &Explanation, out: &mut String) {
    for copy in &answer.copies {
        let _ = writeln!(out, "  {}: {}", copy.path, about(copy));
    }
    if !answer.differences.is_empty() {
        let differences = answer.differences.join(", ");
        let _ = writeln!(out, "  the copies differ in {differences}");
    }
}

fn about(copy: &FoundCopy) -> String {
    let Some(facts) = &copy.facts else {
        let why = copy.error.as_deref().unwrap_or("?");
        return format!("cannot be read: {why}");
    };
    let remark = match (facts.shown, facts.hidden) {
        (true, _) => "  <- shown",
        (_, true) => "  (hidden: of another kind)",
        _ => "",
    };
    format!(
        "{}, mode {}, owner {}:{}, modified {}, inode {}{remark}",
        show_size(facts.size_bytes),
        facts.mode,
        facts.uid,
        facts.gid,
        time(facts.modified_s),
        facts.inode,
    )
}

fn branches(branches: &[Branch], out: &mut String) {
    let _ = writeln!(out, "Branches:");
    for branch in branches {
        let _ = writeln!(
            out,
            "  {} {} ({}): {} available, minfreespace {}",
            branch.path,
            branch.mode,
            branch.health,
            show_size(branch.available_bytes.unwrap_or(0)),
            show_size(branch.min_free_bytes.unwrap_or(0)),
        );
        if !branch.holds.is_unsaid() {
            let _ = writeln!(out, "    writes held while room is made: {}", branch.holds);
        }
    }
}

fn decided(decision: &Decision, out: &mut String) {
    let _ = writeln!(
        out,
        "  {} (policy {}): {}",
        decision.functions.join(", "),
        decision.policy,
        outcome(decision),
    );
    for branch in &decision.branches {
        if let Some(reason) = &branch.reason {
            let path = branch.path.as_deref().unwrap_or("?");
            let _ = writeln!(out, "    {path}: {}, {reason}", branch.verdict);
        }
    }
}

fn outcome(decision: &Decision) -> String {
    if let Some(error) = &decision.error {
        return match &decision.note {
            Some(note) => format!("fails with {error}, because {note}"),
            None => format!("fails with {error}"),
        };
    }
    let used: Vec<String> = decision
        .branches
        .iter()
        .filter_map(|branch| {
            let chance = branch.chance?;
            let path = branch.path.as_deref().unwrap_or("?");
            match branch.verdict.as_str() {
                "used" => Some(path.to_owned()),
                "possible" => Some(format!("{path} ({:.0} %)", chance * 100.0)),
                _ => None,
            }
        })
        .collect();
    let mut verdicts = decision.branches.iter().map(|branch| &branch.verdict);
    let random = verdicts.any(|verdict| verdict == "possible");
    let from = match decision.directories_up {
        0 => String::new(),
        1 => ", by what the directory above it has".to_owned(),
        up => format!(", by what the directory {up} levels above it has"),
    };
    match random {
        true => format!("one of {}{from}", used.join(", ")),
        false => format!("{}{from}", used.join(", ")),
    }
}
