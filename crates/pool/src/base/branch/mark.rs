//! Telling a branch from what takes its place.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::base::branch::dead_server::{ask_server, state_gone, why_gone};
use crate::base::branch::drive::Drive;
use crate::base::branch::health::BranchState;
use crate::base::branch::{FilesystemId, Latency, Medium, RootId};
use crate::base::sys;

/// Who the root directory of a branch is.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Of the filesystem; another one after a disk was plugged in again.
    pub device: (u32, u32),
    mount: u64,
    ino: u64,
    id: RootId,
    handle: Option<(i32, Vec<u8>)>,
    filesystem: FilesystemId,
    drive: Option<Drive>,
    /// Type of the filesystem, and what is mounted.
    kind: String,
    source: String,
    latency: Latency,
    is_outrun: bool,
    /// It is where something is mounted.
    mount_root: bool,
}

/// What was mounted where a branch could not be asked who it is: its server was dead, or hung.
#[derive(Clone, Debug)]
pub struct Place {
    /// As for a [`Mark`]; empty if the mount was out of sight.
    kind: String,
    source: String,
    mount_root: bool,
}

impl Place {
    /// What is mounted on this directory, or around it where a dead server keeps it from being opened.
    pub fn of(path: &Path) -> Place {
        let opened = path
            .ancestors()
            .find_map(|dir| Some((dir, open(dir).ok()?)));
        let root = opened.as_ref().filter(|(dir, _)| *dir == path);
        let medium = opened.as_ref().map(|(_, dir)| Medium::of(dir.as_fd()));
        let (kind, source) = medium
            .map(|it| (it.filesystem, it.source))
            .unwrap_or_default();
        Place {
            kind,
            source,
            mount_root: root
                .is_some_and(|(_, dir)| look(dir.as_fd()).is_ok_and(|stat| is_mount_root(&stat))),
        }
    }

    /// What is mounted on this path, or around it, by the kernel's list alone: the directory does not
    /// answer.
    pub fn by_name(path: &Path) -> Place {
        let (medium, mount_root) = Medium::by_name(path).unwrap_or_default();
        let (kind, source) = medium;
        Place {
            kind,
            source,
            mount_root,
        }
    }

    /// Why a directory there is not what was: the one beneath the dead mount, or another filesystem.
    pub fn difference(&self, now: &Mark) -> Option<(BranchState, String)> {
        if self.mount_root && !now.mount_root {
            return Some((BranchState::Missing, "nothing is mounted there".to_owned()));
        }
        let same = match self.kind.as_str() {
            "" => now.is_served(),
            kind => (kind, &self.source) == (now.kind.as_str(), &now.source),
        };
        let (is, was) = (
            format!("{} {}", now.kind, now.source),
            format!("{} {}", self.kind, self.source),
        );
        let why = format!("{is} is mounted there now, where {was} was, which did not answer");
        (!same).then_some((BranchState::Replaced, why))
    }
}

/// What a branch's path leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// To the branch, by the mount it was opened through.
    Same,
    /// To the branch, by another mount of the same filesystem.
    Remounted,
    /// To something else or to nothing.
    Gone((BranchState, String)),
}

impl Mark {
    /// Who the directory behind `root` is. Asks its filesystem, which may take its time.
    ///
    /// # Errors
    /// Those of `statx(2)`; ENOTCONN, ECONNABORTED if its server is dead.
    pub fn of(root: BorrowedFd<'_>) -> sys::Result<Mark> {
        let stat = look(root)?;
        ask_server(root)?;
        let medium = Medium::of(root);
        let handle = sys::name_to_handle_fd(root).ok();
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let filesystem = FilesystemId::of(root, &stat, &medium);
        Ok(Mark {
            device,
            mount: stat.stx_mnt_id,
            ino: stat.stx_ino,
            id: RootId::new(&stat, &filesystem),
            handle: handle.map(|handle| (handle.kind(), handle.bytes().to_vec())),
            filesystem,
            drive: Drive::of(root, device, &medium),
            latency: medium.latency,
            is_outrun: medium.is_outrun,
            kind: medium.filesystem,
            source: medium.source,
            mount_root: is_mount_root(&stat),
        })
    }

    /// What it is made of.
    pub fn medium(&self) -> Medium {
        Medium {
            filesystem: self.kind.clone(),
            source: self.source.clone(),
            latency: self.latency,
            is_outrun: self.is_outrun,
        }
    }

    /// The number of the block device that it lies on; none without one, or with several.
    pub fn disk(&self) -> Option<(u32, u32)> {
        self.drive.as_ref().map(Drive::number)
    }

    /// What is written to disk of it.
    pub fn id(&self) -> &RootId {
        &self.id
    }

    /// What stays the same over mounts and restarts of the machine, for records: [`Mark::id`] and the
    /// type; where that is not certain (some network filesystems) also what is mounted.
    pub fn lasting(&self) -> String {
        match self.id.is_certain() {
            true => format!("{} {}", self.kind, self.id),
            false => format!("{} {} {}", self.kind, self.id, self.source),
        }
    }

    /// Whether its filesystem is a FUSE server's.
    pub fn is_served(&self) -> bool {
        self.kind.starts_with("fuse")
    }

    /// The mount it was opened through.
    pub fn mount(&self) -> u64 {
        self.mount
    }

    /// Whether this is the same directory of the same filesystem, perhaps mounted anew.
    pub fn same(&self, now: &Mark) -> bool {
        self.looks_like(now) && !self.is_copied_by(now)
    }

    /// The same by the same device number: what was known of its inodes by that still holds.
    pub fn never_left(&self, now: &Mark) -> bool {
        self.id.is_certain() && self.device == now.device && self.same(now)
    }

    /// Whether two paths lead to one directory.
    pub fn same_directory(&self, other: &Mark) -> bool {
        (self.device, self.ino) == (other.device, other.ino)
    }

    /// The same as far as its filesystem says. What has neither birth times nor an identifier that
    /// lasts (network filesystems, FUSE) must have the same name.
    fn looks_like(&self, now: &Mark) -> bool {
        let known_by = self.id.is_certain() || self.source == now.source;
        known_by
            && self.id.is(&now.id)
            && self.filesystem == now.filesystem
            && self.kind == now.kind
            && self.handle == now.handle
    }

    /// What looks the same is on another drive: written since, on one of them.
    fn is_copied_by(&self, now: &Mark) -> bool {
        let drives = (&self.drive, &now.drive);
        matches!(drives, (Some(was), Some(is)) if was.is_another(is))
    }

    /// What another directory is, in the place of this one.
    pub fn difference(&self, now: &Mark) -> (BranchState, String) {
        if self.mount_root && !now.mount_root {
            return (BranchState::Missing, "nothing is mounted there".to_owned());
        }
        let kind = &self.kind;
        let [was, is] = [self, now].map(|mark| format!("{} {}", mark.kind, mark.source));
        let text = if self.looks_like(now) {
            format!("a copy of its {kind} is there now, on another drive ({is}; it was on {was})")
        } else if (kind, self.mount_root) == (&now.kind, now.mount_root)
            && self.filesystem != now.filesystem
        {
            format!(
                "another {kind} is there now ({}; its own was {was})",
                now.source
            )
        } else {
            format!("its path leads to another directory now ({is} instead of {was})")
        };
        (BranchState::Replaced, text)
    }

    /// Looks where the path leads now. Nothing on the filesystem itself is asked for while the
    /// path still leads to it.
    pub fn check(&self, path: &Path, marker: Option<&str>) -> Found {
        let (root, stat) = match open(path).and_then(|root| look(root.as_fd()).map(|s| (root, s))) {
            Ok(found) => found,
            Err(errno) => return led_nowhere(errno),
        };
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        if (device, stat.stx_ino) == (self.device, self.ino) {
            if self.drive.as_ref().is_some_and(|drive| !drive.is_there()) {
                return gone("its device is gone".to_owned());
            }
            if let Some(marker) = marker
                && !is_marked(root.as_fd(), marker)
            {
                return gone(format!("its mark {marker} is gone"));
            }
            return match stat.stx_mnt_id == self.mount {
                true => Found::Same,
                false => Found::Remounted,
            };
        }
        match Mark::of(root.as_fd()) {
            Ok(now) if self.same(&now) => Found::Remounted,
            Ok(now) => Found::Gone(self.difference(&now)),
            Err(errno) => led_nowhere(errno),
        }
    }
}

/// A server that has no descriptor or memory left to look with has seen nothing that speaks against
/// the branch.
fn led_nowhere(errno: Errno) -> Found {
    match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Found::Same,
        _ => Found::Gone((state_gone(errno), why_gone(errno))),
    }
}

fn gone(reason: String) -> Found {
    Found::Gone((BranchState::Missing, reason))
}

/// Whether a branch's root has the file or the attribute that all branches have. Not one that any
/// user could have put there, as in a bare directory under a mountpoint: a file belongs to the
/// server, to root or to the owner of the branch's root; an attribute counts where not everyone can
/// write the directory.
pub fn is_marked(root: BorrowedFd<'_>, marker: &str) -> bool {
    let Ok(dir) = sys::statx_fd(root) else {
        return false;
    };
    let trusted = [0, rustix::process::geteuid().as_raw(), dir.stx_uid];
    if sys::statx_name(root, OsStr::new(marker)).is_ok_and(|file| trusted.contains(&file.stx_uid)) {
        return true;
    }
    let attribute = format!("user.{marker}");
    dir.stx_mode & 0o002 == 0 && sys::getxattr(root, OsStr::new(&attribute), None).is_ok()
}

/// A descriptor of the directory at `path` (`O_PATH`).
///
/// # Errors
/// Those of `open(2)`.
pub fn open(path: &Path) -> sys::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// What the kernel knows without asking a server.
fn look(root: BorrowedFd<'_>) -> sys::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::MNT_ID;
    rustix::fs::statx(root, c"", flags, wanted)
}

fn is_mount_root(stat: &Statx) -> bool {
    stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_takes_the_place_of_another_is_told_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("branch");
        std::fs::create_dir(&path).unwrap();
        let mark = Mark::of(open(&path).unwrap().as_fd()).unwrap();
        assert_eq!(mark.check(&path, None), Found::Same);
        let away = dir.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        let state = |marker| match mark.check(&path, marker) {
            Found::Gone((state, _)) => state,
            Found::Same | Found::Remounted => BranchState::Ok,
        };
        assert_eq!(state(None), BranchState::Missing);
        std::fs::create_dir(&path).unwrap();
        assert_eq!(state(None), BranchState::Replaced);
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&away, &path).unwrap();
        assert_eq!(mark.check(&path, None), Found::Same);
        assert_eq!(state(Some("m")), BranchState::Missing);
        std::fs::write(path.join("m"), "").unwrap();
        assert_eq!(mark.check(&path, Some("m")), Found::Same);
    }
}
