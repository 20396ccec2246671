//! What file handles need: which of them may lead anywhere on a filesystem, and how an inode is
//! found of which only the number is known.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::base::sys;
use crate::state::identity::layout::HandleLayout;
use crate::state::identity::{Identity, VolumeId, Volumes, split_id};
use crate::state::node::Node;

/// The root of every btrfs subvolume; handles never lead out of one.
const BTRFS_ROOT_INO: u64 = 256;

/// Whether all of a filesystem is beneath this directory. A mount may show a part of it.
pub(super) fn shows_all(dir: BorrowedFd<'_>, layout: Option<HandleLayout>) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let Ok(stat) = rustix::fs::statx(dir, c"", flags, wanted) else {
        return false;
    };
    if matches!(layout, Some(HandleLayout::Btrfs { .. })) {
        return stat.stx_ino == BTRFS_ROOT_INO;
    }
    stat.stx_mask & StatxFlags::MNT_ID.bits() != 0
        && stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        && strandfs_fuse::read_lossy("/proc/self/mountinfo")
            .is_ok_and(|mounts| shown_from(&mounts, stat.stx_mnt_id) == Some("/"))
}

/// What of its filesystem the mount with this id shows: `id parent dev ROOT point options ...`.
fn shown_from(mounts: &str, id: u64) -> Option<&str> {
    let wanted = id.to_string();
    let mut lines = mounts.lines().map(|line| line.split(' '));
    lines.find_map(|mut fields| (fields.next() == Some(&wanted)).then(|| fields.nth(2))?)
}

impl Volumes {
    /// Notes what a file handle of a node that is being forgotten will need: filesystems that
    /// insist on the generation (tmpfs, XFS) cannot be asked by number alone, and where a branch is
    /// a part of its filesystem, a file that has no name in the kernel's memory has to be known as
    /// one of the branch's.
    pub fn remember(&self, identity: &Identity) {
        let list = self.list.load();
        let needed = list
            .get(usize::from(identity.volume.0))
            .is_some_and(|v| v.strict || !v.whole);
        if needed {
            self.generations
                .lock()
                .note((identity.volume, identity.ino), identity.generation);
        }
    }

    /// The generation that a node's file handles carry: the filesystem's, mixed with which filesystem
    /// that is. The node id names only its place among the branches, which another filesystem may
    /// have when the pool is mounted again.
    pub fn handle_generation(&self, node: &Node) -> u32 {
        let mark = split_id(node.id).and_then(|(volume, _)| {
            let list = self.list.load();
            list.get(usize::from(volume.0)).map(|v| v.handle_mark)
        });
        match node.generation ^ mark.unwrap_or(0) {
            // The kernel takes 0 for any.
            0 if mark.is_some() => 1,
            mixed => mixed,
        }
    }

    /// Whether the whole filesystem is beneath the branch.
    pub fn is_whole(&self, volume: VolumeId) -> bool {
        let list = self.list.load();
        list.get(usize::from(volume.0)).is_some_and(|v| v.whole)
    }

    /// Whether this very inode was a node that the kernel has forgotten.
    pub fn was_shown(&self, volume: VolumeId, ino: u64, generation: u32) -> bool {
        self.generations.lock().get(&(volume, ino)) == Some(generation)
    }

    /// Opens the inode of a number whose generation the caller does not know, and returns the
    /// generation.
    ///
    /// # Errors
    /// As for [`Volumes::open`].
    pub fn open_any_generation(&self, volume: VolumeId, ino: u64) -> sys::Result<(OwnedFd, u32)> {
        let list = self.list.load();
        let found = list.get(usize::from(volume.0)).ok_or(Errno::STALE)?;
        let layout = found.layout.ok_or(Errno::STALE)?;
        let known = self.generations.lock().get(&(volume, ino));
        // Not in memory: it was forgotten by an earlier server, or long ago.
        let asked = || {
            let mount = found.mount.as_ref().filter(|_| found.strict)?;
            sys::xfs_generation(mount.as_fd(), ino).ok()
        };
        let generation = known.or_else(asked).unwrap_or(0);
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let fd = self.open(volume, ino, generation, flags)?;
        let handle = sys::name_to_handle_fd(fd.as_fd())?;
        match layout.read(&handle).ok_or(Errno::STALE)? {
            (number, generation) if number == ino => Ok((fd, generation)),
            _ => Err(Errno::STALE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_tells_what_it_shows_of_its_filesystem() {
        let mounts = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            120 20 8:1 /srv/a /mnt/a rw shared:5 master:1 - ext4 /dev/sda1 rw\n";
        assert_eq!(shown_from(mounts, 20), Some("/"));
        assert_eq!(shown_from(mounts, 120), Some("/srv/a"));
        assert_eq!(shown_from(mounts, 2), None);
    }
}
