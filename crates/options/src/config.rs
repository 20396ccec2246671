//! Configuration files: options kept in a file instead of in fstab or on a command line.
//!
//! A name ending in `.toml` is a TOML file whose keys are the names of the option table. Any other
//! is in the form of mergerfs: a line `NAME=VALUE` for each option, `#` before comments. Both are
//! read into the same list of entries, each with its line, and applied by [`ConfigFile::apply`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Notice, OptionError};
use crate::origin::Origin;
use crate::settings::Settings;
use crate::table::{self, Status};

mod edit;
mod lines;
mod read;
mod toml;
mod write;

pub use edit::{functions_of, with_options};
pub use write::{OptionLine, to_toml};

/// Where `NAME` is looked for as `NAME.toml`.
pub const DIRECTORY: &str = "/etc/strandfs";

/// As in mergerfs.
const DEEPEST: usize = 5;

/// A configuration file that was read; its options are not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    path: Arc<Path>,
    entries: Vec<Entry>,
}

/// One option of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// As written.
    name: String,
    /// In the text form of the table.
    value: Option<String>,
    /// Counted from 1.
    line: usize,
}

/// Something wrong with a configuration file, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// Counted from 1, where the error has a place.
    pub line: Option<usize>,
    /// The sentence.
    pub text: String,
    /// It may pass without a change of the file: a branch's disk or machine is away.
    pub may_pass: bool,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path.display(), self.text),
            None => write!(f, "{}: {}", self.path.display(), self.text),
        }
    }
}

/// Everything wrong with a configuration file and those it names; at least one. Nothing of it was
/// applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    /// A line for each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl ConfigErrors {
    /// Whether all of it may pass without a change of a file.
    pub fn may_pass(&self) -> bool {
        self.0.iter().all(|error| error.may_pass)
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

/// What applying a file did.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// What to tell the user.
    pub notices: Vec<Notice>,
    /// The file and those it names, outermost first.
    pub files: Vec<PathBuf>,
}

/// The file a source stands for: a name ending in `.toml`, or `NAME` where
/// `/etc/strandfs/NAME.toml` exists. `None`: it is a branch list.
pub fn named_by(source: &str) -> Option<PathBuf> {
    if source.ends_with(".toml") && Path::new(source).is_file() {
        return Some(PathBuf::from(source));
    }
    let file = place_of(source)?;
    file.is_file().then_some(file)
}

/// `/etc/strandfs/NAME.toml`, if the source is a bare name and nothing else.
pub fn place_of(source: &str) -> Option<PathBuf> {
    let bare = !source.is_empty()
        && !source.starts_with('.')
        && !source.contains(|character| "/:=*?[]{}\\,".contains(character));
    bare.then(|| Path::new(DIRECTORY).join(format!("{source}.toml")))
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is over 1 MiB or not UTF-8, or is not in the form its name promises.
    pub fn read(path: &Path) -> Result<Self, ConfigErrors> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let text = read::text(&path)?;
        Self::parse(&path, &text)
    }

    /// Reads the text of a file. Options are looked up, since some take lists in TOML, but their
    /// values are not judged.
    ///
    /// # Errors
    /// The text is not in the form the name promises, or a TOML file names an unknown option; with
    /// them everything else that is wrong with the file.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigErrors> {
        let is_toml = path
            .extension()
            .is_some_and(|extension| extension == "toml");
        let (entries, mut errors) = match is_toml {
            true => toml::entries(path, text),
            false => lines::entries(path, text),
        };
        let path = path.into();
        let file = Self { path, entries };
        if errors.is_empty() {
            return Ok(file);
        }
        // So that nobody has to correct one mistake to hear of the next.
        if let Err(others) = file.apply(&mut Settings::default()) {
            errors.extend(others.0);
        }
        errors.sort_by_key(|error| error.line);
        Err(ConfigErrors(errors))
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The options as they are written: name, value in the text form of the table, line.
    pub fn options(&self) -> impl Iterator<Item = (&str, Option<&str>, usize)> {
        self.entries
            .iter()
            .map(|entry| (entry.name.as_str(), entry.value.as_deref(), entry.line))
    }

    /// Applies every option, and those of the files it names before.
    ///
    /// # Errors
    /// Every option that is refused; the settings are then unchanged.
    pub fn apply(&self, settings: &mut Settings) -> Result<Applied, ConfigErrors> {
        let mut changed = settings.clone();
        let mut applied = Applied::default();
        let mut errors = Vec::new();
        self.apply_to(&mut changed, &mut applied, &mut errors, 1);
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        *settings = changed;
        Ok(applied)
    }

    fn apply_to(
        &self,
        settings: &mut Settings,
        applied: &mut Applied,
        errors: &mut Vec<ConfigError>,
        depth: usize,
    ) {
        applied.files.push(self.path.to_path_buf());
        let is_config =
            |entry: &&Entry| table::find(&entry.name).is_some_and(|(o, _)| o.name == "config");
        for entry in self.entries.iter().filter(is_config) {
            if let Some(value) = entry.value.as_deref().filter(|value| !value.is_empty()) {
                match self.further(value, entry.line, depth) {
                    Ok(further) => further.apply_to(settings, applied, errors, depth + 1),
                    Err(refused) => errors.extend(refused.0),
                }
            }
        }
        // How long branches are waited for counts for them wherever it stands.
        let is_patience = |entry: &&Entry| {
            table::find(&entry.name).is_some_and(|(o, _)| o.name == "branches-mount-timeout")
        };
        let (first, others): (Vec<_>, Vec<_>) = self.entries.iter().partition(is_patience);
        for entry in first.into_iter().chain(others) {
            match self.set(settings, entry) {
                Ok(notice) => applied.notices.extend(notice),
                Err((text, may_pass)) => errors.push(ConfigError {
                    may_pass,
                    ..self.error(entry.line, text)
                }),
            }
        }
    }

    /// An error is a sentence, and whether what it is about may pass.
    fn set(
        &self,
        settings: &mut Settings,
        entry: &Entry,
    ) -> Result<Option<Notice>, (String, bool)> {
        let origin = Origin::File {
            path: Arc::clone(&self.path),
            line: entry.line,
        };
        if let Some((option, _)) = table::find(&entry.name)
            && option.status == Status::MountWord
        {
            let text = "is a word for mount(8): write it in /etc/fstab";
            return Err((format!("{} {text}", entry.name), false));
        }
        let value = self.beside(entry);
        let effect = settings
            .set_from(&origin, &entry.name, value.as_deref())
            .map_err(|error: OptionError| (error.to_string(), error.may_pass()))?;
        Ok(effect.notice.map(|notice| Notice {
            option: notice.option,
            text: format!("{} ({origin})", notice.text),
        }))
    }

    /// The value; a relative log file lies beside the file that names it, as a further file does,
    /// whatever directory the server is in when it reads this again.
    fn beside(&self, entry: &Entry) -> Option<String> {
        let value = entry.value.as_deref()?;
        let is_log = table::find(&entry.name).is_some_and(|(option, _)| option.name == "log.file");
        let beside = self.path.parent().map(|dir| dir.join(value));
        match beside.as_deref().and_then(Path::to_str) {
            Some(path) if is_log && !value.is_empty() => Some(path.to_owned()),
            _ => Some(value.to_owned()),
        }
    }

    /// The file that an option `config` in this one names.
    fn further(&self, name: &str, line: usize, depth: usize) -> Result<ConfigFile, ConfigErrors> {
        if depth >= DEEPEST {
            let text = format!("files name each other more than {DEEPEST} deep: end the circle");
            return Err(self.error(line, text).into());
        }
        let path = self.path.parent().unwrap_or(Path::new("/")).join(name);
        ConfigFile::read(&path)
    }

    fn error(&self, line: usize, text: String) -> ConfigError {
        ConfigError {
            path: self.path.to_path_buf(),
            line: Some(line),
            text,
            may_pass: false,
        }
    }
}

#[cfg(test)]
mod tests;
