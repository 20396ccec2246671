//! Writes the table of `docs/reliability.md` from the results that test runs kept:
//! `cargo run -p strandfs-bench --example reliability RESULTS HEADING...`

use std::error::Error;
use std::fmt::Write as _;

use serde::Deserialize;

/// What is not run by `make reliability`, and was found when it last was.
const BY_HAND: &str = include_str!("by_hand.md");

/// A line of the results; what only some suites know is missing in others.
#[derive(Deserialize)]
struct Row {
    suite: String,
    configuration: String,
    cases: u64,
    unit: String,
    /// None where the suite is not run on the bare filesystem, or compares with it as it goes.
    bare_failed: Option<u64>,
    #[serde(default)]
    documented: u64,
    failed: u64,
}

/// Faults injected, and what became of the data.
#[derive(Deserialize)]
struct FaultRow {
    fault: String,
    configuration: String,
    injected: u64,
    verified_bytes: u64,
    failed: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Suite(Row),
    Fault(FaultRow),
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which results?")?;
    let text = std::fs::read_to_string(path)?;
    let (mut rows, mut faults) = (Vec::new(), Vec::new());
    for line in text.lines() {
        match serde_json::from_str(line)? {
            Line::Suite(row) => rows.push(row),
            Line::Fault(row) => faults.push(row),
        }
    }
    rows.sort_by(|a, b| (&a.suite, &a.configuration).cmp(&(&b.suite, &b.configuration)));
    faults.sort_by(|a, b| (&a.fault, &a.configuration).cmp(&(&b.fault, &b.configuration)));
    let headings: Vec<String> = arguments.collect();
    print!(
        "{}{}{BY_HAND}",
        page(&rows, &headings)?,
        fault_table(&faults)?
    );
    Ok(())
}

fn page(rows: &[Row], headings: &[String]) -> Result<String, std::fmt::Error> {
    let mut page = String::from(
        "# What the tests have shown\n\n\
         Written by `make reliability`; do not edit. A failure *here* is one in the pool, whether or \
         not the bare filesystem has it too; those *with a reason* are listed in \
         [semantics.md](semantics.md). A dash: the suite is not run on the bare filesystem by \
         itself.\n\n",
    );
    for heading in headings {
        writeln!(page, "- {heading}")?;
    }
    page.push_str(
        "\n| suite | configuration | run | failed on bare | failed here | with a reason |\n\
         |---|---|---|---|---|---|\n",
    );
    for row in rows {
        let bare = row
            .bare_failed
            .map_or("–".to_owned(), |count| count.to_string());
        writeln!(
            page,
            "| {} | {} | {} {} | {bare} | {} | {} |",
            row.suite, row.configuration, row.cases, row.unit, row.failed, row.documented
        )?;
    }
    Ok(page)
}

fn fault_table(rows: &[FaultRow]) -> Result<String, std::fmt::Error> {
    let mut page = String::from(
        "\n## Faults injected\n\n\
         What had been acknowledged (a write that had returned, in a pool; one that had been synced, \
         on a volume) was read and compared after each fault.\n\n\
         | fault | configuration | injected | MB compared | bytes lost |\n\
         |---|---|---|---|---|\n",
    );
    for row in rows {
        let lost = if row.failed { "**some**" } else { "0" };
        writeln!(
            page,
            "| {} | {} | {} | {:.1} | {lost} |",
            row.fault,
            row.configuration,
            row.injected,
            row.verified_bytes as f64 / 1e6
        )?;
    }
    Ok(page)
}
