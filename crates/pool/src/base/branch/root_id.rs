//! Which directory of which filesystem the root of a branch is.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Statx};

use crate::base::branch::Medium;
use crate::base::hash::{mix, stable_hash};
use crate::base::sys::{self, btime_ns};

/// What a filesystem is told from all others by. Copies of a whole filesystem have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesystemId {
    /// Its UUID, where the kernel makes none of the next from it (XFS, f2fs).
    Uuid([u8; 16]),
    /// `f_fsid` of statfs(2), which is made from the UUID (ext4), the UUID and the subvolume (btrfs),
    /// or at random as the filesystem was mounted (tmpfs).
    Fsid(u64),
    /// Nothing but where it is: a device, whatever is on it, or another machine's name.
    Place {
        /// Its number; none where another mount of the same has another.
        device: Option<(u32, u32)>,
        /// What is mounted.
        source: String,
    },
}

/// The `f_fsid` of filesystems that make it from the number of their device: it comes and goes with
/// that.
fn fsid_of_device((major, minor): (u32, u32)) -> u64 {
    u64::from(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}

impl FilesystemId {
    /// That of the filesystem of a directory (`O_PATH` is enough), whose attributes are `stat`. The
    /// filesystem itself is asked only where it cannot hang.
    pub fn of(dir: BorrowedFd<'_>, stat: &Statx, medium: &Medium) -> FilesystemId {
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let fsid = rustix::fs::fstatvfs(dir).map_or(0, |stat| stat.f_fsid);
        if fsid != 0 && fsid != fsid_of_device(device) {
            return FilesystemId::Fsid(fsid);
        }
        let may_hang = medium.latency.may_hang();
        let source = medium.source.clone();
        if may_hang {
            return FilesystemId::Place {
                device: None,
                source,
            };
        }
        let uuid = || sys::filesystem_uuid(open_to_ask(dir)?.as_fd());
        uuid().map_or_else(
            || FilesystemId::Place {
                device: Some(device),
                source,
            },
            FilesystemId::Uuid,
        )
    }

    /// What tells file handles of one filesystem from those of another; the same whenever it is
    /// mounted. The number of a device is not.
    pub fn handle_mark(&self) -> u32 {
        let hash = match self {
            FilesystemId::Uuid(uuid) => stable_hash(uuid),
            FilesystemId::Fsid(fsid) => mix(*fsid),
            FilesystemId::Place { source, .. } => stable_hash(source.as_bytes()),
        };
        (hash ^ hash >> 32) as u32
    }

    /// Whether it is still the same after the machine was restarted.
    fn lasts(&self) -> bool {
        !matches!(self, FilesystemId::Place { .. })
    }

    fn parse(text: &str) -> Option<FilesystemId> {
        let (kind, digits) = text.split_once(':')?;
        let value = u128::from_str_radix(digits, 16).ok()?;
        match kind {
            "uuid" => Some(FilesystemId::Uuid(value.to_be_bytes())),
            "fsid" => Some(FilesystemId::Fsid(value.try_into().ok()?)),
            _ => None,
        }
    }
}

/// A descriptor that the filesystem answers questions through.
pub fn open_to_ask(dir: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, c".", flags, Mode::empty()).ok()
}

/// The root directory of a branch, told from every other directory of this and other filesystems,
/// also after a restart: what is written to disk of a branch means this. Whole copies of a
/// filesystem have the same.
///
/// As text, in one line: `INODE BIRTH` or `INODE BIRTH FILESYSTEM`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootId {
    ino: u64,
    /// 0 where the filesystem does not tell.
    btime_ns: i64,
    /// None where it does not last, and in what earlier versions wrote.
    filesystem: Option<FilesystemId>,
}

impl RootId {
    /// Of the directory with these attributes on this filesystem.
    pub fn new(stat: &Statx, filesystem: &FilesystemId) -> RootId {
        RootId {
            ino: stat.stx_ino,
            btime_ns: btime_ns(stat),
            filesystem: filesystem.lasts().then(|| filesystem.clone()),
        }
    }

    /// Whether it tells the directory from others for sure: an inode number alone may be another's
    /// after the next mount.
    pub fn is_certain(&self) -> bool {
        self.btime_ns != 0 || self.filesystem.is_some()
    }

    /// Whether `now`, found in its place, is the same directory. What an earlier version wrote does
    /// not speak of the filesystem.
    pub fn is(&self, now: &RootId) -> bool {
        (self.ino, self.btime_ns) == (now.ino, now.btime_ns)
            && (self.filesystem.is_none() || self.filesystem == now.filesystem)
    }

    /// Reads what `Display` writes.
    pub fn parse(line: &str) -> Option<RootId> {
        let mut words = line.split(' ');
        let (ino, btime_ns) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let filesystem = match words.next() {
            Some(word) => Some(FilesystemId::parse(word)?),
            None => None,
        };
        words.next().is_none().then_some(RootId {
            ino,
            btime_ns,
            filesystem,
        })
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.ino, self.btime_ns)?;
        match self.filesystem {
            Some(FilesystemId::Uuid(uuid)) => write!(f, " uuid:{:032x}", u128::from_be_bytes(uuid)),
            Some(FilesystemId::Fsid(fsid)) => write!(f, " fsid:{fsid:016x}"),
            Some(FilesystemId::Place { .. }) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: FilesystemId = FilesystemId::Uuid([0xa; 16]);

    fn root(ino: u64, btime_ns: i64, filesystem: Option<FilesystemId>) -> RootId {
        RootId {
            ino,
            btime_ns,
            filesystem,
        }
    }

    #[test]
    fn a_root_is_written_and_read() {
        for filesystem in [None, Some(UUID), Some(FilesystemId::Fsid(7))] {
            let id = root(2, -3, filesystem);
            assert_eq!(RootId::parse(&id.to_string()), Some(id));
        }
        for wrong in ["", "2", "2 x", "2 3 4", "2 3 uuid:x", "2 3 fsid:7 more"] {
            assert_eq!(RootId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn roots_made_in_the_same_second_are_told_apart_by_their_filesystems() {
        let one = root(2, 9, Some(FilesystemId::Fsid(1)));
        assert!(one.is(&one));
        assert!(!one.is(&root(2, 9, Some(FilesystemId::Fsid(2)))));
        assert!(!one.is(&root(2, 9, Some(UUID))));
        assert!(!one.is(&root(2, 9, None)));
        assert!(root(2, 9, None).is(&one));
        assert!(!root(2, 8, None).is(&one));
        // An ext4 with short inodes has no birth times, but a UUID.
        assert!(root(2, 0, Some(UUID)).is_certain());
        assert!(!root(2, 0, None).is_certain());
    }

    #[test]
    fn identifiers_made_from_device_numbers_are_known() {
        // What the kernel says of an XFS on 7:0 and on 8:300.
        assert_eq!(fsid_of_device((7, 0)), 0x700);
        assert_eq!(fsid_of_device((8, 300)), 0x10_082c);
    }
}
