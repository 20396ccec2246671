//! `branches-mount-timeout`: branches that are mounts of their own, and not there yet.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use strandfs_options::branch::reach;
use strandfs_options::fstab::FstabLine;
use strandfs_options::words::OnMissing;
use strandfs_options::{BranchSpec, Settings};
use strandfs_pool::base::branch;

use crate::failure::Failure;
use crate::{mounts, notify};

/// Pause between looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Names that tell a directory apart, as a file in it or as an extended attribute `user.NAME`.
const BELONGS: [&str; 2] = ["strandfs.branch", "mergerfs.branch"];
const WAITS: [&str; 2] = ["strandfs.branch_mounts_here", "mergerfs.branch_mounts_here"];

/// What came of waiting.
#[derive(Default)]
pub struct Waited {
    /// For the user.
    pub notices: Vec<String>,
    /// `mount` commands that have not come to an end.
    pub unfinished: Vec<Child>,
}

impl Waited {
    /// Waits for what is unfinished in the background, so that it is not left as a zombie. Once
    /// signals are in charge of: a thread started before would be killed by them.
    pub fn reap(self) {
        if self.unfinished.is_empty() {
            return;
        }
        let wait = || {
            for mut child in self.unfinished {
                let _ = child.wait();
            }
        };
        // Without the thread they are reaped when the server ends.
        let _ = thread::Builder::new()
            .name("strandfs-reaper".to_owned())
            .spawn(wait);
    }
}

/// Has the branches mounted and waits for them, if the options say so.
///
/// # Errors
/// One is not mounted in time and `branches-mount-timeout-fail` is set.
pub fn wait(settings: &Settings, mountpoint: &Path) -> Result<Waited, Failure> {
    let timeout = settings.pool.branches_mount_timeout;
    let mut waited = Waited::default();
    // What does not answer is told so by its own sentence, and not asked here.
    let branches = settings.pool.branches.iter();
    let paths = branches.map(|branch| branch.path.as_path());
    let silent = reach::find_silent(paths, settings.pool.patience());
    if let [path, ..] = silent[..]
        && settings.pool.branches_mount_timeout_fail
        && !timeout.is_zero()
    {
        let (path, why) = (path.to_owned(), "it does not answer".to_owned());
        return Err(Failure::BranchMissing { path, why });
    }
    let outcome = match timeout.is_zero() {
        true => Ok(()),
        false => wait_for_mounts(settings, mountpoint, &mut waited),
    };
    wait_for_marks(settings);
    outcome?;
    waited.notices.extend(bare_mountpoints(settings));
    Ok(waited)
}

/// Branches that fstab mounts something on, and nothing is: the pool was mounted before its disks.
fn bare_mountpoints(settings: &Settings) -> Vec<String> {
    let text = std::fs::read_to_string("/etc/fstab").unwrap_or_default();
    let lines = text.lines().filter_map(|line| FstabLine::parse(line).ok()?);
    // Where something is mounted nothing is bare, and it need not answer.
    let mounted = mounts::list().unwrap_or_default();
    let is_mounted = |path: &Path| mounted.iter().any(|it| it.mountpoint == path);
    let of_disks: Vec<PathBuf> = lines
        .filter(|line| !is_mounted(Path::new(&line.target)))
        .map(|line| std::fs::canonicalize(&line.target).unwrap_or(line.target.into()))
        .collect();
    let branches = settings.pool.branches.iter().map(|branch| &branch.path);
    let bare = branches.filter(|path| {
        if reach::is_silent(path) {
            return false;
        }
        let belongs = BELONGS.iter().any(|name| is_marked(path, name));
        of_disks.contains(path) && is_mount_root(path) == Some(false) && !belongs
    });
    let say = |path: &PathBuf| {
        let path = path.display();
        format!(
            "branch {path}: nothing is mounted there, though /etc/fstab names something: new files go \
             to the bare directory. Unmount the pool, mount {path} and mount the pool again; for the next \
             start, give the pool's line the option x-systemd.requires-mounts-for={path}, or its service \
             (systemctl edit strandfs@NAME) RequiresMountsFor={path}"
        )
    };
    bare.map(say).collect()
}

/// Waits for branches that lack their mark, if the pool is not to start without them.
fn wait_for_marks(settings: &Settings) {
    let Some(marker) = &settings.health.branch_marker else {
        return;
    };
    if settings.health.on_missing != OnMissing::Wait {
        return;
    }
    for branch in &settings.pool.branches {
        if reach::is_silent(&branch.path) {
            continue;
        }
        let is_there = || {
            let root = branch::open(&branch.path);
            root.is_ok_and(|root| branch::is_marked(root.as_fd(), marker))
        };
        if is_there() {
            continue;
        }
        let path = branch.path.display();
        notify::waiting();
        say!("waiting for branch {path}: it has no {marker}, so it is not mounted");
        while !is_there() {
            thread::sleep(PAUSE);
        }
    }
}

fn wait_for_mounts(
    settings: &Settings,
    mountpoint: &Path,
    waited: &mut Waited,
) -> Result<(), Failure> {
    let timeout = settings.pool.branches_mount_timeout;
    let deadline = Instant::now() + timeout;
    let beneath = beneath(mountpoint);
    let mut missing: Vec<&BranchSpec> = settings.pool.branches.iter().collect();
    missing.retain(|branch| !reach::is_silent(&branch.path));
    missing.retain(|branch| !is_mounted(&branch.path, &beneath));
    if !missing.is_empty() {
        notify::waiting();
    }
    for branch in &missing {
        match start_mount(&branch.path) {
            Ok(child) => waited.unfinished.push(child),
            Err(error) => {
                let path = branch.path.display();
                waited
                    .notices
                    .push(format!("running `mount {path}`: {error}"));
            }
        }
    }
    loop {
        missing.retain(|branch| !is_mounted(&branch.path, &beneath));
        waited
            .unfinished
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        if missing.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            break;
        }
        thread::sleep(PAUSE);
    }
    let why = format!(
        "nothing was mounted on it within {}; run `mount` on it to see why, or tell that it is no \
         mountpoint by a file .strandfs.branch in it",
        strandfs_options::duration::format_duration(timeout)
    );
    for branch in missing {
        let path = branch.path.clone();
        if settings.pool.branches_mount_timeout_fail {
            return Err(Failure::BranchMissing { path, why });
        }
        waited
            .notices
            .push(format!("branch {}: {why}", path.display()));
    }
    Ok(())
}

/// Has `mount` do what fstab says of the path. Its words would mix with ours; the user is told to
/// run it again to see them.
fn start_mount(path: &Path) -> std::io::Result<Child> {
    Command::new("mount")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// The filesystems that bare directories lie on: those of the pool's mountpoint and of all directories
/// above it, since the mountpoint may be on a filesystem of its own.
fn beneath(mountpoint: &Path) -> Vec<u64> {
    let stats = mountpoint.ancestors().map(std::fs::metadata);
    stats.flatten().map(|metadata| metadata.dev()).collect()
}

/// Whether what is at `path` is what belongs there: marked so, or something is mounted on it, or it is
/// on no filesystem that bare directories lie on.
fn is_mounted(path: &Path, beneath: &[u64]) -> bool {
    if BELONGS.iter().any(|name| is_marked(path, name)) {
        return true;
    }
    if WAITS.iter().any(|name| is_marked(path, name)) {
        return false;
    }
    std::fs::metadata(path).is_ok_and(|metadata| {
        metadata.is_dir()
            && (!beneath.contains(&metadata.dev()) || is_mount_root(path) == Some(true))
    })
}

fn is_marked(path: &Path, name: &str) -> bool {
    let attribute = format!("user.{name}");
    rustix::fs::getxattr(path, attribute.as_str(), &mut [0_u8; 0]).is_ok()
        || path.join(format!(".{name}")).exists()
}

/// Whether something is mounted on the directory; none where the kernel does not say (before Linux 5.8).
fn is_mount_root(path: &Path) -> Option<bool> {
    let flags = AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE).ok()?;
    let known = stat
        .stx_attributes_mask
        .contains(StatxAttributes::MOUNT_ROOT);
    known.then(|| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_counts_more_than_the_device() {
        let dir = tempfile::tempdir().unwrap();
        let here = std::fs::metadata(dir.path()).unwrap().dev();
        assert!(!is_mounted(dir.path(), &[here]));
        assert!(is_mounted(dir.path(), &[here + 1]));
        assert!(!is_mounted(&dir.path().join("missing"), &[here + 1]));
        std::fs::write(dir.path().join(".mergerfs.branch_mounts_here"), "").unwrap();
        assert!(!is_mounted(dir.path(), &[here + 1]));
        std::fs::write(dir.path().join(".strandfs.branch"), "").unwrap();
        assert!(is_mounted(dir.path(), &[here]));
    }
}
