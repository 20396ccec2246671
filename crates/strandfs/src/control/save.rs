//! `--save`: writing a change into the TOML file the pool was mounted from.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use strandfs_options::config::with_options;

use super::client;
use crate::failure::Failure;

/// A file that can be changed: found out before the pool is.
pub struct Target {
    path: PathBuf,
    text: String,
}

impl Target {
    /// The file that the pool mounted here was made from.
    ///
    /// # Errors
    /// There is none, it is no TOML file, or it cannot be written.
    pub fn of(mountpoint: &Path) -> Result<Target, Failure> {
        let path = client::value(mountpoint, "config")
            .map_err(Failure::system("asking the pool's server for its file"))?;
        let refuse = |why: &str| {
            Err(Failure::Save {
                path: PathBuf::from(&path),
                why: why.to_owned(),
            })
        };
        if path.is_empty() {
            let why = "the pool was mounted without a configuration file: --save needs one";
            return Err(Failure::Refused(why.to_owned()));
        }
        if !path.ends_with(".toml") {
            return refuse("only TOML files are written; change it by hand");
        }
        let read = || {
            // A file that is a symlink stays one.
            let real = fs::canonicalize(&path)?;
            OpenOptions::new().append(true).open(&real)?;
            Ok((fs::read_to_string(&real)?, real))
        };
        match read() {
            Ok((text, path)) => {
                // Refused now rather than after the change.
                let target = Target { path, text };
                target.with(&[]).map(|_| target)
            }
            Err(error) => {
                let error: std::io::Error = error;
                refuse(&error.to_string())
            }
        }
    }

    fn with(&self, options: &[(String, String)]) -> Result<String, Failure> {
        with_options(&self.text, options).map_err(|why| Failure::Save {
            path: self.path.clone(),
            why,
        })
    }

    /// Writes the options into the file, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written; the pool is changed nonetheless.
    pub fn save(&self, options: &[(String, String)]) -> Result<(), Failure> {
        let text = self.with(options)?;
        self.replace(&text).map_err(|error| Failure::Save {
            path: self.path.clone(),
            why: format!("the pool is changed, but not the file ({error})"),
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
