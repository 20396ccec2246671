//! From the filesystem's answers to the wire's structures.

use std::time::Duration;

use crate::kernel;
use crate::types::*;

/// A duration as the kernel wants it: seconds and nanoseconds.
fn split(valid: Duration) -> (u64, u32) {
    (valid.as_secs(), valid.subsec_nanos())
}

/// `struct fuse_attr`.
pub fn attr(attr: &FileAttr) -> kernel::Attr {
    kernel::Attr {
        ino: attr.ino,
        size: attr.size_bytes,
        blocks: attr.blocks,
        atime: attr.atime.seconds.cast_unsigned(),
        mtime: attr.mtime.seconds.cast_unsigned(),
        ctime: attr.ctime.seconds.cast_unsigned(),
        atimensec: attr.atime.nanoseconds,
        mtimensec: attr.mtime.nanoseconds,
        ctimensec: attr.ctime.nanoseconds,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.block_size_bytes,
        flags: 0,
    }
}

/// `struct fuse_entry_out`.
pub fn entry(entry: &Entry) -> kernel::EntryOut {
    let (entry_valid, entry_valid_nsec) = split(entry.entry_valid);
    let (attr_valid, attr_valid_nsec) = split(entry.attr_valid);
    kernel::EntryOut {
        nodeid: entry.node.0,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr(&entry.attr),
    }
}

/// `struct fuse_attr_out`.
pub fn attributes(reply: &AttrReply) -> kernel::AttrOut {
    let (attr_valid, attr_valid_nsec) = split(reply.attr_valid);
    kernel::AttrOut {
        attr_valid,
        attr_valid_nsec,
        dummy: 0,
        attr: attr(&reply.attr),
    }
}

/// `struct fuse_statx_out`.
pub fn statx(reply: &StatxReply) -> kernel::StatxOut {
    let (attr_valid, attr_valid_nsec) = split(reply.attr_valid);
    let ExtendedAttr {
        attr,
        btime,
        attributes,
        attributes_mask,
    } = reply.extended;
    let birth_mask = if btime.is_some() {
        kernel::STATX_BTIME
    } else {
        0
    };
    let (rdev_major, rdev_minor) = device_numbers(attr.rdev);
    let stat = kernel::Statx {
        mask: kernel::STATX_BASIC_STATS | birth_mask,
        blksize: attr.block_size_bytes,
        attributes,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // A mode has 16 bits; the wider field is for the classic structure.
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size_bytes,
        blocks: attr.blocks,
        attributes_mask,
        atime: sx_time(attr.atime),
        btime: sx_time(btime.unwrap_or_default()),
        ctime: sx_time(attr.ctime),
        mtime: sx_time(attr.mtime),
        rdev_major,
        rdev_minor,
        ..kernel::Statx::default()
    };
    kernel::StatxOut {
        attr_valid,
        attr_valid_nsec,
        stat,
        ..kernel::StatxOut::default()
    }
}

fn sx_time(time: Timestamp) -> kernel::SxTime {
    kernel::SxTime {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds,
        reserved: 0,
    }
}

/// Major and minor number out of the kernel's 32-bit form: the minor's low 8 bits, 12 bits of
/// major, the minor's high 12 bits.
fn device_numbers(rdev: u32) -> (u32, u32) {
    (
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xfff00),
    )
}

/// `struct fuse_open_out`.
pub fn open(reply: &OpenReply) -> kernel::OpenOut {
    let backing_id = match reply.backing {
        Some(backing) if reply.flags.contains(OpenFlags::PASSTHROUGH) => backing.0.cast_signed(),
        _ => 0,
    };
    kernel::OpenOut {
        fh: reply.handle.0,
        open_flags: reply.flags.bits(),
        backing_id,
    }
}

/// `struct fuse_statfs_out`.
pub fn statfs(reply: &StatfsReply) -> kernel::StatfsOut {
    kernel::StatfsOut {
        blocks: reply.blocks,
        bfree: reply.blocks_free,
        bavail: reply.blocks_available,
        files: reply.files,
        ffree: reply.files_free,
        bsize: reply.block_size_bytes,
        namelen: reply.name_max_bytes,
        frsize: reply.fragment_size_bytes,
        padding: 0,
        spare: [0; 6],
    }
}

/// `struct fuse_lk_out`.
pub fn lock(lock: &Lock) -> kernel::LkOut {
    let kind = match lock.kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    kernel::LkOut {
        lk: kernel::FileLock {
            start: lock.start_bytes,
            end: lock.end_bytes,
            kind: kind.cast_unsigned(),
            pid: lock.pid,
        },
    }
}

/// `DT_*` of a kind; 0 (unknown) makes the caller ask.
pub fn dirent_kind(kind: Option<FileKind>) -> u32 {
    u32::from(match kind {
        None => libc::DT_UNKNOWN,
        Some(FileKind::Regular) => libc::DT_REG,
        Some(FileKind::Directory) => libc::DT_DIR,
        Some(FileKind::Symlink) => libc::DT_LNK,
        Some(FileKind::Fifo) => libc::DT_FIFO,
        Some(FileKind::Socket) => libc::DT_SOCK,
        Some(FileKind::CharDevice) => libc::DT_CHR,
        Some(FileKind::BlockDevice) => libc::DT_BLK,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_follow_new_encode_dev() {
        // Major 8, minor 1; then a minor above 255 and a major that fills its 12 bits.
        assert_eq!(device_numbers(0x801), (8, 1));
        assert_eq!(device_numbers(0x123f_ff78), (0xfff, 0x1_2378));
    }

    #[test]
    fn backing_id_travels_only_with_passthrough() {
        let mut reply = OpenReply {
            handle: Handle(9),
            flags: OpenFlags::PASSTHROUGH,
            backing: Some(BackingId(3)),
        };
        assert_eq!(open(&reply).backing_id, 3);
        reply.flags = OpenFlags::DIRECT_IO;
        assert_eq!(open(&reply).backing_id, 0);
    }

    #[test]
    fn times_are_split_and_may_be_negative() {
        let file = FileAttr {
            mtime: Timestamp {
                seconds: -2,
                nanoseconds: 7,
            },
            ..FileAttr::default()
        };
        let out = attributes(&AttrReply {
            attr: file,
            attr_valid: Duration::from_millis(1500),
        });
        assert_eq!((out.attr_valid, out.attr_valid_nsec), (1, 500_000_000));
        assert_eq!(out.attr.mtime.cast_signed(), -2);
        assert_eq!(out.attr.mtimensec, 7);
    }
}
