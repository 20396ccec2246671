//! `strandfs import-fstab`: from mergerfs to strandfs, with a report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use strandfs_options::ConfigFile;
use strandfs_options::config::{OptionLine, to_toml};
use strandfs_options::fstab::FstabLine;
use strandfs_options::import::{self, Imported};

use crate::args::ImportArgs;
use crate::failure::Failure;

/// It works, with a warning that matters.
const INCOMPLETE: u8 = 3;

/// Prints the translation on standard output and the report on standard error.
///
/// # Errors
/// There is nothing to translate, or it makes no sense in mergerfs either.
pub fn run(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let complete = match (args.line.is_empty(), &args.file) {
        (false, _) => match &args.line[..] {
            [file] if Path::new(file).is_file() => file_or_fstab(Path::new(file), args)?,
            words => lines(&words.join(" "), "the line", args)?,
        },
        (true, Some(file)) => file_or_fstab(file, args)?,
        (true, None) => file_or_fstab(Path::new("/etc/fstab"), args)?,
    };
    Ok(match complete {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(INCOMPLETE),
    })
}

fn file_or_fstab(path: &Path, args: &ImportArgs) -> Result<bool, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::Import {
        what: path.display().to_string(),
        why: format!("it cannot be read ({error})"),
    })?;
    // A line of fstab has a directory as its second word, and no option has.
    let is_fstab = text
        .lines()
        .filter_map(|line| FstabLine::parse(line).ok().flatten())
        .any(|line| line.target.starts_with('/') || line.target == "none");
    if is_fstab {
        return lines(&text, &path.display().to_string(), args);
    }
    let file = ConfigFile::parse(path, &text).map_err(Failure::Config)?;
    let imported = import::config(&file, args.exact);
    print_toml(&imported, None);
    report(&imported);
    Ok(!imported.incomplete)
}

/// Translates every line of mergerfs in a text. True: everything was kept.
fn lines(text: &str, what: &str, args: &ImportArgs) -> Result<bool, Failure> {
    let refuse = |why: String| Failure::Import {
        what: what.to_owned(),
        why,
    };
    let (mut found, mut complete) = (false, true);
    for line in text.lines() {
        let parsed = FstabLine::parse(line).map_err(|error| refuse(error.to_string()))?;
        let Some(parsed) = parsed.filter(import::is_pool) else {
            continue;
        };
        found = true;
        let (translated, imported) =
            import::line(&parsed, args.exact).map_err(|error| refuse(error.to_string()))?;
        match args.toml {
            true => print_toml(&imported, Some(&translated)),
            false => println!("{translated}"),
        }
        report(&imported);
        complete &= !imported.incomplete;
    }
    match found {
        true => Ok(complete),
        false => Err(refuse(
            "there is no line of type mergerfs or fuse.mergerfs in it".to_owned(),
        )),
    }
}

/// A configuration file, and what is left for fstab.
fn print_toml(imported: &Imported, line: Option<&FstabLine>) {
    let (mut options, words) = imported.split();
    if let Some(line) = line {
        let name = name_for(line);
        let file = PathBuf::from(strandfs_options::config::DIRECTORY).join(format!("{name}.toml"));
        let words = match words.is_empty() {
            true => "defaults".to_owned(),
            false => words.join(","),
        };
        let short = FstabLine {
            source: name,
            options: words,
            ..line.clone()
        };
        println!("# {}, for this line of fstab:\n# {short}", file.display());
        options.retain(|option| option.name != "branches");
        let branches = OptionLine {
            name: "branches".to_owned(),
            value: line.source.clone(),
            comment: String::new(),
        };
        options.insert(0, branches);
    } else if !words.is_empty() {
        println!("# for fstab: {}", words.join(","));
    }
    print!("{}", to_toml(&options));
}

/// The mountpoint's last word, as far as it can be the name of a configuration.
fn name_for(line: &FstabLine) -> String {
    let last = line.target.rsplit('/').find(|part| !part.is_empty());
    let name: String = last
        .unwrap_or("pool")
        .chars()
        .map(|character| match character {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => character,
            _ => '-',
        })
        .collect();
    name
}

fn report(imported: &Imported) {
    for remark in &imported.remarks {
        eprintln!("strandfs: {remark}");
    }
}
