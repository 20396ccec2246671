//! What is measured: the bare filesystem, strandfs in several modes, and its peers.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use strandfs_options::duration::format_duration;

use crate::error::BenchError;
use crate::scratch::Scratch;
use crate::tool;

/// How long a server may take to mount or to end. Far above what any needs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between looks.
const TICK: Duration = Duration::from_millis(5);

/// What a subject is made of.
#[derive(Clone, Debug)]
pub enum SubjectKind {
    /// The branch itself: what everything is compared with.
    Native,
    /// This program's pool with these options.
    Strandfs {
        /// The program.
        program: PathBuf,
        /// `-o`.
        options: String,
    },
    /// mergerfs, any version.
    Mergerfs {
        /// The program.
        program: PathBuf,
        /// `-o`.
        options: String,
    },
    /// unionfs-fuse, copy-on-write.
    UnionfsFuse {
        /// The program.
        program: PathBuf,
    },
    /// fuse-overlayfs; the last branch is the upper one.
    FuseOverlayfs {
        /// The program.
        program: PathBuf,
    },
    /// The branch with a round trip before every answer.
    Far {
        /// This program.
        program: PathBuf,
        /// How long that takes.
        round_trip: Duration,
    },
    /// The kernel's overlayfs, the nearest thing to a limit for a union; root only.
    Overlayfs,
}

/// One column of the table.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name there.
    pub name: String,
    /// What it is made of.
    pub kind: SubjectKind,
    /// Over how many branches.
    pub branches: usize,
}

/// A subject in place. Ends its mount and its server when dropped.
pub struct Mounted {
    /// The subject.
    pub subject: Subject,
    /// Where to work.
    pub root: PathBuf,
    /// Its server, for those that have one.
    server: Option<Child>,
    is_mount: bool,
    /// The command that made it, for a reader who repeats it.
    command: Option<String>,
}

/// Whose work a subject is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // The names say it.
pub enum Family {
    Native,
    Strandfs,
    Mergerfs,
    #[default]
    Other,
}

impl Subject {
    /// Whose work it is.
    pub fn family(&self) -> Family {
        match self.kind {
            SubjectKind::Native => Family::Native,
            SubjectKind::Strandfs { .. } => Family::Strandfs,
            SubjectKind::Mergerfs { .. } => Family::Mergerfs,
            SubjectKind::UnionfsFuse { .. }
            | SubjectKind::Far { .. }
            | SubjectKind::FuseOverlayfs { .. }
            | SubjectKind::Overlayfs => Family::Other,
        }
    }

    /// Its mount options, as given.
    fn options(&self) -> &str {
        match &self.kind {
            SubjectKind::Strandfs { options, .. } | SubjectKind::Mergerfs { options, .. } => {
                options
            }
            _ => "",
        }
    }

    /// Whether there is no result without it.
    pub(crate) fn is_needed(&self) -> bool {
        matches!(self.family(), Family::Native | Family::Strandfs)
    }

    /// Makes the branches in `scratch` and mounts the subject over them.
    ///
    /// # Errors
    /// [`BenchError::Mount`] with what the program said.
    pub fn mount(&self, scratch: &mut Scratch, number: usize) -> Result<Mounted, BenchError> {
        let own_tmpfs = rustix::process::geteuid().is_root();
        let mut branches = Vec::new();
        for branch in 0..self.branches {
            let top = scratch.branch(&format!("s{number}b{branch}"), own_tmpfs)?;
            let dir = top.join("branch");
            fs::create_dir(&dir).map_err(BenchError::io("making", &dir))?;
            branches.push(dir);
        }
        self.mount_over(&branches, scratch, &format!("s{number}"))
    }

    /// Mounts the subject over directories that exist; its mountpoint is `name` in `scratch`.
    ///
    /// # Errors
    /// [`BenchError::Mount`] with what the program said, [`BenchError::Usage`] without branches.
    pub fn mount_over(
        &self,
        branches: &[PathBuf],
        scratch: &Scratch,
        name: &str,
    ) -> Result<Mounted, BenchError> {
        let first = branches
            .first()
            .ok_or_else(|| BenchError::Usage("a subject needs a branch".to_owned()))?;
        let mut mounted = Mounted {
            subject: self.clone(),
            root: first.clone(),
            server: None,
            is_mount: false,
            command: None,
        };
        if matches!(self.kind, SubjectKind::Native) {
            return Ok(mounted);
        }
        mounted.root = scratch.dir(name)?;
        if matches!(self.kind, SubjectKind::Overlayfs) {
            let data = overlay_data(branches);
            self.mount_overlayfs(&data, &mounted.root)?;
            mounted.is_mount = true;
            let at = mounted.root.display();
            mounted.command = Some(format!("mount -t overlay -o {data} strandfs-bench {at}"));
            return Ok(mounted);
        }
        let log = scratch.path().join(format!("{name}.log"));
        let command = self.command(branches, &mounted.root);
        mounted.command = Some(words(&command));
        mounted.server = Some(self.start(&command, &log)?);
        mounted.is_mount = true;
        mounted.wait_until_served(&log)?;
        Ok(mounted)
    }

    fn start(&self, command: &Command, log: &Path) -> Result<Child, BenchError> {
        let file = File::create(log).map_err(BenchError::io("making", log))?;
        let errors = file.try_clone().map_err(BenchError::io("sharing", log))?;
        tool::server(command.get_program())?
            .args(command.get_args())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(|error| self.no_mount(format!("{:?}: {error}", command.get_program())))
    }

    fn command(&self, branches: &[PathBuf], root: &Path) -> Command {
        let joined = |mode: &str| {
            let named: Vec<String> = branches
                .iter()
                .map(|branch| format!("{}{mode}", branch.display()))
                .collect();
            named.join(":")
        };
        let mut command = match &self.kind {
            SubjectKind::Strandfs { program, options } => {
                let mut command = Command::new(program);
                command
                    .args(["mount", "-f", "-o", &with_room(options)])
                    .args(branches.iter().map(|it| as_branch(it)));
                command
            }
            SubjectKind::Mergerfs { program, options } => {
                let mut command = Command::new(program);
                command.args(["-f", "-o", &with_room(options), &joined("")]);
                command
            }
            SubjectKind::UnionfsFuse { program } => {
                let mut command = Command::new(program);
                command.args(["-f", "-o", "cow", &joined("=RW")]);
                command
            }
            SubjectKind::FuseOverlayfs { program } => {
                let mut command = Command::new(program);
                command.args(["-f", "-o", &overlay_data(branches)]);
                command
            }
            SubjectKind::Far {
                program,
                round_trip,
            } => {
                let mut command = Command::new(program);
                command
                    .args(["bench", "far", "--round-trip"])
                    .arg(format_duration(*round_trip))
                    .args(branches);
                command
            }
            // Neither has a program; see `mount`.
            SubjectKind::Native | SubjectKind::Overlayfs => Command::new("false"),
        };
        command.arg(root);
        command
    }

    fn mount_overlayfs(&self, data: &str, root: &Path) -> Result<(), BenchError> {
        let data =
            std::ffi::CString::new(data).map_err(|error| self.no_mount(error.to_string()))?;
        mount(
            "strandfs-bench",
            root,
            "overlay",
            MountFlags::empty(),
            Some(data.as_c_str()),
        )
        .map_err(|errno| self.no_mount(errno.to_string()))
    }

    fn no_mount(&self, why: String) -> BenchError {
        BenchError::Mount {
            subject: self.name.clone(),
            why,
        }
    }
}

/// A command as one would type it; scratch paths and options need no quotes.
fn words(command: &Command) -> String {
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    let all: Vec<_> = all.map(|it| it.to_string_lossy()).collect();
    all.join(" ")
}

/// The branches of a benchmark are small; no policy is to pass over them for that.
fn with_room(options: &str) -> String {
    match options {
        "" => "minfreespace=0".to_owned(),
        given => format!("{given},minfreespace=0"),
    }
}

/// `lowerdir=…,upperdir=…,workdir=…`; an overlay needs at least one lower directory.
fn overlay_data(branches: &[PathBuf]) -> String {
    let Some((upper, lower)) = branches.split_last() else {
        return String::new();
    };
    let beside = |name: &str| {
        let dir = upper.with_file_name(name);
        // If it cannot be made the mount says so.
        let _ = fs::create_dir_all(&dir);
        dir
    };
    let lower: Vec<String> = match lower {
        [] => vec![beside("empty").display().to_string()],
        lower => lower.iter().map(|it| it.display().to_string()).collect(),
    };
    format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.join(":"),
        upper.display(),
        beside("work").display()
    )
}

impl Mounted {
    fn wait_until_served(&mut self, log: &Path) -> Result<(), BenchError> {
        let deadline = Instant::now() + PATIENCE;
        while !is_mounted(&self.root) {
            let ended = match &mut self.server {
                Some(server) => server.try_wait().ok().flatten(),
                None => None,
            };
            if ended.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(log).unwrap_or_default();
                let line = said.lines().last().unwrap_or("no word from its server");
                return Err(self.subject.no_mount(line.to_owned()));
            }
            std::thread::sleep(TICK);
        }
        // The first answer also waits for the server to have agreed with the kernel.
        fs::metadata(&self.root).map_err(BenchError::io("looking at", &self.root))?;
        Ok(())
    }

    /// How it is described in a result.
    pub fn facts(&self) -> crate::result::Subject {
        crate::result::Subject {
            name: self.subject.name.clone(),
            family: self.subject.family(),
            branches: self.subject.branches,
            options: self.subject.options().to_owned(),
            commands: self.command.iter().cloned().collect(),
            ..crate::result::Subject::default()
        }
    }

    /// How the requests of a pool come, as its server says; `None` for other subjects.
    pub fn transport(&self) -> Option<String> {
        let SubjectKind::Strandfs { program, .. } = &self.subject.kind else {
            return None;
        };
        let status = Command::new(program)
            .args(["status", "--json"])
            .arg(&self.root)
            .output()
            .ok()?;
        let pools: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
        let named = pools.pointer("/0/connection/transport")?;
        named.as_str().map(str::to_owned)
    }

    /// The server's process, for those that have one.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mount && unmount_at(&self.root).is_err() {
            // Busy, or gone already: out of sight now, ended when its last user leaves.
            let _ = unmount(&self.root, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        let Some(server) = &mut self.server else {
            return;
        };
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(server.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(TICK);
        }
        let _ = server.kill();
        let _ = server.wait();
    }
}

/// A path as a branch is named: what has a meaning there stands behind a backslash.
fn as_branch(path: &Path) -> OsString {
    let mut name = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        if b"\\:,=*?[]{}".contains(&byte) {
            name.push(b'\\');
        }
        name.push(byte);
    }
    OsString::from_vec(name)
}

/// Through fusermount3 where the caller may not unmount.
fn unmount_at(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) => {
            let status = Command::new("fusermount3").arg("-u").arg(path).status()?;
            status
                .success()
                .then_some(())
                .ok_or_else(|| io::Error::other("fusermount3 failed"))
        }
        other => Ok(other?),
    }
}

fn is_mounted(path: &Path) -> bool {
    crate::storage::mountpoints().iter().any(|it| it == path)
}

/// The first program of this name on the path.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_of_one_branch_has_an_empty_layer_below() {
        let dir = std::env::temp_dir().join(format!("strandfs-overlay-{}", std::process::id()));
        fs::create_dir_all(dir.join("branch")).unwrap();
        let data = overlay_data(&[dir.join("branch")]);
        let at = dir.display();
        assert_eq!(
            data,
            format!("lowerdir={at}/empty,upperdir={at}/branch,workdir={at}/work")
        );
        assert!(dir.join("empty").is_dir() && dir.join("work").is_dir());
        fs::remove_dir_all(dir).unwrap();
    }

    /// Nothing was found mounted below a directory with a blank, and servers were waited for in vain.
    #[test]
    fn a_mount_below_a_name_with_a_blank_is_seen() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
        mount(
            "strandfs-test",
            dir.path(),
            "tmpfs",
            MountFlags::empty(),
            None,
        )
        .unwrap();
        let is_seen = is_mounted(dir.path());
        unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        assert!(is_seen);
        assert!(!is_mounted(dir.path()));
    }

    /// A target `./xfs:2G` was taken for two branches.
    #[test]
    fn a_directory_is_one_branch_whatever_its_name() {
        let found = as_branch(Path::new("/mnt/xfs:2G/a b/{x}=1"));
        assert_eq!(found, "/mnt/xfs\\:2G/a b/\\{x\\}\\=1");
    }

    #[test]
    fn options_keep_their_order() {
        assert_eq!(with_room(""), "minfreespace=0");
        assert_eq!(with_room("a=1"), "a=1,minfreespace=0");
    }
}
