//! Where a file has room on its disk that nothing is written in yet.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::base::sys::Result;

/// `FS_IOC_FIEMAP`.
const COMMAND: u32 = 0xc020_660b;
/// Asked for at once.
const BATCH: usize = 32;
const LAST: u32 = 0x0001;
const UNWRITTEN: u32 = 0x0800;
/// Several files have it in common: what is written goes elsewhere.
const SHARED: u32 = 0x2000;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; BATCH],
}

/// Calls `found` with start and length of every stretch of the file that has room and no data yet,
/// also beyond its end.
///
/// # Errors
/// EOPNOTSUPP or ENOTTY where the filesystem does not tell (tmpfs), else those of `ioctl(2)` and of
/// `found`.
pub fn each_unwritten(
    fd: BorrowedFd<'_>,
    found: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    each_extent(
        fd,
        (0, u64::MAX),
        &mut |extent| match extent.flags & UNWRITTEN {
            0 => Ok(()),
            _ => found(extent.logical, extent.length),
        },
    )
}

/// How many of `len_bytes` bytes from `start` on have room of their own.
///
/// # Errors
/// As [`each_unwritten`].
pub fn mapped_bytes(fd: BorrowedFd<'_>, start: u64, len_bytes: u64) -> Result<u64> {
    let end = start.saturating_add(len_bytes);
    let mut sum = 0_u64;
    each_extent(fd, (start, end), &mut |extent| {
        if extent.flags & SHARED == 0 {
            let from = extent.logical.max(start);
            let to = extent.logical.saturating_add(extent.length).min(end);
            sum = sum.saturating_add(to.saturating_sub(from));
        }
        Ok(())
    })?;
    Ok(sum)
}

/// How many bytes of the file lie in room that others have in common with it, a snapshot or a copy, and how
/// many lie anywhere.
///
/// # Errors
/// As [`each_unwritten`].
pub fn shared_bytes(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let (mut shared, mut all) = (0_u64, 0_u64);
    each_extent(fd, (0, u64::MAX), &mut |extent| {
        all = all.saturating_add(extent.length);
        if extent.flags & SHARED != 0 {
            shared = shared.saturating_add(extent.length);
        }
        Ok(())
    })?;
    Ok((shared, all))
}

fn each_extent(
    fd: BorrowedFd<'_>,
    (mut start, end): (u64, u64),
    found: &mut dyn FnMut(&Extent) -> Result<()>,
) -> Result<()> {
    while start < end {
        let mut map = Map {
            start,
            length: end - start,
            flags: 0,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [Extent::default(); BATCH],
        };
        // SAFETY: the command reads the head of `map` and writes that and `count` extents behind it.
        let done = unsafe { libc::ioctl(fd.as_raw_fd(), COMMAND as libc::Ioctl, &raw mut map) };
        if done < 0 {
            let code = std::io::Error::last_os_error().raw_os_error();
            return Err(Errno::from_raw_os_error(code.unwrap_or(libc::EIO)));
        }
        let mapped = map.extents.iter().take(map.mapped as usize);
        let mut last = true;
        for extent in mapped {
            found(extent)?;
            last = extent.flags & LAST != 0;
            start = extent.logical.saturating_add(extent.length.max(1));
        }
        if last {
            break;
        }
    }
    Ok(())
}
