//! `--save`: writing a change into the TOML file the pool was mounted from.

mod file;
mod list;

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use strandfs_options::Settings;
use strandfs_options::branch::{self, RawBranch};
use strandfs_options::config::{ConfigFile, functions_of, with_options};
use strandfs_pool::admin::control::request::Request;

use super::{canonical, client};
use crate::alone::{self, Alone};
use crate::failure::Failure;
use crate::turn::Turn;

/// A file that can be changed: found out before the pool is. Others that save wait until this is dropped.
pub struct Target<'a> {
    path: PathBuf,
    request: &'a Request,
    _alone: Option<Alone>,
    /// Where there is no such lock.
    _turn: Option<Turn>,
}

impl<'a> Target<'a> {
    /// The file that the pool mounted here was made from.
    ///
    /// # Errors
    /// There is none, it is no TOML file, it cannot be written, or it cannot hold the change.
    pub fn of(mountpoint: &Path, request: &'a Request) -> Result<Target<'a>, Failure> {
        let path = client::value(mountpoint, "config")
            .map_err(Failure::system("asking the pool's server for its file"))?;
        let refuse = |why: String| Failure::Save {
            path: PathBuf::from(&path),
            why,
        };
        if path.is_empty() {
            let why = "the pool was mounted without a configuration file: --save needs one";
            return Err(Failure::Refused(why.to_owned()));
        }
        if !path.ends_with(".toml") {
            let why = "only TOML files are written; change it by hand";
            return Err(refuse(why.to_owned()));
        }
        let open = || {
            // A file that is a symlink stays one.
            let real = fs::canonicalize(&path)?;
            OpenOptions::new().append(true).open(&real)?;
            Ok(real)
        };
        let real = open().map_err(|error: std::io::Error| refuse(error.to_string()))?;
        if is_mounted(&real) {
            let why = "something is mounted on the file itself, so that no new one can take its \
                       place: change it by hand";
            return Err(refuse(why.to_owned()));
        }
        let alone = Alone::take(&alone::SETTINGS, &real);
        let alone = alone.map_err(|failure| refuse(failure.to_string()))?;
        let target = Target {
            _turn: match (&alone, real.parent()) {
                (None, Some(directory)) => Some(Turn::take(directory)),
                _ => None,
            },
            _alone: alone,
            path: real,
            request,
        };
        // Refused now rather than after the change.
        target.text().map_err(refuse)?;
        Ok(target)
    }

    /// The file as it is now, with the change and nothing else.
    fn text(&self) -> Result<String, String> {
        let text = fs::read_to_string(&self.path).map_err(|error| error.to_string())?;
        let options = match self.request {
            Request::Set { options } => asked_for(options, &self.branches(&text)?)?,
            request => match list::edited(self.branches(&text)?, request)? {
                Some(branches) => vec![("branches".to_owned(), branches)],
                None => return Ok(text),
            },
        };
        let new = with_options(&text, &options)?;
        let known = self.mistakes(&text);
        match self
            .mistakes(&new)
            .into_iter()
            .find(|it| !known.contains(it))
        {
            Some(mistake) => Err(format!(
                "the pool could not be mounted from it then: {mistake}"
            )),
            None => Ok(new),
        }
    }

    /// What is wrong with a text, were it the file's.
    fn mistakes(&self, text: &str) -> Vec<String> {
        let file = ConfigFile::parse(&self.path, text);
        match file.and_then(|file| file.apply(&mut Settings::default())) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.0.into_iter().map(|error| error.text).collect(),
        }
    }

    /// The branches that the file itself lists, as they are written.
    fn branches(&self, text: &str) -> Result<Vec<RawBranch>, String> {
        let file = ConfigFile::parse(&self.path, text).map_err(|errors| errors.to_string())?;
        let lists = file
            .options()
            .filter(|(name, ..)| canonical(name) == "branches");
        match lists.last() {
            Some((_, Some(list), _)) => branch::parse(list).map_err(|error| error.to_string()),
            _ => Ok(Vec::new()),
        }
    }

    /// Writes the change into the file, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written; the pool is changed nonetheless.
    pub fn save(&self) -> Result<(), Failure> {
        let written = self
            .text()
            .and_then(|text| file::replace(&self.path, &text).map_err(|error| error.to_string()));
        written.map_err(|why| Failure::Unsaved {
            path: self.path.clone(),
            why: format!("the pool is changed, but not the file ({why})"),
        })
    }
}

/// What `strandfs set` was asked for, as values that the file can hold. The last of a kind counts, and
/// a category takes back what was said of its functions before.
fn asked_for(
    options: &[(String, Option<String>)],
    branches: &[RawBranch],
) -> Result<Vec<(String, String)>, String> {
    let mut values: Vec<(String, String)> = Vec::new();
    for (written, value) in options {
        let name = canonical(written);
        let functions = functions_of(name);
        values.retain(|(other, _)| other != name && !functions.contains(other));
        let mut one = Settings::default();
        if name == "branches" {
            if let Some(value) = value
                && let Some(added) = list::added(branches, value)?
            {
                values.push((name.to_owned(), added));
                continue;
            }
            // What may follow is a change of the list, by signs.
            let before = list::text(branches);
            one.set(name, Some(&before))
                .map_err(|error| error.to_string())?;
        }
        one.set_at_run_time(written, value.as_deref())
            .map_err(|error| error.to_string())?;
        values.push((name.to_owned(), one.get(name).unwrap_or_default()));
    }
    Ok(values)
}

/// Whether a mount covers the file alone: a rename cannot replace what is mounted.
fn is_mounted(file: &Path) -> bool {
    let stat = rustix::fs::statx(CWD, file, AtFlags::empty(), StatxFlags::TYPE);
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
