//! The workloads. Each checks its own work: a subject that loses a file is no faster for it.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::lgetxattr;

use super::tree;
use crate::error::BenchError;

/// One row of the table. The order is that of a repetition: some need what others made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // `describe` says it.
pub enum Workload {
    Create,
    OpenClose,
    StatWarm,
    StatMissing,
    LsCold,
    LsWarm,
    Rename,
    Unlink,
    Mkdir,
    Rmdir,
    Untar,
    FindCold,
    FindWarm,
    FindStatCold,
    FindStatWarm,
    GitStatusCold,
    GitStatusWarm,
    RmRf,
    #[serde(rename = "read-4k-1")]
    Read1,
    #[serde(rename = "read-4k-32")]
    Read32,
    #[serde(rename = "read-4k-1024")]
    Read1024,
}

/// What fio reads, in bytes.
const READ_BYTES: u64 = 64 << 20;
/// How long.
const READ_TIME: Duration = Duration::from_millis(500);

impl Workload {
    /// All, in their order.
    pub const ALL: [Workload; 21] = [
        Self::Create,
        Self::OpenClose,
        Self::StatWarm,
        Self::StatMissing,
        Self::LsCold,
        Self::LsWarm,
        Self::Rename,
        Self::Unlink,
        Self::Mkdir,
        Self::Rmdir,
        Self::Untar,
        Self::FindCold,
        Self::FindWarm,
        Self::FindStatCold,
        Self::FindStatWarm,
        Self::GitStatusCold,
        Self::GitStatusWarm,
        Self::RmRf,
        Self::Read1,
        Self::Read32,
        Self::Read1024,
    ];

    /// The name in tables and for `--only`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::OpenClose => "open-close",
            Self::StatWarm => "stat-warm",
            Self::StatMissing => "stat-missing",
            Self::LsCold => "ls-l-cold",
            Self::LsWarm => "ls-l-warm",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Mkdir => "mkdir",
            Self::Rmdir => "rmdir",
            Self::Untar => "untar",
            Self::FindCold => "find-cold",
            Self::FindWarm => "find-warm",
            Self::FindStatCold => "find-stat-cold",
            Self::FindStatWarm => "find-stat-warm",
            Self::GitStatusCold => "git-status-cold",
            Self::GitStatusWarm => "git-status-warm",
            Self::RmRf => "rm-rf",
            Self::Read1 => "read-4k-1",
            Self::Read32 => "read-4k-32",
            Self::Read1024 => "read-4k-1024",
        }
    }

    /// One line for the reader.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Create => "open with O_CREAT|O_EXCL and close, all names in one directory",
            Self::OpenClose => "open for reading and close, files that are known",
            Self::StatWarm => "lstat of names looked at before",
            Self::StatMissing => "lstat of names that do not exist, each once",
            Self::LsCold => {
                "list one directory, lstat, ask for a label and an ACL as ls does; nothing cached"
            }
            Self::LsWarm => "the same again",
            Self::Rename => "rename within a directory",
            Self::Unlink => "remove files",
            Self::Mkdir => "make directories",
            Self::Rmdir => "remove them",
            Self::Untar => "make a tree as tar does: write, owner, mode and time of each file",
            Self::FindCold => "walk that tree for its names alone; nothing cached",
            Self::FindWarm => "the same again",
            Self::FindStatCold => "walk that tree and lstat everything; nothing cached",
            Self::FindStatWarm => "the same when it was walked twice before",
            Self::GitStatusCold => "git status in a repository of that size; nothing cached",
            Self::GitStatusWarm => "the same when it was asked for twice before",
            Self::RmRf => "remove the tree",
            Self::Read1 => "fio: 4 KiB at random places past the page cache, one at a time",
            Self::Read32 => "the same, 32 at a time",
            Self::Read1024 => "the same, 1024 at a time",
        }
    }

    /// Whether it begins with empty kernel caches, which only root can bring about.
    pub fn is_cold(self) -> bool {
        matches!(
            self,
            Self::LsCold | Self::FindCold | Self::FindStatCold | Self::GitStatusCold
        )
    }

    /// Whether it runs git.
    pub fn needs_git(self) -> bool {
        matches!(self, Self::GitStatusCold | Self::GitStatusWarm)
    }

    /// Requests in flight, of those that fio makes.
    pub fn depth(self) -> Option<u32> {
        match self {
            Self::Read1 => Some(1),
            Self::Read32 => Some(32),
            Self::Read1024 => Some(1024),
            _ => None,
        }
    }

    /// Whether a program is started that does the work.
    pub fn is_a_program(self) -> bool {
        self.needs_git() || self.depth().is_some()
    }

    /// The workloads that make what this one works on.
    pub fn prerequisites(self) -> &'static [Workload] {
        match self {
            Self::OpenClose | Self::StatWarm | Self::StatMissing | Self::Rename => &[Self::Create],
            // Warm is what a cold listing left.
            Self::LsCold => &[Self::Create],
            Self::LsWarm => &[Self::Create, Self::LsCold],
            Self::Unlink => &[Self::Create, Self::Rename],
            Self::Rmdir => &[Self::Mkdir],
            Self::FindCold | Self::FindStatCold | Self::RmRf => &[Self::Untar],
            Self::FindWarm => &[Self::Untar, Self::FindCold],
            Self::FindStatWarm => &[Self::Untar, Self::FindStatCold],
            Self::GitStatusWarm => &[Self::GitStatusCold],
            Self::Create
            | Self::Mkdir
            | Self::Untar
            | Self::GitStatusCold
            | Self::Read1
            | Self::Read32
            | Self::Read1024 => &[],
        }
    }
}

/// A fresh directory on a subject, and the names used in it.
pub struct TestDevice<'a> {
    /// Removed by whoever made the ground.
    pub dir: PathBuf,
    /// How many files, directories or entries a workload works on.
    pub files: usize,
    /// Set when the user wants to stop.
    pub stop: &'a AtomicBool,
}

/// Work that was done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub seconds: f64,
    /// Entries it was done on.
    pub entries: usize,
}

/// Why a workload has no time.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// A system call failed.
    #[error(transparent)]
    Failed(#[from] BenchError),
    /// The result is wrong.
    #[error("{0}")]
    Wrong(String),
}

impl TestDevice<'_> {
    fn flat(&self) -> PathBuf {
        self.dir.join("flat")
    }

    fn dirs(&self) -> PathBuf {
        self.dir.join("dirs")
    }

    /// Where the tree is.
    pub fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    /// What fio reads.
    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Where the repository is.
    pub fn repository(&self) -> PathBuf {
        self.dir.join("repository")
    }

    /// Fails when the user wants to stop.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`].
    pub fn go_on(&self) -> Result<(), BenchError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(BenchError::Interrupted),
            false => Ok(()),
        }
    }

    /// Makes what `workload` finds in place, outside the measured time.
    ///
    /// # Errors
    /// [`Trouble`] with the calls it makes.
    pub fn prepare(&self, workload: Workload) -> Result<(), Trouble> {
        match workload {
            Workload::Create => make_dir(&self.flat())?,
            Workload::Mkdir => make_dir(&self.dirs())?,
            // Warm means: looked at once before.
            Workload::StatWarm => self.each("f", "looking at", stat)?,
            Workload::GitStatusCold => super::git::make_repository(self)?,
            // What reads a directory makes its access time stale (fuse_readdir in the kernel's
            // fs/fuse/readdir.c), so the second walk still asks for that of each.
            Workload::FindStatWarm => drop(tree::walk(&self.tree())?),
            Workload::GitStatusWarm => drop(super::git::status(self)?),
            Workload::Read1 | Workload::Read32 | Workload::Read1024 => self.make_data()?,
            _ => {}
        }
        Ok(())
    }

    /// Does the work and says how long it took, in seconds.
    ///
    /// # Errors
    /// [`Trouble`]; the time is then worth nothing.
    pub fn measure(&self, workload: Workload) -> Result<f64, Trouble> {
        let done = self.work(workload)?;
        self.check(workload, done.entries)?;
        Ok(done.seconds)
    }

    /// Does the work, which [`check`](Self::check) then looks at.
    ///
    /// # Errors
    /// [`Trouble`]; the time is then worth nothing.
    pub fn work(&self, workload: Workload) -> Result<Done, Trouble> {
        if let Some(depth) = workload.depth() {
            return self.read(depth);
        }
        let start = Instant::now();
        let entries = match workload {
            Workload::Create => self.each("f", "creating", create).map(|()| self.files)?,
            Workload::OpenClose => self.each("f", "opening", open).map(|()| self.files)?,
            Workload::StatWarm => self.each("f", "looking at", stat).map(|()| self.files)?,
            Workload::StatMissing => self
                .each("missing", "missing", |path| match stat(path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    Err(error) => Err(error),
                    Ok(()) => Err(io::Error::other("it exists")),
                })
                .map(|()| self.files)?,
            Workload::LsCold | Workload::LsWarm => self.list_long()?,
            Workload::Rename => self
                .each("f", "renaming", |path| fs::rename(path, renamed(path)))
                .map(|()| self.files)?,
            Workload::Unlink => self
                .each("f", "removing", |path| fs::remove_file(renamed(path)))
                .map(|()| self.files)?,
            Workload::Mkdir => self
                .each_in(&self.dirs(), "d", "making", |path| fs::create_dir(path))
                .map(|()| self.files)?,
            Workload::Rmdir => self
                .each_in(&self.dirs(), "d", "removing", |path| fs::remove_dir(path))
                .map(|()| self.files)?,
            Workload::Untar => tree::make(&self.tree(), self.files, self.stop)?,
            Workload::FindCold | Workload::FindWarm => tree::find(&self.tree())?,
            Workload::FindStatCold | Workload::FindStatWarm => tree::walk(&self.tree())?.files,
            Workload::GitStatusCold | Workload::GitStatusWarm => super::git::status(self)?,
            Workload::RmRf => {
                let tree = self.tree();
                fs::remove_dir_all(&tree).map_err(BenchError::io("removing", &tree))?;
                self.files
            }
            // See above.
            Workload::Read1 | Workload::Read32 | Workload::Read1024 => 0,
        };
        Ok(Done {
            start,
            seconds: start.elapsed().as_secs_f64(),
            entries,
        })
    }

    /// What fio reads, where it is not there yet.
    fn make_data(&self) -> Result<(), BenchError> {
        let path = self.data();
        if path.exists() {
            return Ok(());
        }
        let block = vec![b'x'; 1 << 20];
        let put = || -> io::Result<()> {
            let mut file = fs::File::create(&path)?;
            (0..READ_BYTES >> 20).try_for_each(|_| file.write_all(&block))?;
            file.sync_all()
        };
        put().map_err(BenchError::io("writing", &path))
    }

    /// The time that as many reads take as there are files.
    fn read(&self, depth: u32) -> Result<Done, Trouble> {
        let start = Instant::now();
        let found = crate::fio::run(&crate::fio::Job {
            kind: "randread",
            target: &self.data(),
            size: READ_BYTES,
            block: 4096,
            depth,
            time: READ_TIME,
        })?;
        Ok(Done {
            start,
            seconds: self.files as f64 / found.sample.value,
            entries: self.files,
        })
    }

    /// Looks at the result, outside the measured time.
    ///
    /// # Errors
    /// [`Trouble::Wrong`] where it is not what was asked for.
    pub fn check(&self, workload: Workload, done: usize) -> Result<(), Trouble> {
        if done != self.files {
            return Err(Trouble::Wrong(format!(
                "{done} of {} entries were found",
                self.files
            )));
        }
        let (dir, expected) = match workload {
            Workload::Create | Workload::Rename => (self.flat(), self.files),
            Workload::Unlink => (self.flat(), 0),
            Workload::Mkdir => (self.dirs(), self.files),
            Workload::Rmdir => (self.dirs(), 0),
            Workload::Untar => {
                return tree::verify(&self.tree(), self.files).map_err(Trouble::Wrong);
            }
            Workload::RmRf if self.tree().exists() => {
                return Err(Trouble::Wrong("the tree is still there".to_owned()));
            }
            _ => return Ok(()),
        };
        let found = fs::read_dir(&dir)
            .map_err(BenchError::io("listing", &dir))?
            .count();
        match found == expected {
            true => Ok(()),
            false => Err(Trouble::Wrong(format!(
                "{found} entries afterwards, not {expected}"
            ))),
        }
    }

    /// Calls `work` with every name in the flat directory.
    fn each(
        &self,
        prefix: &str,
        what: &'static str,
        work: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<(), BenchError> {
        self.each_in(&self.flat(), prefix, what, work)
    }

    fn each_in(
        &self,
        dir: &Path,
        prefix: &str,
        what: &'static str,
        work: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<(), BenchError> {
        let mut path = dir.to_path_buf();
        path.push("name");
        for number in 0..self.files {
            if number % 256 == 0 {
                self.go_on()?;
            }
            path.set_file_name(format!("{prefix}{number}"));
            work(&path).map_err(BenchError::io(what, &path))?;
        }
        Ok(())
    }

    /// What `ls -l` does for each entry.
    fn list_long(&self) -> Result<usize, BenchError> {
        let dir = self.flat();
        let mut count = 0;
        let mut value = [0u8; 64];
        let mut labels = true;
        for entry in fs::read_dir(&dir).map_err(BenchError::io("listing", &dir))? {
            let path = entry.map_err(BenchError::io("listing", &dir))?.path();
            tree::look_at(&path)?;
            // GNU ls asks no more of a filesystem that has no labels.
            labels = labels
                && lgetxattr(&path, c"security.selinux", &mut value[..])
                    != Err(rustix::io::Errno::OPNOTSUPP);
            // None has one, and some filesystems know none.
            let _ = lgetxattr(&path, c"system.posix_acl_access", &mut value[..]);
            count += 1;
        }
        Ok(count)
    }
}

fn make_dir(path: &Path) -> Result<(), BenchError> {
    fs::create_dir(path).map_err(BenchError::io("making", path))
}

fn create(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).open(path).map(drop)
}

fn open(path: &Path) -> io::Result<()> {
    fs::File::open(path).map(drop)
}

fn stat(path: &Path) -> io::Result<()> {
    // What stat(1) and find(1) ask for. The standard library asks for the birth time besides,
    // which costs a request of its own where it is known at all.
    Ok(rustix::fs::lstat(path).map(drop)?)
}

/// The name a file has after the rename workload.
fn renamed(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".renamed");
    path.with_file_name(name)
}
