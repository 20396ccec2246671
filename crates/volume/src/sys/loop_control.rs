//! ioctls of loop devices (linux/loop.h) and of block devices (linux/fs.h).

use std::os::fd::{AsRawFd, BorrowedFd};

use linux_raw_sys::loop_device::{
    LO_FLAGS_DIRECT_IO, LOOP_CLR_FD, LOOP_CONFIGURE, LOOP_CTL_GET_FREE, LOOP_CTL_REMOVE,
    LOOP_GET_STATUS64, LOOP_SET_CAPACITY, loop_config, loop_info64,
};
use strandfs_fuse::Errno;

/// `BLKSSZGET` of linux/fs.h: the size of a sector.
const BLKSSZGET: u32 = 0x1268;

fn answer(result: i32) -> Result<i32, Errno> {
    if result < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(result)
}

/// A size of sectors: that of the disk below, or 512 bytes on older kernels.
pub(crate) const KERNEL_CHOOSES: u32 = 0;

/// Calls an ioctl without an argument.
fn plain(fd: BorrowedFd<'_>, request: u32) -> Result<i32, Errno> {
    // SAFETY: the requests given here take no argument and touch no memory of ours.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, 0) })
}

/// The number of a free loop device, from `/dev/loop-control`. Others may take it before we do.
pub(crate) fn free_number(control: BorrowedFd<'_>) -> Result<u32, Errno> {
    plain(control, LOOP_CTL_GET_FREE).map(i32::cast_unsigned)
}

/// Removes the loop device of this number, which has no file; the next to need it has it made
/// anew. EBUSY: somebody has it open.
pub(crate) fn remove(control: BorrowedFd<'_>, number: u32) -> Result<(), Errno> {
    let number = libc::c_ulong::from(number);
    // SAFETY: the request takes its number by value and touches no memory of ours.
    answer(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_REMOVE as _, number) }).map(drop)
}

/// Puts `device` on `file`, with direct I/O if the kernel finds it possible. EBUSY: it is taken.
pub(crate) fn configure(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    sector_bytes: u32,
    name: &[u8],
) -> Result<(), Errno> {
    // SAFETY: the structure is made of integers and arrays of them, for which zero is a value.
    let mut config: loop_config = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd().cast_unsigned();
    config.block_size = sector_bytes;
    config.info.lo_flags = LO_FLAGS_DIRECT_IO as u32;
    // Cut off where it does not fit, its last byte left NUL; for show only.
    let room = config.info.lo_file_name.len() - 1;
    for (to, from) in config
        .info
        .lo_file_name
        .iter_mut()
        .zip(name.iter().take(room))
    {
        *to = *from as _;
    }
    let config = &raw const config;
    // SAFETY: both descriptors are open, and the kernel only reads the structure.
    answer(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, config) }).map(drop)
}

/// Whether a loop device reads and writes its file with direct I/O. ENXIO: it has no file.
pub(crate) fn has_direct_io(device: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: as in `configure`.
    let mut info: loop_info64 = unsafe { std::mem::zeroed() };
    let target = &raw mut info;
    // SAFETY: the kernel fills in one structure of this layout, which outlives the call.
    answer(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, target) })?;
    Ok(info.lo_flags & LO_FLAGS_DIRECT_IO as u32 != 0)
}

/// Takes the file away from a loop device; at once, or when its last user closes it.
pub(crate) fn clear(device: BorrowedFd<'_>) -> Result<(), Errno> {
    plain(device, LOOP_CLR_FD).map(drop)
}

/// Has a loop device look at the size of its file again.
pub(crate) fn take_new_size(device: BorrowedFd<'_>) -> Result<(), Errno> {
    plain(device, LOOP_SET_CAPACITY).map(drop)
}

/// The size of a block device's sectors.
pub(crate) fn block_size_bytes(device: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut size: libc::c_int = 0;
    // SAFETY: the kernel writes one int, which outlives the call.
    answer(unsafe { libc::ioctl(device.as_raw_fd(), BLKSSZGET as _, &raw mut size) })?;
    Ok(size.cast_unsigned())
}

/// The size of a block device: where its end is.
pub(crate) fn device_size_bytes(device: BorrowedFd<'_>) -> Result<u64, Errno> {
    rustix::fs::seek(device, rustix::fs::SeekFrom::End(0))
}
