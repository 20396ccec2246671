//! What the mounts of branches mean for a pool, before it is mounted and while it serves.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use strandfs_options::branch::reach;
use strandfs_options::{CrossMounts, Settings};

use crate::base::status::MountBelow;
use crate::state::mounts::access_times;
use crate::state::mounts::{Forbids, MountEntry, Table, judge};

/// What there is to know before a pool is mounted.
pub struct Survey {
    /// What all branches forbid, so that the pool's mount can for them.
    pub forbidden_by_all: Forbids,
    /// For the user, a sentence each.
    pub said: Vec<String>,
}

/// The mount that a directory is on; none of one that does not answer.
fn line_of<'a>(table: &'a Table, path: &Path) -> Option<&'a MountEntry> {
    if reach::is_silent(path) {
        return None;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(root.as_fd(), c"", flags, StatxFlags::MNT_ID).ok()?;
    table.line(stat.stx_mnt_id)
}

/// Whether a mount below a branch is crossed.
fn is_crossed(line: &MountEntry, rule: CrossMounts) -> bool {
    match rule {
        CrossMounts::System => !line.is_users(),
        CrossMounts::None => false,
        CrossMounts::All => true,
    }
}

/// Looks at the branches; `allowed` is what the pool's mount is not to forbid anyway.
pub fn survey(settings: &Settings, allowed: Forbids) -> Survey {
    let table = Table::read();
    let paths = || {
        settings
            .pool
            .branches
            .iter()
            .map(|branch| branch.path.as_path())
    };
    // A branch that is not there yet may come with any flags.
    let found: Vec<Option<Forbids>> = paths()
        .map(|path| line_of(&table, path).map(|line| judge(Some(line)).1))
        .collect();
    let common = |all: Forbids, one: &Option<Forbids>| all & one.unwrap_or_default();
    let forbidden_by_all = match found.is_empty() {
        true => Forbids::empty(),
        false => found.iter().fold(Forbids::all(), common),
    };
    let mut said = Vec::new();
    let by_mount = forbidden_by_all & allowed;
    if !by_mount.is_empty() {
        let names = by_mount.names().join(",");
        said.push(format!(
            "all branches are mounted {names} (or a user's): so is the pool"
        ));
    }
    for (path, forbids) in paths().zip(&found) {
        let forbids = forbids.unwrap_or_default() & allowed.difference(by_mount);
        if forbids.is_empty() {
            continue;
        }
        let hidden = match forbids.intersects(Forbids::SUID | Forbids::DEV) {
            true => {
                "; set-id bits and device numbers there are not shown, unless the pool is mounted \
                 nosuid,nodev, too"
            }
            false => "",
        };
        said.push(format!(
            "branch {} is mounted {} (or a user's): so are its files in the pool{hidden}",
            path.display(),
            forbids.names().join(",")
        ));
    }
    let times = paths().filter_map(|path| Some((path, line_of(&table, path)?.access_times)));
    said.extend(access_times::without_effect(settings, times));
    for path in paths() {
        let mut closed: Vec<&MountEntry> = table.below(path).collect();
        closed.retain(|line| {
            !is_crossed(line, settings.health.cross_mounts) && !is_branch(settings, line)
        });
        said.extend(closed.into_iter().map(|line| {
            let by = match line.user {
                Some(user) if line.is_users() => format!(" by user {user}"),
                _ => String::new(),
            };
            format!(
                "branch {}: what is mounted on {}{by} is not part of it (cross-mounts={})",
                path.display(),
                line.mountpoint.display(),
                settings.health.cross_mounts
            )
        }));
    }
    Survey {
        forbidden_by_all,
        said,
    }
}

/// Whether a mount is a branch of its own.
fn is_branch(settings: &Settings, line: &MountEntry) -> bool {
    let mut paths = settings.pool.branches.iter().map(|branch| &branch.path);
    paths.any(|path| *path == line.mountpoint)
}

/// What status says of the mounts of one branch, whose root is on the mount `id`: what it forbids,
/// and what is mounted below it.
pub(crate) fn describe(
    table: &Table,
    path: &Path,
    id: u64,
    rule: CrossMounts,
) -> (Vec<String>, Vec<MountBelow>) {
    let forbids = table.line(id).map(|line| judge(Some(line)).1);
    let below = table
        .below(path)
        .map(|line| MountBelow {
            mountpoint: line.mountpoint.to_string_lossy().into_owned(),
            filesystem: line.kind.clone(),
            user: line.user,
            crossed: is_crossed(line, rule),
            forbids: owned(judge(Some(line)).1.names()),
        })
        .collect();
    (owned(forbids.unwrap_or_default().names()), below)
}

fn owned(words: Vec<&str>) -> Vec<String> {
    words.into_iter().map(str::to_owned).collect()
}
