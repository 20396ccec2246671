//! Kernel file handles: a name for an inode that outlives its path.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::base::sys::Result;
use crate::base::sys::raw::last_errno;

/// `MAX_HANDLE_SZ` of `linux/exportfs.h`.
const MAX_HANDLE_BYTES: usize = 128;

/// `struct file_handle` with room for the longest.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawHandle {
    len_bytes: u32,
    kind: i32,
    bytes: [u8; MAX_HANDLE_BYTES],
}

impl RawHandle {
    /// A handle of type `kind` (`enum fid_type`) with these bytes; longer ones are cut.
    pub fn new(kind: i32, bytes: &[u8]) -> Self {
        let mut handle = RawHandle {
            len_bytes: 0,
            kind,
            bytes: [0; MAX_HANDLE_BYTES],
        };
        let len = bytes.len().min(MAX_HANDLE_BYTES);
        handle.bytes[..len].copy_from_slice(&bytes[..len]);
        handle.len_bytes = len as u32;
        handle
    }

    /// The type (`enum fid_type`).
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// The opaque bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len_bytes as usize).unwrap_or(&[])
    }
}

/// The handle of `name` in `dir`, not following a symlink.
///
/// # Errors
/// EOPNOTSUPP where the filesystem has no handles, else those of `name_to_handle_at(2)`.
pub fn name_to_handle(dir: BorrowedFd<'_>, name: &OsStr) -> Result<RawHandle> {
    let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    to_handle(dir, &name, 0)
}

/// The handle of an open (or `O_PATH`) descriptor.
///
/// # Errors
/// As for [`name_to_handle`].
pub fn name_to_handle_fd(fd: BorrowedFd<'_>) -> Result<RawHandle> {
    to_handle(fd, c"", libc::AT_EMPTY_PATH)
}

fn to_handle(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<RawHandle> {
    let mut handle = RawHandle {
        len_bytes: MAX_HANDLE_BYTES as u32,
        kind: 0,
        bytes: [0; MAX_HANDLE_BYTES],
    };
    let mut mount_id: libc::c_int = 0;
    // SAFETY: `handle` is a struct file_handle with `len_bytes` bytes of room; the name ends with
    // NUL; `mount_id` is a valid int.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            flags,
        )
    };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(handle)
    }
}

/// Opens the inode of `handle` on the filesystem of `mount` (not an `O_PATH` descriptor).
///
/// # Errors
/// ESTALE if the inode is gone, EPERM without CAP_DAC_READ_SEARCH, else those of
/// `open_by_handle_at(2)`.
pub fn open_by_handle(mount: BorrowedFd<'_>, handle: &RawHandle, flags: OFlags) -> Result<OwnedFd> {
    let mut handle = *handle;
    // SAFETY: `handle` is a struct file_handle whose length is within its buffer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut handle,
            (flags | OFlags::CLOEXEC).bits(),
        )
    };
    if result < 0 {
        return Err(last_errno());
    }
    let fd = i32::try_from(result).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel just returned this descriptor and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct xfs_fsop_bulkreq` of `xfs/xfs_fs.h`.
#[repr(C)]
struct XfsBulkRequest {
    last_ino: *mut u64,
    count: i32,
    buffer: *mut u64,
    count_out: *mut i32,
}

/// `XFS_IOC_FSBULKSTAT_SINGLE`.
const XFS_BULKSTAT_SINGLE: libc::Ioctl = 0xc020_5866_u32 as libc::Ioctl;
/// Words of `struct xfs_bstat`, rounded up, and the one whose upper half is the generation.
const XFS_BSTAT_WORDS: usize = 32;
const XFS_BSTAT_INO: usize = 0;
const XFS_BSTAT_GENERATION: usize = 13;

/// The generation of an inode on the XFS that `mount` is on.
///
/// # Errors
/// ENOTTY where it is another filesystem, EPERM without CAP_SYS_ADMIN, EINVAL or ENOENT if there is
/// no such inode.
pub fn xfs_generation(mount: BorrowedFd<'_>, ino: u64) -> Result<u32> {
    let (mut number, mut found) = (ino, 0_i32);
    let mut bstat = [0_u64; XFS_BSTAT_WORDS];
    let request = XfsBulkRequest {
        last_ino: &raw mut number,
        count: 1,
        buffer: bstat.as_mut_ptr(),
        count_out: &raw mut found,
    };
    // SAFETY: all pointers lead to live memory of the kernel's layout; `bstat` has room for one
    // `struct xfs_bstat`, which is what the command writes at most.
    let result = unsafe { libc::ioctl(mount.as_raw_fd(), XFS_BULKSTAT_SINGLE, &raw const request) };
    if result < 0 {
        return Err(last_errno());
    }
    let word = |at: usize| bstat.get(at).copied().unwrap_or_default().to_ne_bytes();
    if u64::from_ne_bytes(word(XFS_BSTAT_INO)) != ino {
        return Err(Errno::NOENT);
    }
    let [_, _, _, _, a, b, c, d] = word(XFS_BSTAT_GENERATION);
    Ok(u32::from_ne_bytes([a, b, c, d]))
}
