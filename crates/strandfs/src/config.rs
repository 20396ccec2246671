//! `strandfs config`: what is in force, and whether a file is right.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use strandfs_options::config::{OptionLine, named_by, to_toml};
use strandfs_options::layers::LoadError;
use strandfs_options::table::{Status, TABLE};
use strandfs_options::{ConfigErrors, ConfigFile, Layers, Loaded, Settings};
use strandfs_pool::status::SCHEMA;

use crate::answers::{Configuration, Setting, typed};
use crate::args::{ConfigCheckArgs, ConfigShowArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::mounts;
use crate::output::print_json;

/// One option with its value and where that comes from.
struct Found {
    name: &'static str,
    value: String,
    /// `default`, or where it was set.
    origin: String,
}

/// `strandfs config show`.
///
/// # Errors
/// What was named is neither a pool nor a file, the file is wrong, or the server cannot be asked.
pub fn show(args: &ConfigShowArgs) -> Result<ExitCode, Failure> {
    let shown = match &args.target {
        None => {
            let all = mounts::all().map_err(Failure::system("reading /proc/self/mountinfo"))?;
            let trusted = all.into_iter().filter(|it| it.stranger().is_none());
            let pools: Result<Vec<_>, Failure> = trusted.map(|it| pool(it.mountpoint)).collect();
            pools?
        }
        Some(target) => vec![find(target)?],
    };
    if args.json {
        let list: Vec<Configuration> = shown.into_iter().map(answer).collect();
        print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (number, (what, values)) in shown.iter().enumerate() {
        if shown.len() > 1 {
            let gap = if number > 0 { "\n" } else { "" };
            println!("{gap}# {}", what.display());
        }
        print!("{}", to_toml(&lines(values, args)));
    }
    Ok(ExitCode::SUCCESS)
}

type Shown = (PathBuf, Vec<Found>);

/// What a configuration file makes of the options.
///
/// # Errors
/// The file cannot be read, or is wrong.
pub fn load(file: &Path) -> Result<Loaded, Failure> {
    let layers = Layers {
        file: Some(file.to_owned()),
        ..Layers::default()
    };
    layers.load().map_err(|error| match error {
        LoadError::Config(errors) => Failure::Config(errors),
        LoadError::Option(error) => Failure::Option(error),
    })
}

/// A pool by its mountpoint, or a file by its name.
fn find(target: &str) -> Result<Shown, Failure> {
    let path = std::fs::canonicalize(target).unwrap_or_else(|_| PathBuf::from(target));
    let mounted = mounts::find(&path).map_err(Failure::system("reading /proc/self/mountinfo"))?;
    if let Some(mountpoint) = mounted {
        return pool(mountpoint);
    }
    let file = match named_by(target) {
        Some(file) => file,
        None if path.is_dir() => return Err(Failure::NotMounted(path)),
        None => PathBuf::from(target),
    };
    let loaded = load(&file)?;
    Ok((file, of_settings(&loaded.settings)))
}

fn of_settings(settings: &Settings) -> Vec<Found> {
    active()
        .map(|name| Found {
            name,
            value: settings.get(name).unwrap_or_default(),
            origin: settings.origins.get(name).to_string(),
        })
        .collect()
}

/// What the server of a pool has in force.
fn pool(mountpoint: PathBuf) -> Result<Shown, Failure> {
    let live = mounts::status(&mountpoint).map_err(Failure::system("asking the pool's server"))?;
    let values = active()
        .filter_map(|name| {
            Some(Found {
                name,
                value: live.options.get(name)?.clone(),
                origin: match live.origins.get(name) {
                    Some(origin) => origin.clone(),
                    None => "default".to_owned(),
                },
            })
        })
        .collect();
    Ok((mountpoint, values))
}

fn active() -> impl Iterator<Item = &'static str> {
    let active = TABLE
        .iter()
        .filter(|option| option.status == Status::Active);
    active.map(|option| option.name)
}

fn answer((source, values): Shown) -> Configuration {
    let option = |found: Found| {
        let Found {
            name,
            value,
            origin,
        } = found;
        let (typed, unit) = typed(name, &value);
        let setting = Setting {
            value,
            typed,
            unit: unit.map(str::to_owned),
            origin,
        };
        (name.to_owned(), setting)
    };
    Configuration {
        schema: SCHEMA,
        source: source.to_string_lossy().into_owned(),
        options: values.into_iter().map(option).collect(),
    }
}

/// What a configuration file would have to say.
fn lines(values: &[Found], args: &ConfigShowArgs) -> Vec<OptionLine> {
    values
        .iter()
        .filter(|found| args.all || found.origin != "default")
        // A category whose functions differ has no value that could be set; they have theirs.
        .filter(|found| !found.value.is_empty() && !is_mixed(found))
        .map(|found| OptionLine {
            name: found.name.to_owned(),
            value: found.value.clone(),
            comment: match args.origin {
                true => found.origin.clone(),
                false => String::new(),
            },
        })
        .collect()
}

fn is_mixed(found: &Found) -> bool {
    found.name.starts_with("category.") && found.value.contains(',')
}

/// `strandfs config check`.
///
/// # Errors
/// None; what is wrong with the files is printed, and the exit code is 2.
pub fn check(args: &ConfigCheckArgs) -> Result<ExitCode, Failure> {
    let mut wrong = false;
    for given in &args.files {
        let named = given.to_str().and_then(named_by);
        let path = named.as_ref().unwrap_or(given);
        match check_one(path) {
            Ok(notices) => {
                for notice in notices {
                    say!("{notice}");
                }
                println!("{}: correct", path.display());
            }
            Err(errors) => {
                wrong = true;
                for line in errors {
                    say!("{line}");
                }
            }
        }
    }
    Ok(match wrong {
        true => Exit::Usage.into(),
        false => ExitCode::SUCCESS,
    })
}

/// Notices, or what is wrong, a sentence each.
fn check_one(path: &Path) -> Result<Vec<String>, Vec<String>> {
    let sentences = |errors: ConfigErrors| -> Vec<String> {
        errors.0.iter().map(ToString::to_string).collect()
    };
    let file = ConfigFile::read(path).map_err(sentences)?;
    let mut settings = Settings::default();
    let applied = file.apply(&mut settings).map_err(sentences)?;
    let conflicts = settings.check_all().map_err(|(first, others)| {
        let all = std::iter::once(first).chain(others);
        all.map(|error| format!("{}: {error}", path.display()))
            .collect::<Vec<_>>()
    })?;
    let notices = applied.notices.iter().chain(&conflicts);
    Ok(notices.map(ToString::to_string).collect())
}
