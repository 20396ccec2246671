//! What must hold before anything is mounted.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use strandfs_options::branch::{nested, reach};
use strandfs_options::words::OnMissing;
use strandfs_options::{BranchMode, BranchSpec, Settings, duration};

use crate::failure::Failure;
use crate::mounts;

/// The mountpoint, absolute and without symlinks; a dead mount on it is cleared away.
///
/// # Errors
/// It does not exist, is no directory, or something is mounted on it already and `over` is false.
pub fn mountpoint(given: impl Into<PathBuf>, over: bool) -> Result<PathBuf, Failure> {
    let path = given.into();
    let refuse = |why: String| Failure::Mountpoint {
        path: path.clone(),
        why,
    };
    let dead = |errno: &std::io::Error| {
        errno.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
    };
    clear_killed(&path).map_err(|error| {
        refuse(format!(
            "its server was killed, cannot end, and cannot be unmounted ({error}); run `strandfs umount` on it as root"
        ))
    })?;
    if let Some(why) = mounts::hindrance(&path) {
        return Err(Failure::NoAnswer {
            mountpoint: path.clone(),
            why,
        });
    }
    if std::fs::metadata(&path).as_ref().is_err_and(dead) {
        let cleared = strandfs_fuse::recover_dead_mountpoint(&path);
        match cleared {
            Ok(_) => say!("cleared the dead mount at {}", path.display()),
            Err(error) => {
                return Err(refuse(format!(
                    "its server is dead and it cannot be unmounted ({error}); run `umount -l` on it as root"
                )));
            }
        }
    }
    let metadata = std::fs::metadata(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refuse(why_missing(&path)),
        _ => refuse(error.to_string()),
    })?;
    if !metadata.is_dir() {
        return Err(refuse(
            "it is not a directory; name an empty one".to_owned(),
        ));
    }
    let real = std::fs::canonicalize(&path).map_err(|error| refuse(error.to_string()))?;
    is_free(&real, over)?;
    Ok(real)
}

/// What a word for a mountpoint that does not exist may have been meant as.
fn why_missing(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.trim() != text && Path::new(text.trim()).is_dir() {
        return "it does not exist, but does without the blank at its end or beginning: take the blank away".to_owned();
    }
    "it does not exist; create the directory first".to_owned()
}

/// Clears away a mount whose server was killed together with its guardian, and cannot end: to ask
/// it anything would be to wait for ever. True if there was one.
///
/// # Errors
/// Those of unmounting.
pub fn clear_killed(mountpoint: &Path) -> std::io::Result<bool> {
    match strandfs_fuse::recover_killed_mountpoint(mountpoint) {
        Ok(cleared) => {
            if cleared {
                say!(
                    "aborted and cleared the mount at {}: its server was killed and could not end",
                    mountpoint.display()
                );
            }
            Ok(cleared)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a pool may be mounted here.
///
/// # Errors
/// One is mounted already and `over` is false.
pub fn is_free(mountpoint: &Path, over: bool) -> Result<(), Failure> {
    let held = mounts::holder(mountpoint);
    let held = held.map_err(Failure::system("reading /proc/self/mountinfo"))?;
    match held.filter(|_| !over) {
        None => Ok(()),
        Some(kind) => Err(Failure::Held {
            path: mountpoint.to_path_buf(),
            kind,
        }),
    }
}

/// The branches against the mountpoint and each other.
///
/// # Errors
/// None given, one twice, or one equal to, inside or around the mountpoint.
pub fn branches(settings: &Settings, mountpoint: &Path) -> Result<(), Failure> {
    if settings.pool.branches.is_empty() {
        return Err(Failure::NoBranches);
    }
    let mut seen: Vec<((u64, u64), &Path)> = Vec::new();
    let identity = |path: &Path| {
        let metadata = (!reach::is_silent(path)).then(|| std::fs::metadata(path));
        metadata?.map(|m| (m.dev(), m.ino())).ok()
    };
    let target = identity(mountpoint);
    for branch in &settings.pool.branches {
        let path = branch.path.as_path();
        let refuse = |why: String| {
            Err(Failure::Branch {
                path: path.to_path_buf(),
                why,
            })
        };
        let found = identity(path);
        if path == mountpoint || (found.is_some() && found == target) {
            return refuse("it is the mountpoint itself; mount the pool elsewhere".to_owned());
        }
        if path.starts_with(mountpoint) {
            return refuse(format!(
                "it lies inside the mountpoint {} and would be hidden by the mount; mount the pool elsewhere",
                mountpoint.display()
            ));
        }
        if mountpoint.starts_with(path) {
            return refuse(format!(
                "the mountpoint {} lies inside it, so the pool would contain itself; mount the pool elsewhere",
                mountpoint.display()
            ));
        }
        let Some(found) = found else { continue };
        if let Some((_, first)) = seen.iter().find(|(known, _)| *known == found) {
            return refuse(format!(
                "it is the same directory as {}; name it once",
                first.display()
            ));
        }
        seen.push((found, path));
    }
    Ok(())
}

/// Branches that did not answer, a sentence each for those that the pool is mounted without.
///
/// # Errors
/// There is one, and the pool is not to be mounted without it (`on-missing`).
pub fn silent(settings: &Settings) -> Result<Vec<String>, Failure> {
    let waited = duration::format_duration(settings.pool.patience());
    let branches = settings.pool.branches.iter().map(|branch| &branch.path);
    let mut said = Vec::new();
    for path in branches.filter(|path| reach::is_silent(path)) {
        if settings.health.on_missing == OnMissing::Fail {
            return Err(Failure::BranchMissing {
                path: path.clone(),
                why: format!(
                    "it does not answer (waited {waited}); see whether the disk or machine it is on can \
                     be reached (dmesg), or have the pool mounted without it (on-missing=degrade)"
                ),
            });
        }
        said.push(format!(
            "branch {}: it does not answer (waited {waited}): the pool is mounted without it until it does",
            path.display()
        ));
    }
    Ok(said)
}

/// Whether the directory that stands last can be meant as the mountpoint. It is hidden by the mount,
/// so one that holds files, behind one that looks like a mountpoint, was most likely meant to be a
/// branch.
///
/// # Errors
/// It holds files and the first directory is empty, it is a filesystem with files, or a disk is mounted on
/// it; `nonempty`, `mount-over` and `lazy-umount-mountpoint` say that this is meant.
pub fn order(settings: &Settings, mountpoint: &Path) -> Result<(), Failure> {
    let insists = settings.mount.occupied.nonempty || settings.mount.occupied.by_pool();
    if insists {
        return Ok(());
    }
    let refuse = |why: String| Failure::Order {
        path: mountpoint.to_path_buf(),
        why,
    };
    if !has_entries(mountpoint) {
        return match whole_disk(mountpoint) {
            None => Ok(()),
            Some(disk) => Err(refuse(format!(
                "{} is mounted there, and the pool would hide it: the mountpoint comes last, behind all \
                 branches (-o nonempty, if this is meant)",
                disk.display()
            ))),
        };
    }
    if !lies_in_parent(mountpoint) {
        return Err(refuse(
            "a filesystem with files is mounted there, and the pool would hide them: the mountpoint \
             comes last, behind all branches (-o nonempty, if this is meant)"
                .to_owned(),
        ));
    }
    let first = settings
        .pool
        .branches
        .first()
        .map(|branch| branch.path.as_path());
    let first = first.filter(|first| !reach::is_silent(first));
    let Some(first) = first.filter(|first| lies_in_parent(first) && !has_entries(first)) else {
        return Ok(());
    };
    let others = settings.pool.branches.iter().skip(1);
    let others = others
        .map(|branch| branch.path.as_path())
        .chain([mountpoint, first]);
    let words: Vec<String> = others.map(|path| path.display().to_string()).collect();
    Err(refuse(format!(
        "it holds files, which the pool would hide, and the first branch is empty: the mountpoint \
         comes last, as in `strandfs mount {}` (-o nonempty, if the order is meant)",
        words.join(" ")
    )))
}

/// What is allowed but seldom meant, a sentence each.
pub fn surprises(settings: &Settings, mountpoint: &Path) -> Vec<String> {
    let mut said = Vec::new();
    if !settings.mount.occupied.nonempty && lies_in_parent(mountpoint) && has_entries(mountpoint) {
        said.push(format!(
            "mountpoint {} is not empty: what is in it cannot be seen while the pool is mounted; \
             unmount the pool if it was to be a branch",
            mountpoint.display()
        ));
    }
    said.extend(nested(&settings.pool.branches));
    said.extend(takes_nothing_new(settings));
    said
}

/// What is said of a pool in which nothing can be made, though it is not mounted read-only.
fn takes_nothing_new(settings: &Settings) -> Option<String> {
    let branches = &settings.pool.branches;
    let is_open = |branch: &BranchSpec| branch.mode == BranchMode::ReadWrite;
    if settings.mount.flags.read_only || branches.iter().any(is_open) {
        return None;
    }
    let said = "nothing new can be made in the pool, since each branch is RO or NC: have one take new files \
                (PATH=RW), or mount with -o ro if that is meant";
    Some(said.to_owned())
}

/// Whether a directory is a plain one: nothing is mounted on it. On an automount the mount that is
/// being made would be waited for, so nobody may look into one.
fn lies_in_parent(directory: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let above = directory.parent().and_then(device);
    above.is_some() && above == device(directory)
}

/// The disk whose whole filesystem is mounted on a directory. A container is handed its directories by mounts
/// of a part of one.
fn whole_disk(directory: &Path) -> Option<PathBuf> {
    let is_here = |it: &mounts::Mounted| it.mountpoint == directory;
    let here = mounts::list().ok()?.into_iter().rfind(is_here)?;
    let is_disk = here.source.starts_with("/dev/") && !here.is_part;
    is_disk.then_some(here.source)
}

/// Whether a directory holds anything but what `mkfs` makes. An automount is taken for empty: looking
/// into it would wait for the very mount that is being made.
fn has_entries(directory: &Path) -> bool {
    let is_mounted = |it: &mounts::Mounted| it.mountpoint == directory;
    let kind = mounts::list()
        .ok()
        .and_then(|all| all.into_iter().rfind(is_mounted));
    if kind.is_some_and(|mounted| mounted.kind == b"autofs") {
        return false;
    }
    let holds = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name() != "lost+found")
    };
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.any(holds))
}
