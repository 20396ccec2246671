//! The kept corpus for the run led by coverage, and back.
//!
//! `corpus unpack TARGET DIR` writes each line of the corpus as a file; `corpus line FILE` prints a
//! file as a line for the corpus.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use strandfs_fuzz::{escape, inputs, targets};

/// The inputs that a target begins with.
fn corpus(target: &str) -> Option<String> {
    Some(match target {
        "branches" => include_str!("../../corpus/branches.txt").to_owned(),
        "control" => include_str!("../../corpus/control.txt").to_owned(),
        "fstab" => include_str!("../../corpus/fstab.txt").to_owned(),
        "options" => include_str!("../../corpus/options.txt").to_owned(),
        "protocol" | "dispatch" => targets::protocol::corpus(),
        "records" => include_str!("../../corpus/records.txt").to_owned(),
        "toml" => include_str!("../../corpus/toml.txt").to_owned(),
        _ => return None,
    })
}

fn unpack(target: &str, dir: &Path) -> io::Result<()> {
    let text = corpus(target).ok_or_else(|| io::Error::other("there is no such target"))?;
    fs::create_dir_all(dir)?;
    for (number, input) in inputs(&text).map_err(io::Error::other)?.iter().enumerate() {
        if target != "dispatch" {
            fs::write(dir.join(format!("kept-{number:04}")), input)?;
            continue;
        }
        // Its first byte chooses the form and the dialect.
        for choice in 0..4 {
            let input = [&[choice][..], input].concat();
            fs::write(dir.join(format!("kept-{number:04}-{choice}")), input)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["unpack", target, dir] => unpack(target, Path::new(dir)),
        ["line", file] => fs::read(file).map(|input| println!("{}", escape(&input))),
        _ => Err(io::Error::other(
            "corpus unpack TARGET DIR | corpus line FILE",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corpus: {error}");
            ExitCode::FAILURE
        }
    }
}
