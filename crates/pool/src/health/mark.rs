//! Telling a branch from what takes its place.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::State;
use crate::branch::Medium;
use crate::identity::btime_ns;
use crate::sys;

/// Who the root directory of a branch is.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Of the filesystem; another one after a disk was plugged in again.
    pub device: (u32, u32),
    mount: u64,
    ino: u64,
    btime_ns: i64,
    handle: Option<(i32, Vec<u8>)>,
    fsid: u64,
    filesystem: String,
    source: String,
    /// It is where something is mounted.
    mount_root: bool,
    /// The kernel lists its block device.
    on_block_device: bool,
}

/// What a branch's path leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// To the branch, by the mount it was opened through.
    Same,
    /// To the branch, by another mount of the same filesystem.
    Remounted,
    /// To something else or to nothing.
    Gone((State, String)),
}

impl Mark {
    /// Who the directory behind `root` is. Asks its filesystem, which may take its time.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn of(root: BorrowedFd<'_>) -> sys::Result<Mark> {
        let stat = look(root)?;
        let medium = Medium::of(root);
        let handle = sys::name_to_handle_fd(root).ok();
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        Ok(Mark {
            device,
            mount: stat.stx_mnt_id,
            ino: stat.stx_ino,
            btime_ns: btime_ns(&stat),
            handle: handle.map(|handle| (handle.kind(), handle.bytes().to_vec())),
            fsid: rustix::fs::fstatvfs(root).map_or(0, |stat| stat.f_fsid),
            filesystem: medium.filesystem,
            source: medium.source,
            mount_root: is_mount_root(&stat),
            on_block_device: block_device_exists(device, Path::new(DEVICES)),
        })
    }

    /// The mount it was opened through.
    pub fn mount(&self) -> u64 {
        self.mount
    }

    /// Whether this is the same directory of the same filesystem, perhaps mounted anew. Without a
    /// birth time (network filesystems, FUSE) what is mounted must have the same name.
    pub fn same(&self, other: &Mark) -> bool {
        let known_by = if self.btime_ns != 0 {
            self.btime_ns == other.btime_ns
        } else {
            (other.btime_ns, self.fsid, &self.source) == (0, other.fsid, &other.source)
        };
        known_by
            && self.ino == other.ino
            && self.filesystem == other.filesystem
            && self.handle == other.handle
    }

    /// What another directory is, in the place of this one.
    pub fn difference(&self, now: &Mark) -> (State, String) {
        if self.mount_root && !now.mount_root {
            return (State::Missing, "nothing is mounted there".to_owned());
        }
        let text = format!(
            "its path leads to another directory now ({} {} instead of {} {})",
            now.filesystem, now.source, self.filesystem, self.source
        );
        (State::Replaced, text)
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
            if self.on_block_device && !block_device_exists(device, Path::new(DEVICES)) {
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
        _ => gone(format!("its path leads nowhere: {errno}")),
    }
}

fn gone(reason: String) -> Found {
    Found::Gone((State::Missing, reason))
}

/// Whether a branch's root has the file or the attribute that all branches have.
pub fn is_marked(root: BorrowedFd<'_>, marker: &str) -> bool {
    let attribute = format!("user.{marker}");
    sys::statx_name(root, OsStr::new(marker)).is_ok()
        || sys::getxattr(root, OsStr::new(&attribute), None).is_ok()
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

/// Where the kernel lists block devices by number.
const DEVICES: &str = "/sys/dev/block";

fn block_device_exists((major, minor): (u32, u32), devices: &Path) -> bool {
    major != 0 && devices.join(format!("{major}:{minor}")).exists()
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
            Found::Same | Found::Remounted => State::Ok,
        };
        assert_eq!(state(None), State::Missing);
        std::fs::create_dir(&path).unwrap();
        assert_eq!(state(None), State::Replaced);
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&away, &path).unwrap();
        assert_eq!(mark.check(&path, None), Found::Same);
        assert_eq!(state(Some("m")), State::Missing);
        std::fs::write(path.join("m"), "").unwrap();
        assert_eq!(mark.check(&path, Some("m")), Found::Same);
    }

    #[test]
    fn block_devices_are_listed_by_number() {
        let devices = tempfile::tempdir().unwrap();
        std::fs::create_dir(devices.path().join("8:1")).unwrap();
        assert!(block_device_exists((8, 1), devices.path()));
        assert!(!block_device_exists((8, 2), devices.path()));
        assert!(!block_device_exists((0, 40), devices.path()));
    }
}
