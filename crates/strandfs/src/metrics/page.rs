//! The page `docs/metrics.md`.

use std::fmt::Write;

use strandfs_pool::state::figures::OpenedAs;

use super::families::FAMILIES;

/// The page, with the families where its text says so.
pub fn page() -> String {
    include_str!("page.md")
        .replace("FAMILIES\n", &table())
        .replace("REASONS\n", &reasons())
}

/// Why files are not passed through.
fn reasons() -> String {
    let all = OpenedAs::ALL.iter().zip(OpenedAs::MEANINGS);
    let refusals = all.filter(|((how, _), _)| *how != OpenedAs::Passthrough);
    let row = |((_, name), meaning): (&(_, &str), &&str)| format!("| `{name}` |{meaning} |\n");
    refusals.map(row).collect()
}

fn table() -> String {
    let mut table = String::from("| name | kind | labels | meaning |\n|---|---|---|---|\n");
    for family in FAMILIES {
        let labels: Vec<String> = family
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| `{}` | {} | {} | {}. |",
            family.full_name(),
            family.kind_word(),
            labels.join(", "),
            family.help
        );
    }
    table
}
