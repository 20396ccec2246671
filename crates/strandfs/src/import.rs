//! `strandfs import-fstab`: from mergerfs to strandfs, with a report.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use strandfs_options::ConfigFile;
use strandfs_options::config::{OptionLine, to_toml};
use strandfs_options::fstab::FstabLine;
use strandfs_options::import::{self, Imported};

use crate::args::ImportArgs;
use crate::exit::Exit;
use crate::failure::Failure;

/// Prints the translation on standard output and the report on standard error, or writes files.
///
/// # Errors
/// There is nothing to translate, it makes no sense in mergerfs either, several lines were to become
/// one TOML file, or a file cannot be written.
pub fn run(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let complete = match (args.line.is_empty(), &args.file) {
        (false, _) => match &args.line[..] {
            [file] if Path::new(file).is_file() => file_or_fstab(Path::new(file), args)?,
            words => lines(&words.join(" "), None, args)?,
        },
        (true, Some(file)) => file_or_fstab(file, args)?,
        (true, None) => file_or_fstab(Path::new("/etc/fstab"), args)?,
    };
    Ok(match complete {
        true => ExitCode::SUCCESS,
        false => Exit::Degraded.into(),
    })
}

fn file_or_fstab(path: &Path, args: &ImportArgs) -> Result<bool, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::Import {
        what: path.display().to_string(),
        why: format!("it cannot be read ({error}); name another file"),
    })?;
    // A line of fstab has a directory as its second word, and no option has.
    let is_fstab = text
        .lines()
        .filter_map(|line| FstabLine::parse(line).ok().flatten())
        .any(|line| line.target.starts_with('/') || line.target == "none");
    if is_fstab {
        return lines(&text, Some(path), args);
    }
    let is_said = |line: &str| !line.trim_start().starts_with('#') && !line.trim().is_empty();
    if !text.lines().any(is_said) {
        return Err(Failure::Import {
            what: path.display().to_string(),
            why: "there is nothing in it; name another file, or give a line of fstab itself"
                .to_owned(),
        });
    }
    let file = ConfigFile::parse(path, &text).map_err(Failure::Config)?;
    let imported = import::config(&file, defaults(args));
    let (options, words) = imported.split();
    if !words.is_empty() {
        println!("# for fstab: {}", words.join(","));
    }
    let toml = to_toml(&options);
    match &args.dir {
        None => print!("{toml}"),
        Some(dir) => {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            write(&dir.join(format!("{}.toml", plain(&name))), &toml)?;
        }
    }
    report(&imported, "");
    Ok(!imported.incomplete)
}

/// A line that was translated.
struct Translated {
    /// What speaks of it is said behind this.
    place: String,
    line: FstabLine,
    imported: Imported,
}

/// Translates every line of mergerfs in a text, which is a file's or the command line's. True:
/// everything was kept.
fn lines(text: &str, file: Option<&Path>, args: &ImportArgs) -> Result<bool, Failure> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let place = match file {
            Some(path) => format!("{}:{number}", path.display()),
            None => "the line".to_owned(),
        };
        let refuse = |why: String| Failure::Import {
            what: place.clone(),
            why,
        };
        let parsed = FstabLine::parse(line).map_err(|error| refuse(error.to_string()))?;
        let Some(parsed) = parsed else { continue };
        // A line of a file that mounts something else is none of ours.
        if !import::is_pool(&parsed) && (file.is_some() || text.lines().count() > 1) {
            continue;
        }
        let (line, imported) =
            import::line(&parsed, defaults(args)).map_err(|error| refuse(error.to_string()))?;
        let place = file.map_or_else(String::new, |_| format!("{place}: "));
        found.push(Translated {
            place,
            line,
            imported,
        });
    }
    match (&found[..], &args.dir) {
        ([], _) => {
            return Err(Failure::Import {
                what: file.map_or("the line".to_owned(), |path| path.display().to_string()),
                why: "there is no line of type mergerfs or fuse.mergerfs in it; name another file, or \
                    give the line itself"
                    .to_owned(),
            });
        }
        ([_, _, ..], None) if args.toml => {
            return Err(Failure::Import {
                what: file.map_or("the lines".to_owned(), |path| path.display().to_string()),
                why: format!(
                    "it has {} pools, and a TOML file holds one: give --dir DIR to have a file for \
                     each, or one line as the argument",
                    found.len()
                ),
            });
        }
        _ => {}
    }
    show(&found, args)?;
    for one in &found {
        report(&one.imported, &one.place);
    }
    Ok(!found.iter().any(|one| one.imported.incomplete))
}

fn show(found: &[Translated], args: &ImportArgs) -> Result<(), Failure> {
    let mut names: Vec<String> = Vec::new();
    for Translated { line, imported, .. } in found {
        if !args.toml && args.dir.is_none() {
            println!("{line}");
            continue;
        }
        let name = name_for(line, &names);
        let (short, toml) = toml(&name, line, imported);
        match &args.dir {
            None => {
                let file =
                    Path::new(strandfs_options::config::DIRECTORY).join(format!("{name}.toml"));
                println!("# {}, for this line of fstab:\n# {short}", file.display());
                print!("{toml}");
            }
            Some(dir) => {
                write(&dir.join(format!("{name}.toml")), &toml)?;
                println!("{short}");
            }
        }
        names.push(name);
    }
    Ok(())
}

/// The line of fstab that names a configuration, and that configuration.
fn toml(name: &str, line: &FstabLine, imported: &Imported) -> (FstabLine, String) {
    let (mut options, words) = imported.split();
    let words = match words.is_empty() {
        true => "defaults".to_owned(),
        false => words.join(","),
    };
    let short = FstabLine {
        source: name.to_owned(),
        options: words,
        ..line.clone()
    };
    options.retain(|option| option.name != "branches");
    let branches = OptionLine {
        name: "branches".to_owned(),
        value: line.source.clone(),
        comment: String::new(),
    };
    options.insert(0, branches);
    (short, to_toml(&options))
}

/// Writes a file that is not there yet.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let written = File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::Save {
        path: path.to_owned(),
        why: match error.kind() {
            ErrorKind::AlreadyExists => {
                "it is there already and is not written over: move it away, or give another --dir"
                    .to_owned()
            }
            _ => format!("it cannot be written ({error}): give another --dir"),
        },
    })?;
    say!("wrote {}", path.display());
    Ok(())
}

/// The mountpoint's last word, as far as it can be the name of a configuration; with a number if it
/// is taken.
fn name_for(line: &FstabLine, taken: &[String]) -> String {
    let last = line.target.rsplit('/').find(|part| !part.is_empty());
    let name = plain(last.unwrap_or("pool"));
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or(name)
}

/// A word as the name of a file.
fn plain(word: &str) -> String {
    let harmless = |character| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => character,
        _ => '-',
    };
    word.chars().map(harmless).collect()
}

fn report(imported: &Imported, place: &str) {
    for remark in &imported.remarks {
        say!("{place}{remark}");
    }
}

fn defaults(args: &ImportArgs) -> import::Defaults {
    match args.exact {
        true => import::Defaults::OfMergerfs,
        false => import::Defaults::Ours,
    }
}
