//! statx, xattrs and ioctls on `O_PATH` descriptors, and the coarse clock.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, RenameFlags, Statx, StatxFlags, Timestamps};
use rustix::io::Errno;

use crate::base::sys::Result;

/// What the pool asks of every `statx`: the classic fields, the birth time and the mount.
const STATX_WANTED: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID)
    .union(MNT_ID_UNIQUE);

/// `STATX_MNT_ID_UNIQUE`: a number that no other mount ever gets (Linux 6.8).
pub const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// A path such as `/proc/self/fd/N` as a C string on the stack: the way to act on an `O_PATH` descriptor with
/// calls that want a path. The magic link leads to the very inode, whatever its name is now.
pub struct ProcPath {
    bytes: [u8; 32],
    len: usize,
}

impl ProcPath {
    /// The path of `fd`, which is in the table that the threads of the server share.
    pub fn new(fd: impl AsFd) -> Self {
        Self::after(b"/proc/self/fd/", fd)
    }

    /// The path of `fd` in the table of the calling thread, which may have one of its own: the other path
    /// would lead to whatever has that number in the table of the first thread. Takes a little longer.
    pub fn of_thread(fd: impl AsFd) -> Self {
        Self::after(b"/proc/thread-self/fd/", fd)
    }

    fn after(prefix: &[u8], fd: impl AsFd) -> Self {
        let mut bytes = [0u8; 32];
        bytes[..prefix.len()].copy_from_slice(prefix);
        let mut digits = [0u8; 10];
        let mut number = fd.as_fd().as_raw_fd().unsigned_abs();
        let mut count = 0;
        loop {
            digits[count] = b'0' + (number % 10) as u8;
            number /= 10;
            count += 1;
            if number == 0 {
                break;
            }
        }
        for (index, digit) in digits[..count].iter().rev().enumerate() {
            bytes[prefix.len() + index] = *digit;
        }
        ProcPath {
            bytes,
            len: prefix.len() + count,
        }
    }

    /// The path.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// The path without its NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Attributes of `name` in `dir`, not following a symlink.
///
/// # Errors
/// Those of `statx(2)`.
pub fn statx_name(dir: BorrowedFd<'_>, name: &OsStr) -> Result<Statx> {
    rustix::fs::statx(
        dir,
        name,
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT,
        STATX_WANTED,
    )
}

/// Attributes of an open (or `O_PATH`) descriptor.
///
/// # Errors
/// Those of `statx(2)`.
pub fn statx_fd(fd: BorrowedFd<'_>) -> Result<Statx> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, STATX_WANTED)
}

/// Waits for what is being written of a file to be on its disk; starts writing nothing.
///
/// # Errors
/// What has gone wrong in that since `fd` was last told; it is told once. Those of
/// `sync_file_range(2)`.
pub fn wait_for_writeback(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: no memory is passed.
    let done =
        unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    match done {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// `renameat2(2)` with raw flags (0, `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`).
///
/// # Errors
/// Those of `renameat2(2)`.
pub fn rename_flags(
    old_dir: BorrowedFd<'_>,
    old_name: &OsStr,
    new_dir: BorrowedFd<'_>,
    new_name: &OsStr,
    flags: u32,
) -> Result<()> {
    if flags == 0 {
        return rustix::fs::renameat(old_dir, old_name, new_dir, new_name);
    }
    rustix::fs::renameat_with(
        old_dir,
        old_name,
        new_dir,
        new_name,
        RenameFlags::from_bits_retain(flags),
    )
}

fn c_name(name: &OsStr) -> Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)
}

fn checked(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| last_errno())
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Reads an xattr of the inode behind `fd` (which may be `O_PATH`); `None` asks for its length.
///
/// # Errors
/// Those of `getxattr(2)`.
pub fn getxattr(fd: BorrowedFd<'_>, name: &OsStr, out: Option<&mut [u8]>) -> Result<usize> {
    let name = c_name(name)?;
    let (pointer, len) = out.map_or((std::ptr::null_mut(), 0), |out| {
        (out.as_mut_ptr(), out.len())
    });
    // An open file needs no way through /proc, which costs several times as much.
    // SAFETY: the name ends with NUL; `pointer` is valid for `len` bytes or null with len 0.
    let result = unsafe { libc::fgetxattr(fd.as_raw_fd(), name.as_ptr(), pointer.cast(), len) };
    match checked(result) {
        Err(Errno::BADF) => {}
        outcome => return outcome,
    }
    let path = ProcPath::new(fd);
    // SAFETY: both strings end with NUL; `pointer` is valid for `len` bytes or null with len 0.
    let result =
        unsafe { libc::getxattr(path.as_c_str().as_ptr(), name.as_ptr(), pointer.cast(), len) };
    checked(result)
}

/// Lists the xattr names of the inode behind `fd`; `None` asks for the length.
///
/// # Errors
/// Those of `listxattr(2)`.
pub fn listxattr(fd: BorrowedFd<'_>, out: Option<&mut [u8]>) -> Result<usize> {
    let (pointer, len) = out.map_or((std::ptr::null_mut(), 0), |out| {
        (out.as_mut_ptr(), out.len())
    });
    // SAFETY: `pointer` is valid for `len` bytes or null with len 0.
    let result = unsafe { libc::flistxattr(fd.as_raw_fd(), pointer.cast(), len) };
    match checked(result) {
        Err(Errno::BADF) => {}
        outcome => return outcome,
    }
    let path = ProcPath::new(fd);
    // SAFETY: the path ends with NUL; `pointer` is valid for `len` bytes or null with len 0.
    let result = unsafe { libc::listxattr(path.as_c_str().as_ptr(), pointer.cast(), len) };
    checked(result)
}

/// Sets an xattr of the inode behind `fd`.
///
/// # Errors
/// Those of `setxattr(2)`.
pub fn setxattr(fd: BorrowedFd<'_>, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
    let name = c_name(name)?;
    let path = ProcPath::new(fd);
    // SAFETY: both strings end with NUL and `value` is valid for its length.
    let result = unsafe {
        libc::setxattr(
            path.as_c_str().as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    };
    checked(result as isize).map(drop)
}

/// Removes an xattr of the inode behind `fd`.
///
/// # Errors
/// Those of `removexattr(2)`.
pub fn removexattr(fd: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    let name = c_name(name)?;
    let path = ProcPath::new(fd);
    // SAFETY: both strings end with NUL.
    let result = unsafe { libc::removexattr(path.as_c_str().as_ptr(), name.as_ptr()) };
    checked(result as isize).map(drop)
}

/// The number of `fchmodat2(2)`, which the `libc` crate does not have for every architecture. System calls of
/// these years have one number everywhere; where this one is no call's (MIPS), the kernel says so.
const FCHMODAT2: libc::c_long = 452;

/// Sets the mode of the inode behind `fd`, which may be `O_PATH`.
///
/// # Errors
/// Those of `chmod(2)`.
pub fn chmod(fd: BorrowedFd<'_>, mode: Mode) -> Result<()> {
    // SAFETY: the path is empty and ends with NUL.
    let result = unsafe {
        libc::syscall(
            FCHMODAT2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            mode.as_raw_mode(),
            libc::AT_EMPTY_PATH,
        )
    };
    match checked(result as isize) {
        // Before Linux 6.6, or where a filter knows it not.
        Err(Errno::NOSYS | Errno::PERM) => {
            let path = ProcPath::new(fd);
            rustix::fs::chmodat(rustix::fs::CWD, path.as_c_str(), mode, AtFlags::empty())
        }
        outcome => outcome.map(drop),
    }
}

/// Sets the times of the inode behind `fd`, which may be `O_PATH`.
///
/// # Errors
/// Those of `utimensat(2)`.
pub fn set_times(fd: BorrowedFd<'_>, times: &Timestamps) -> Result<()> {
    match rustix::fs::utimensat(fd, c"", times, AtFlags::EMPTY_PATH) {
        // Before Linux 5.8.
        Err(Errno::INVAL) => {
            let path = ProcPath::new(fd);
            rustix::fs::utimensat(rustix::fs::CWD, path.as_c_str(), times, AtFlags::empty())
        }
        outcome => outcome,
    }
}

/// `truncate(2)` of the inode behind `fd`, which may be `O_PATH`.
///
/// # Errors
/// Those of `truncate(2)`; EFBIG for a size no file can have.
pub fn truncate(fd: BorrowedFd<'_>, size_bytes: u64) -> Result<()> {
    let size_bytes = libc::off64_t::try_from(size_bytes).map_err(|_| Errno::FBIG)?;
    let path = ProcPath::new(fd);
    // SAFETY: the path ends with NUL.
    let result = unsafe { libc::truncate64(path.as_c_str().as_ptr(), size_bytes) };
    checked(result as isize).map(drop)
}

/// An ioctl whose argument points to `data`, read and written in place.
///
/// The caller must know that `command` touches no more than `data.len()` bytes; [`fs_ioctl`]
/// therefore refuses all but the inode-flag commands.
///
/// # Errors
/// ENOTTY for any other command, else those of `ioctl(2)`.
pub fn fs_ioctl(fd: BorrowedFd<'_>, command: u32, data: &mut [u8]) -> Result<i32> {
    let size = match command {
        // FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_GETVERSION, FS_IOC_SETVERSION: the kernel
        // transfers an int although their encoded size is that of a long.
        0x8008_6601 | 0x4008_6602 | 0x8008_7601 | 0x4008_7602 => 8,
        // FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR: struct fsxattr.
        0x801c_581f | 0x401c_5820 => 28,
        _ => return Err(Errno::NOTTY),
    };
    if data.len() < size {
        return Err(Errno::INVAL);
    }
    let mut space = [0u8; 32];
    space[..size].copy_from_slice(&data[..size]);
    // SAFETY: each command above transfers at most `size` bytes, and `space` holds 32.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), command as libc::Ioctl, space.as_mut_ptr()) };
    if result < 0 {
        return Err(last_errno());
    }
    data[..size].copy_from_slice(&space[..size]);
    Ok(result)
}

/// Closes a descriptor and tells what its filesystem had to say (NFS: a failed write).
///
/// # Errors
/// Those of `close(2)`; the descriptor is gone all the same.
pub fn close_reporting(fd: OwnedFd) -> Result<()> {
    // SAFETY: `into_raw_fd` gave up ownership, so nothing else closes this descriptor.
    if unsafe { libc::close(fd.into_raw_fd()) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// The path the kernel knows an open file by; a removed file's ends in ` (deleted)`.
///
/// # Errors
/// Those of `readlink(2)`.
pub fn path_of(fd: BorrowedFd<'_>) -> Result<PathBuf> {
    let link = rustix::fs::readlink(ProcPath::new(fd).as_c_str(), Vec::new())?;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(
        link.into_bytes(),
    )))
}

/// Milliseconds of the coarse monotonic clock: a read of shared memory, no system call.
pub fn mono_coarse_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_path_names_the_descriptor() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let expected = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(ProcPath::new(&file).as_bytes(), expected.as_bytes());
        assert_eq!(
            ProcPath::new(&file).as_c_str().to_bytes(),
            expected.as_bytes()
        );
        let longest = [b"/proc/thread-self/fd/", i32::MAX.to_string().as_bytes()].concat();
        assert_eq!(longest.len() + 1, ProcPath::new(&file).bytes.len());
        let of_thread = ProcPath::of_thread(&file);
        let link = rustix::fs::readlink(of_thread.as_c_str(), Vec::new());
        assert_eq!(link.unwrap().as_bytes(), b"/dev/null");
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    fn fchmodat2_has_the_number_that_libc_knows_where_it_knows_one() {
        assert_eq!(FCHMODAT2, libc::SYS_fchmodat2);
    }

    #[test]
    fn unknown_ioctls_never_reach_a_branch() {
        let file = std::fs::File::open("/dev/null").unwrap();
        // FITRIM, and FS_IOC_SETFLAGS of the other width, which the kernel passes on unchecked.
        for command in [0xc018_5879, 0x4004_6602] {
            let refused = fs_ioctl(file.as_fd(), command, &mut [0; 64]);
            assert_eq!(refused, Err(Errno::NOTTY), "{command:x}");
        }
    }
}
