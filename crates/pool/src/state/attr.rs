//! From a branch's `statx` to the attributes users see.

use rustix::fs::Statx;
use strandfs_fuse::{ExtendedAttr, FileAttr, Timestamp};

use crate::base::rights::{AllRights, Rights, strictest};
use crate::state::node::Node;
use crate::state::view::View;

fn timestamp(time: rustix::fs::StatxTimestamp) -> Timestamp {
    Timestamp {
        seconds: time.tv_sec,
        nanoseconds: time.tv_nsec,
    }
}

/// The kernel's 32-bit device number (`new_encode_dev` in `linux/kdev_t.h`).
pub(crate) const fn encode_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// The reverse of [`encode_dev`].
pub(crate) fn decode_dev(dev: u32) -> (u32, u32) {
    ((dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xf_ff00))
}

/// Set-user-id or set-group-id.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;

/// Whether `mode` has bits that a write by an ordinary user clears.
pub(crate) fn has_set_id(mode: u32) -> bool {
    mode & SET_ID != 0
}

/// A branch's attributes under the pool's inode number.
pub(crate) fn file_attr(stat: &Statx, ino: u64) -> FileAttr {
    FileAttr {
        ino,
        size_bytes: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: timestamp(stat.stx_atime),
        mtime: timestamp(stat.stx_mtime),
        ctime: timestamp(stat.stx_ctime),
        mode: u32::from(stat.stx_mode),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: encode_dev(stat.stx_rdev_major, stat.stx_rdev_minor),
        block_size_bytes: stat.stx_blksize,
    }
}

/// `statx` attributes under the pool's inode number.
pub(crate) fn extended_attr(stat: &Statx, attr: FileAttr) -> ExtendedAttr {
    let known = rustix::fs::StatxFlags::BTIME.bits();
    ExtendedAttr {
        attr,
        btime: (stat.stx_mask & known != 0).then(|| timestamp(stat.stx_btime)),
        attributes: stat.stx_attributes.bits(),
        attributes_mask: stat.stx_attributes_mask.bits(),
    }
}

/// One directory out of several: number of the first; owner and mode that grant what all grant, the
/// `unseen` ones among them; newest times; sizes and blocks added; links added as if all
/// subdirectories were in one place (each directory counts its own `.` and its entry in the parent
/// once, so two are taken off for every further one). A filesystem that does not count links in
/// directories (btrfs: always 1) makes the sum 1.
pub(crate) fn merge_dirs<'a>(
    stats: impl IntoIterator<Item = &'a Statx>,
    unseen: &[Rights],
    ino: u64,
) -> Option<FileAttr> {
    let mut stats = stats.into_iter();
    let first = stats.next()?;
    let mut merged = file_attr(first, ino);
    let mut rights = AllRights::new();
    rights.push(Rights::of(first));
    for stat in stats {
        let other = file_attr(stat, ino);
        rights.push(Rights::of(stat));
        merged.atime = merged.atime.max(other.atime);
        merged.mtime = merged.mtime.max(other.mtime);
        merged.ctime = merged.ctime.max(other.ctime);
        merged.size_bytes = merged.size_bytes.saturating_add(other.size_bytes);
        merged.blocks = merged.blocks.saturating_add(other.blocks);
        merged.nlink = match (merged.nlink, other.nlink) {
            // Removed everywhere.
            (0, 0) => 0,
            (0 | 1, _) | (_, 1) => 1,
            (mine, theirs) => mine.saturating_add(theirs.saturating_sub(2)),
        };
    }
    rights.extend_from_slice(unseen);
    let shown = strictest(&rights)?;
    (merged.uid, merged.gid) = (shown.uid, shown.gid);
    merged.mode = merged.mode & libc::S_IFMT | shown.mode;
    Some(merged)
}

/// The root of a pool without any branch, which must still be there to be asked and unmounted.
pub(crate) fn bare_root() -> FileAttr {
    FileAttr {
        ino: 1,
        mode: libc::S_IFDIR | 0o555,
        nlink: 2,
        block_size_bytes: 4096,
        ..FileAttr::default()
    }
}

impl View {
    /// Puts owner, group and permissions in their place that the options show everything with.
    pub(crate) fn present(&self, attr: &mut FileAttr) {
        let shown = &self.settings.presentation;
        attr.uid = shown.uid.unwrap_or(attr.uid);
        attr.gid = shown.gid.unwrap_or(attr.gid);
        if let Some(umask) = shown.umask
            && attr.mode & libc::S_IFMT != libc::S_IFLNK
        {
            attr.mode = attr.mode & libc::S_IFMT | 0o777 & !umask;
        }
    }

    /// The same for the rights of an inode.
    pub(crate) fn presented(&self, rights: Rights) -> Rights {
        let shown = &self.settings.presentation;
        Rights {
            uid: shown.uid.unwrap_or(rights.uid),
            gid: shown.gid.unwrap_or(rights.gid),
            mode: shown.umask.map_or(rights.mode, |umask| 0o777 & !umask),
        }
    }

    /// As [`View::present`], for an answer to the kernel, which judges by it from then on.
    pub(crate) fn tell(&self, node: &Node, attr: &mut FileAttr) {
        self.present(attr);
        node.rights_told.note(attr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(0, 0), (8, 1), (259, 4096), (0xfff, 0xf_ffff)] {
            assert_eq!(decode_dev(encode_dev(major, minor)), (major, minor));
        }
    }
}
