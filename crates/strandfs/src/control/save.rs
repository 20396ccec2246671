//! `--save`: writing a change into the TOML file the pool was mounted from.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
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
            request => match edited(self.branches(&text)?, request)? {
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
            .and_then(|text| self.replace(&text).map_err(|error| error.to_string()));
        written.map_err(|why| Failure::Unsaved {
            path: self.path.clone(),
            why: format!("the pool is changed, but not the file ({why})"),
        })
    }

    /// A new file takes the place of the old one in one step.
    fn replace(&self, text: &str) -> std::io::Result<()> {
        let before = fs::metadata(&self.path)?;
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".new-{}", std::process::id()));
        let new = PathBuf::from(name);
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(text.as_bytes())?;
            if (before.uid(), before.gid()) != (file.metadata()?.uid(), file.metadata()?.gid()) {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
            file.set_permissions(before.permissions())?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            match self.path.parent() {
                Some(dir) => File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&new);
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
            // What may follow is a change of the list, by signs.
            let before = list_of(branches);
            one.set(name, Some(&before))
                .map_err(|error| error.to_string())?;
        }
        one.set_at_run_time(written, value.as_deref())
            .map_err(|error| error.to_string())?;
        values.push((name.to_owned(), one.get(name).unwrap_or_default()));
    }
    Ok(values)
}

/// The file's list with the one change; none if it says so already.
fn edited(mut list: Vec<RawBranch>, request: &Request) -> Result<Option<String>, String> {
    let place = |list: &[RawBranch], path: &Path| {
        let real = |path: &Path| fs::canonicalize(path).ok();
        let is = |raw: &RawBranch| {
            raw.literal().is_some_and(|it| {
                let it = Path::new(&it);
                it == path || real(it).is_some_and(|it| Some(it) == real(path))
            })
        };
        list.iter().position(is)
    };
    let before = list.clone();
    if before.is_empty() {
        return Err("it lists no branches, so the change cannot be written into it".to_owned());
    }
    match request {
        Request::BranchAdd {
            path,
            mode,
            minfreespace,
            first,
        } => {
            let path = path
                .to_str()
                .ok_or("the branch has a name that is not UTF-8")?;
            let mut new = RawBranch {
                pattern: branch::escape_path(path),
                mode: branch::BranchMode::ReadWrite,
                min_free_space: None,
            };
            change(&mut new, mode.as_deref(), minfreespace.as_deref())?;
            match place(&list, Path::new(path)).and_then(|at| list.get_mut(at)) {
                Some(known) => (known.mode, known.min_free_space) = (new.mode, new.min_free_space),
                None if *first => list.insert(0, new),
                None => list.push(new),
            }
        }
        Request::BranchRemove { path } => {
            place(&list, path).map(|at| list.remove(at));
        }
        Request::BranchSet {
            path,
            mode,
            minfreespace,
        } => {
            let place = place(&list, path).and_then(|at| list.get_mut(at));
            let known = place.ok_or_else(|| {
                format!(
                    "it does not list {} by itself: change it by hand",
                    path.display()
                )
            })?;
            change(known, mode.as_deref(), minfreespace.as_deref())?;
        }
        _ => {}
    }
    if list.is_empty() {
        return Err("no branch would be left in it".to_owned());
    }
    Ok((list != before || before.iter().any(|it| it.literal().is_none())).then(|| list_of(&list)))
}

fn change(
    branch: &mut RawBranch,
    mode: Option<&str>,
    minfreespace: Option<&str>,
) -> Result<(), String> {
    if let Some(mode) = mode {
        branch.mode = mode.parse().map_err(|_| "mode: give RW, RO or NC")?;
    }
    branch.min_free_space = match minfreespace {
        None => branch.min_free_space,
        Some("default") => None,
        Some(size) => {
            let bad = |_| format!("minfreespace does not take {size:?}");
            Some(size.parse().map_err(bad)?)
        }
    };
    Ok(())
}

fn list_of(branches: &[RawBranch]) -> String {
    let item = |raw: &RawBranch| {
        let size = raw.min_free_space.map(|size| format!(",{size}"));
        let size = size.unwrap_or_default();
        format!("{}={}{size}", raw.pattern, raw.mode.name())
    };
    branches.iter().map(item).collect::<Vec<_>>().join(":")
}

/// Whether a mount covers the file alone: a rename cannot replace what is mounted.
fn is_mounted(file: &Path) -> bool {
    let stat = rustix::fs::statx(CWD, file, AtFlags::empty(), StatxFlags::TYPE);
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
