//! Runs a page's steps on a machine of its own: new mounts, new processes, its own `/etc`, `/mnt`,
//! `/srv`, `/run` and `/dev`. Everything on it ends with the process that runs the steps.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use super::page::{Page, Step, is_as_shown};
use crate::support::command::binary;
use crate::support::run;

/// Runs a page; an error says which command did not do what the page shows.
pub fn run_page(page: &Page) -> Result<(), String> {
    let dir = tempfile::Builder::new().prefix("strandfs-book-").tempdir();
    let dir = dir.map_err(|error| error.to_string())?;
    let root = dir
        .path()
        .canonicalize()
        .map_err(|error| error.to_string())?;
    let script = root.join("script");
    let written = fs::write(&script, script_of(page, &root));
    written.map_err(|error| error.to_string())?;
    let namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let bash = ["bash", script.to_str().unwrap_or_default()];
    let machine = run("unshare", namespaces.iter().chain(&bash));
    for (number, (line, step)) in page.steps.iter().enumerate() {
        let printed = read(&root.join(format!("out.{number}")));
        let code = read(&root.join(format!("code.{number}")));
        judge(step, code.trim(), &printed).map_err(|wrong| {
            format!("line {line}: {wrong}\n{}{}", machine.stdout, machine.stderr)
        })?;
    }
    Ok(())
}

fn read(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn judge(step: &Step, code: &str, printed: &str) -> Result<(), String> {
    let (what, exits) = match step {
        Step::Setup(script) => (script, &[0][..]),
        Step::File { path, .. } => (path, &[0][..]),
        Step::Command { line, exits, .. } => (line, exits.as_slice()),
    };
    if !exits.iter().any(|exit| exit.to_string() == code) {
        let ended = if code.is_empty() { "not at all" } else { code };
        return Err(format!(
            "{what}\nended with {ended}, not {exits:?}:\n{printed}"
        ));
    }
    if let Step::Command { shown, .. } = step {
        let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
        if !is_as_shown(shown, &lines) {
            let shown = shown.join("\n");
            return Err(format!("{what}\nprinted:\n{printed}\nnot:\n{shown}"));
        }
    }
    Ok(())
}

/// The steps as one shell's script, so that a directory or a variable is what the step before made it.
/// It ends at the first step that does not end as it should.
fn script_of(page: &Page, root: &Path) -> String {
    let (root, binary) = (root.display(), binary());
    let mut script = format!("BOOK={root}\nSTRANDFS={}\n", binary.display());
    script.push_str(include_str!("machine.sh"));
    script.push_str("book_code=0\n");
    for (number, (_, step)) in page.steps.iter().enumerate() {
        let body = match step {
            // Strict, and without an effect on the shell's own strictness afterwards.
            Step::Setup(script) => format!("set -e\n{script}\nset +e"),
            Step::File { path, text } => format!(
                "mkdir -p \"$(dirname '{path}')\" && cat >'{path}' <<'END-OF-FILE'\n{text}END-OF-FILE"
            ),
            Step::Command { line, .. } => line.clone(),
        };
        let exits = match step {
            Step::Command { exits, .. } => exits.as_slice(),
            Step::Setup(_) | Step::File { .. } => &[0],
        };
        let exits: Vec<String> = exits.iter().map(i32::to_string).collect();
        // What a reader's next command finds in $? is the code of the last one.
        write!(
            script,
            "(exit $book_code)\n{{\n{body}\n}} >$BOOK/out.{number} 2>&1 </dev/null\n\
             book_code=$?\necho $book_code >$BOOK/code.{number}\n\
             case $book_code in {}) ;; *) exit 0 ;; esac\n",
            exits.join("|")
        )
        .ok();
    }
    script
}
