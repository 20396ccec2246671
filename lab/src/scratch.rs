//! Everything a run makes: one directory, the filesystems mounted in it, and their end.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};

use crate::error::BenchError;
use crate::storage::mountpoints;

/// How the names of these directories begin.
const PREFIX: &str = "strandfs-bench-";
/// Where only root can exchange a directory.
const HOLD: &str = "/run";

/// A private directory. When dropped, what was mounted below it is unmounted and it is removed;
/// never removed while something is still mounted there.
pub struct Scratch {
    dir: Option<tempfile::TempDir>,
    path: PathBuf,
    mounted: Vec<PathBuf>,
    held: Option<Held>,
}

/// A directory in a place that others than root can change, reached by no name that they can exchange.
struct Held {
    parent: OwnedFd,
    name: OsString,
    shown: PathBuf,
}

impl Scratch {
    /// Makes one below `parent`. Where somebody else could exchange it for a directory or a link of
    /// their own, root works in it by a name below /run.
    ///
    /// # Errors
    /// `parent` cannot be written, or others can exchange it and a mount is refused.
    pub fn new(parent: &Path) -> Result<Self, BenchError> {
        // Words of their own name a directory that nobody has heard of.
        let failed =
            |error: io::Error| BenchError::io("making a directory in", parent)(error.kind());
        let place = fs::canonicalize(parent).map_err(failed)?;
        let is_root = rustix::process::geteuid().is_root();
        if is_root && !only_root_changes(&place).map_err(failed)? {
            return Self::hold(&place);
        }
        let builder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&place);
        let dir = builder.map_err(failed)?;
        let path = fs::canonicalize(dir.path()).map_err(BenchError::io("resolving", dir.path()))?;
        Ok(Self {
            dir: Some(dir),
            path,
            mounted: Vec::new(),
            held: None,
        })
    }

    fn hold(place: &Path) -> Result<Self, BenchError> {
        let failed =
            |error: rustix::io::Errno| BenchError::io("making a directory in", place)(error);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(place, flags, Mode::empty()).map_err(failed)?;
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(HOLD);
        let hold = Path::new(HOLD);
        let dir = dir.map_err(BenchError::io("making a directory in", hold))?;
        let name = dir.path().file_name().unwrap_or_default().to_owned();
        rustix::fs::mkdirat(&parent, &name, Mode::RWXU).map_err(failed)?;
        let held = Held {
            shown: place.join(&name),
            parent,
            name,
        };
        let opened = rustix::fs::openat(
            &held.parent,
            &held.name,
            flags | OFlags::NOFOLLOW,
            Mode::empty(),
        );
        let taken = opened.map_err(BenchError::io("opening", &held.shown));
        let taken = taken.and_then(|own| {
            held.check(own.as_fd())?;
            held.take(&own, dir.path())
        });
        if let Err(error) = taken {
            held.remove();
            return Err(error);
        }
        Ok(Self {
            path: dir.path().to_path_buf(),
            dir: Some(dir),
            mounted: Vec::new(),
            held: Some(held),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new directory in it.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn dir(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(BenchError::io("making", &path))?;
        Ok(path)
    }

    /// A new directory for a branch: a tmpfs of its own for root (a filesystem watched for one
    /// subject must not see another's changes), else a plain directory.
    ///
    /// # Errors
    /// Those of mkdir(2) and mount(2).
    pub fn branch(&mut self, name: &str, own_tmpfs: bool) -> Result<PathBuf, BenchError> {
        let path = self.dir(name)?;
        if own_tmpfs {
            mount(
                "strandfs-bench",
                &path,
                "tmpfs",
                MountFlags::empty(),
                Some(c"size=80%"),
            )
            .map_err(BenchError::io("mounting a tmpfs on", &path))?;
            self.mounted.push(path.clone());
        }
        Ok(path)
    }
}

impl Held {
    /// Refuses a directory that somebody put in the place of the one that was made.
    fn check(&self, own: BorrowedFd<'_>) -> Result<(), BenchError> {
        let failed = |errno| BenchError::io("looking at", &self.shown)(errno);
        if rustix::fs::fstat(own).map_err(failed)?.st_uid == 0 {
            return Ok(());
        }
        // Network mounts and FAT give what root makes to others: then they give a file to others, too.
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(own, "owner", flags, Mode::RUSR).map_err(failed)?;
        let owner = rustix::fs::fstat(&file).map_err(failed)?.st_uid;
        let _ = rustix::fs::unlinkat(own, "owner", AtFlags::empty());
        match owner {
            0 => Err(BenchError::Usage(format!(
                "{}: somebody exchanged the directory that was just made there",
                self.shown.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Mounts the directory where nobody else can exchange it. No link is followed in it.
    fn take(&self, own: &OwnedFd, at: &Path) -> Result<(), BenchError> {
        let fd = format!("/proc/self/fd/{}", own.as_raw_fd());
        let flags =
            MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOSYMFOLLOW;
        let mounted = mount_bind(fd, at).and_then(|()| {
            mount_remount(at, flags, "").inspect_err(|_| {
                let _ = unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            })
        });
        mounted.map_err(|errno| {
            BenchError::Usage(format!(
                "others than root can exchange {}, and a mount that keeps hold of it is refused ({errno}): run \
                 this as the user whose directory it is, or name a directory that only root can change",
                self.shown.display()
            ))
        })
    }

    /// Only an empty directory of this name: somebody may have put another there.
    fn remove(&self) {
        if let Err(errno) = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR) {
            eprintln!("strandfs: removing {}: {errno}", self.shown.display());
        }
    }
}

/// Whether nobody but root can rename or replace `path` or a directory above it. `path` holds no links.
fn only_root_changes(path: &Path) -> io::Result<bool> {
    for dir in path.ancestors() {
        let found = fs::symlink_metadata(dir)?;
        let (group_or_others, sticky) = (0o022, 0o1000);
        let is_shared = found.mode() & group_or_others != 0 && found.mode() & sticky == 0;
        if found.uid() != 0 || is_shared {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what is in a directory.
fn empty(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in self.mounted.iter().rev() {
            let _ = unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        let is_below = |it: &PathBuf| it.starts_with(&self.path) && *it != self.path;
        let Some(dir) = self.dir.take() else {
            return;
        };
        if mountpoints().iter().any(is_below) {
            eprintln!(
                "strandfs: left in place, still mounted below: {}",
                dir.keep().display()
            );
            return;
        }
        let Some(held) = &self.held else {
            return;
        };
        if let Err(error) = empty(&self.path) {
            eprintln!("strandfs: emptying {}: {error}", held.shown.display());
        }
        // Lazily: an indexer that looks at it must not keep it.
        if let Err(errno) = unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            eprintln!("strandfs: unmounting {}: {errno}", dir.keep().display());
            return;
        }
        held.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_leaves_nothing() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let path = scratch.path().to_path_buf();
        fs::write(scratch.dir("a").unwrap().join("file"), b"x").unwrap();
        assert!(path.join("a/file").exists());
        drop(scratch);
        assert!(!path.exists());
    }

    /// Root measured in a user's directory; the user put another in the place of the one made there,
    /// with links, and root's file was overwritten.
    #[test]
    fn who_owns_the_directory_cannot_lead_what_root_writes_elsewhere() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let top = tempfile::tempdir().unwrap();
        let (home, victim) = (top.path().join("home"), top.path().join("victim"));
        fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
        fs::write(&victim, "root's").unwrap();
        let scratch = Scratch::new(&home).unwrap();
        let bare = scratch.dir("bare").unwrap();
        let entries = fs::read_dir(&home).unwrap().flatten();
        let made: Vec<PathBuf> = entries.map(|it| it.path()).collect();
        assert_eq!(made.len(), 1, "{made:?}");
        // What the user does.
        let gone = home.join("gone");
        fs::rename(&made[0], &gone).unwrap();
        fs::create_dir_all(made[0].join("bare")).unwrap();
        std::os::unix::fs::symlink(&victim, made[0].join("bare/data")).unwrap();

        fs::write(bare.join("data"), "measured").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");
        assert_eq!(
            fs::read_to_string(gone.join("bare/data")).unwrap(),
            "measured"
        );
        let path = scratch.path().to_path_buf();
        drop(scratch);
        assert!(!path.exists());
        assert!(victim.exists() && made[0].join("bare/data").is_symlink());
        assert_eq!(fs::read_dir(&gone).unwrap().count(), 0);
    }

    #[test]
    fn a_users_directory_is_left_as_it_was_found() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(home.path(), Some(65534), Some(65534)).unwrap();
        let scratch = Scratch::new(home.path()).unwrap();
        fs::write(scratch.dir("a").unwrap().join("file"), b"x").unwrap();
        let path = scratch.path().to_path_buf();
        drop(scratch);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        assert!(!path.exists());
    }
}
