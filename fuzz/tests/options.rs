//! What users write: options, branches, fstab, configuration files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use strandfs_fuzz::check;
use strandfs_options::fstab::FstabLine;
use strandfs_options::{ConfigFile, Settings, TABLE, branch, import, mount_items};

fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

/// Every option's name, example and what stands between.
fn words() -> Vec<&'static str> {
    let mut words = vec![
        ",",
        "=",
        ":",
        "\\",
        "\"",
        "'",
        "\n",
        " ",
        "#",
        "[",
        "]",
        "{",
        "}",
        "*",
        "?",
        "-",
        "%",
        "RO",
        "NC",
        "RW",
        "4G",
        "5%",
        "true",
        "18446744073709551616",
        "0x",
        "1e9",
        "\u{e9}",
        "+<",
        "->",
        "=NC,1M",
        "fuse.mergerfs",
        "strandfs",
        "\\040",
        "\\072",
        "branches = [",
    ];
    words.extend(
        TABLE
            .iter()
            .flat_map(|option| [option.name, option.example]),
    );
    words.retain(|word| !word.is_empty());
    words
}

fn fuzz(name: &str, corpus: &str, target: impl FnMut(&[u8])) {
    check(name, corpus, &words(), target);
}

#[test]
fn option_strings() {
    fuzz(
        "option strings",
        include_str!("../corpus/options.txt"),
        |input| {
            let input = text(input);
            let _ = mount_items(&input);
            let mut settings = Settings::default();
            if settings.parse_mount_options(&input).is_err() {
                return;
            }
            // What was accepted reads the same when it is said again.
            for option in TABLE {
                let Some(value) = settings.get(option.name) else {
                    continue;
                };
                let mut again = Settings::default();
                if again.set(option.name, Some(&value)).is_ok() {
                    assert_eq!(
                        again.get(option.name).as_ref(),
                        Some(&value),
                        "{}",
                        option.name
                    );
                }
            }
        },
    );
}

#[test]
fn branch_lists() {
    fuzz(
        "branch lists",
        include_str!("../corpus/branches.txt"),
        |input| {
            let input = text(input);
            let Ok(parsed) = branch::parse(&input) else {
                return;
            };
            for item in parsed {
                let Some(path) = item.literal() else { continue };
                // A path that is no pattern stands for itself when it is written as one.
                let again = branch::parse(&branch::escape_path(&path)).unwrap();
                assert_eq!(again.len(), 1, "{path:?}");
                assert_eq!(again[0].literal().as_ref(), Some(&path));
            }
        },
    );
}

fn with_rest(line: &FstabLine, rest: &[String]) -> FstabLine {
    FstabLine {
        rest: rest.to_vec(),
        ..line.clone()
    }
}

#[test]
fn fstab_lines() {
    fuzz(
        "fstab lines",
        include_str!("../corpus/fstab.txt"),
        |input| {
            let Ok(Some(line)) = FstabLine::parse(&text(input)) else {
                return;
            };
            // Written and read again it is the same line, with the numbers at its end filled in.
            let again = FstabLine::parse(&line.to_string()).unwrap().unwrap();
            let numbers = again.rest.clone();
            assert_eq!(again, with_rest(&line, &numbers));
            for exact in [false, true] {
                if let Ok((translated, _)) = import::line(&line, exact) {
                    let written = FstabLine::parse(&translated.to_string()).unwrap();
                    assert_eq!(written, Some(with_rest(&translated, &numbers)));
                }
            }
        },
    );
}

#[test]
fn configuration_files() {
    fuzz(
        "configuration files",
        include_str!("../corpus/toml.txt"),
        |input| {
            let Ok(file) = ConfigFile::parse(Path::new("/etc/strandfs/pool.toml"), &text(input))
            else {
                return;
            };
            let _ = import::config(&file, true);
            let _ = file.options().count();
        },
    );
}
