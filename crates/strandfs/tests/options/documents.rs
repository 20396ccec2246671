//! The documents in the repository are those that the option table and the command line make.

use crate::need_tool;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::files::names;
use crate::support::{run, strandfs};
use strandfs_options::{Settings, TABLE};

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_documents_are_current() {
    let made = tempfile::tempdir().unwrap();
    strandfs(["docs", made.path().to_str().unwrap()]).ok();
    for dir in ["docs", "man", "completions"] {
        let names = names(made.path().join(dir));
        assert!(!names.is_empty(), "{dir}");
        for name in names {
            let path = Path::new(dir).join(name);
            let fresh = fs::read_to_string(made.path().join(&path)).unwrap();
            let kept = fs::read_to_string(repository().join(&path)).unwrap_or_default();
            assert!(
                fresh == kept,
                "{} is not current: run `make docs`",
                path.display()
            );
        }
    }
    for dir in ["man", "completions"] {
        assert_eq!(
            names(repository().join(dir)),
            names(made.path().join(dir)),
            "{dir} holds what `make docs` does not make"
        );
    }
}

#[test]
fn manual_pages_are_good_roff() {
    need_tool!("groff");
    for name in names(repository().join("man")) {
        let page = repository().join("man").join(&name);
        let run = run(
            "groff",
            ["-man", "-ww", "-Tutf8", "-z", page.to_str().unwrap()],
        )
        .ok();
        assert_eq!(run.stderr, "", "{name}");
    }
}

#[test]
fn a_linter_of_manual_pages_finds_nothing() {
    need_tool!("mandoc");
    let pages = names(repository().join("man"));
    assert!(pages.len() > 15, "{pages:?}");
    for name in pages {
        let page = repository().join("man").join(&name);
        let run = run("mandoc", ["-T", "lint", page.to_str().unwrap()]);
        assert_eq!((run.code(), run.stdout.as_str()), (0, ""), "{name}");
    }
}

#[test]
fn an_option_is_explained_by_any_of_its_names() {
    let old = strandfs(["options", "cache.attr", "default_permissions", "use_ino"]).ok();
    for part in [
        "cache.attr=TIME",
        "Default: auto",
        "kernel-permissions-check=BOOL",
        "use-ino: obsolete",
    ] {
        assert!(old.stdout.contains(part), "{part} in {}", old.stdout);
    }
    let slip = strandfs(["options", "cache.atr"]);
    assert_eq!((slip.code(), slip.stdout.as_str()), (2, ""), "{slip:?}");
    assert!(slip.stderr.contains("did you mean cache.attr?"), "{slip:?}");
    let all = strandfs(["options"]).ok();
    assert!(all.stdout.contains("category.create=POLICY"), "{all:?}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    for args in [
        &["status", "--json"][..],
        &["options"],
        &["completions", "bash"],
    ] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(crate::support::command::binary());
        let run = command.args(args).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(
            (run.status.code(), said.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

/// Every `NAME=VALUE` in a text that begins with the name of an option.
fn assignments(text: &str) -> Vec<(&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|code| code.split_once('='))
        .filter(|(name, _)| !name.is_empty() && !name.contains(['/', ' ']))
        .collect()
}

#[test]
fn the_migration_page_names_real_defaults_and_options() {
    let page = fs::read_to_string(repository().join("docs/migration.md")).unwrap();
    for (name, value) in assignments(&page) {
        Settings::default().set(name, Some(value)).unwrap();
    }
    // A row names our default first and what brings the old one back last.
    let rows = page.lines().filter(|line| line.matches('|').count() == 5);
    let mut compared = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').collect();
        for (name, value) in assignments(cells[1]) {
            let default = Settings::default().get(name);
            assert_eq!(default.as_deref(), Some(value), "{row}");
            compared += 1;
        }
        for (name, value) in assignments(cells[4]) {
            let mut settings = Settings::default();
            settings.set(name, Some(value)).unwrap();
            assert_ne!(settings, Settings::default(), "{row}");
        }
    }
    assert!(compared > 3, "{compared}");
    for option in TABLE.iter().filter(|o| !o.mergerfs_default.is_empty()) {
        assert!(page.contains(option.name), "{} is missing", option.name);
    }
}

/// What bash offers for a line whose words readline has split, the last one under the cursor.
fn completed(words: &[&str]) -> Vec<String> {
    let script = repository().join("completions/strandfs.bash");
    let list: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let line = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={}; \
         _strandfs_or_options strandfs '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display(),
        list.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let run = run("bash", ["-c", &line]).ok();
    run.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    need_tool!("bash");
    assert_eq!(completed(&["strandfs", "moun"]), ["mount"]);
    assert_eq!(completed(&["strandfs", "docs"]), [""], "hidden");
    let mount = ["strandfs", "mount", "-o"];
    let mounting = |words: &[&str]| completed(&[&mount, words].concat());
    assert_eq!(
        mounting(&["cache.fi"]),
        ["cache.files=", "cache.files.process-names="]
    );
    assert_eq!(mounting(&["ro,cache.att"]), ["ro,cache.attr="]);
    assert_eq!(mounting(&["cache.files", "=", "au"]), ["auto-full"]);
    assert_eq!(mounting(&["statfs", "="]), ["base", "full"]);
    // Readline replaces only what stands behind the last "=".
    let second = ["statfs", "=", "full,func.mkd"];
    assert_eq!(mounting(&second), ["full,func.mkdir="]);
    let third = ["statfs", "=", "full,func.mkdir", "=", "ms"];
    assert_eq!(mounting(&third), ["msplfs", "msplus", "mspmfs", "msppfrd"]);
    assert!(mounting(&["r"]).contains(&"ro".to_owned()));
}

#[test]
fn completions_are_good_shell() {
    for (shell, name) in [("zsh", "_strandfs"), ("fish", "strandfs.fish")] {
        if crate::support::command::have(shell) {
            let script = repository().join("completions").join(name);
            run(shell, ["-n", script.to_str().unwrap()]).ok();
        }
        let printed = strandfs(["completions", shell]).ok();
        assert!(printed.stdout.contains("cache.files"), "{shell}");
    }
}
