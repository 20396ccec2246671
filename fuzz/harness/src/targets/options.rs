//! What users write: options, branches, fstab, configuration files.

use std::path::Path;

use strandfs_options::fstab::FstabLine;
use strandfs_options::{ConfigFile, Settings, TABLE, branch, import, mount_items};

fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

/// Every option's name, example and what stands between.
pub fn words() -> Vec<&'static str> {
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

/// What was accepted reads the same when it is said again.
pub fn option_strings(input: &[u8]) {
    let input = text(input);
    let _ = mount_items(&input);
    let mut settings = Settings::default();
    if settings.parse_mount_options(&input).is_err() {
        return;
    }
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
}

/// A path that is no pattern stands for itself when it is written as one.
pub fn branch_lists(input: &[u8]) {
    let input = text(input);
    let Ok(parsed) = branch::parse(&input) else {
        return;
    };
    for item in parsed {
        let Some(path) = item.literal() else { continue };
        let again = branch::parse(&branch::escape_path(&path)).unwrap();
        assert_eq!(again.len(), 1, "{path:?}");
        assert_eq!(again[0].literal().as_ref(), Some(&path));
    }
}

fn with_rest(line: &FstabLine, rest: &[String]) -> FstabLine {
    FstabLine {
        rest: rest.to_vec(),
        ..line.clone()
    }
}

/// Written and read again a line is the same, with the numbers at its end filled in.
pub fn fstab_lines(input: &[u8]) {
    let Ok(Some(line)) = FstabLine::parse(&text(input)) else {
        return;
    };
    let again = FstabLine::parse(&line.to_string()).unwrap().unwrap();
    let numbers = again.rest.clone();
    assert_eq!(again, with_rest(&line, &numbers));
    for defaults in [import::Defaults::Ours, import::Defaults::OfMergerfs] {
        if let Ok((translated, _)) = import::line(&line, defaults) {
            let written = FstabLine::parse(&translated.to_string()).unwrap();
            assert_eq!(written, Some(with_rest(&translated, &numbers)));
        }
    }
}

/// Whatever a file holds, it is read or refused.
pub fn configuration_files(input: &[u8]) {
    let Ok(file) = ConfigFile::parse(Path::new("/etc/strandfs/pool.toml"), &text(input)) else {
        return;
    };
    let _ = import::config(&file, import::Defaults::OfMergerfs);
    let _ = file.options().count();
}
