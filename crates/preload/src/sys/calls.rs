//! System calls, without libc's own functions in between: those are the ones taken over.

use libc::{c_char, c_int, c_long, mode_t};
use strandfs_preload_abi::{BRANCH_FILE, BranchFile};

/// `openat(2)`. Sets `errno`.
///
/// # Safety
/// `path` is what the program passed to its own open: a string ended by NUL.
pub unsafe fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises; a bad address is EFAULT, not more.
    let result = unsafe { libc::syscall(libc::SYS_openat, dir, path, flags, mode) };
    narrow(result)
}

/// Descriptors fit an int.
fn narrow(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// A device as statx(2) tells it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// What a descriptor is of.
#[derive(Clone, Copy)]
pub struct Identity {
    pub device: Device,
    pub inode: u64,
    pub is_regular: bool,
}

/// A device as stat(2) tells it.
pub fn number(device: Device) -> u64 {
    libc::makedev(device.major, device.minor)
}

/// Identity of an open file, from what the kernel knows already: a pool is not asked again.
pub fn identity(fd: c_int) -> Option<Identity> {
    // SAFETY: statx is plain data, for which zeros are a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mask = libc::STATX_TYPE | libc::STATX_INO;
    // SAFETY: the path is an empty string, `found` has room for the answer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            fd,
            c"".as_ptr(),
            flags,
            mask,
            &raw mut found,
        )
    };
    (result == 0 && found.stx_mask & mask == mask).then_some(Identity {
        device: Device {
            major: found.stx_dev_major,
            minor: found.stx_dev_minor,
        },
        inode: found.stx_ino,
        is_regular: u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG,
    })
}

/// Asks the server of a pool for the branch file. Other filesystems answer ENOTTY.
pub fn branch_file(fd: c_int) -> Option<BranchFile> {
    let mut answer = BranchFile::EMPTY;
    // SAFETY: the number encodes the size of `answer`, which is all that is written.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            fd,
            c_long::from(BRANCH_FILE),
            &raw mut answer,
        )
    };
    (result == 0).then_some(answer)
}

/// The flags a descriptor's file was opened with.
pub fn open_flags(fd: c_int) -> Option<c_int> {
    // SAFETY: F_GETFL takes no pointer.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) };
    (flags >= 0).then_some(narrow(flags))
}

/// Whether a descriptor closes at exec.
pub fn closes_at_exec(fd: c_int) -> bool {
    // SAFETY: F_GETFD takes no pointer.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) };
    flags >= 0 && narrow(flags) & libc::FD_CLOEXEC != 0
}

/// Where a descriptor's file stands.
pub fn position(fd: c_int) -> Option<i64> {
    // SAFETY: no pointers.
    let at = unsafe { libc::lseek64(fd, 0, libc::SEEK_CUR) };
    (at >= 0).then_some(at)
}

/// Moves it.
pub fn set_position(fd: c_int, at: i64) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::lseek64(fd, at, libc::SEEK_SET) == at }
}

/// Puts `from` in the place of `to`.
pub fn replace(from: c_int, to: c_int, cloexec: bool) -> bool {
    let flags = if cloexec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: no pointers; `to` is a descriptor this call was asked to open.
    unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) >= 0 }
}

/// Closes a descriptor of this library's own.
pub fn close(fd: c_int) {
    // SAFETY: nobody else knows this descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// This thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: libc gives every thread a valid place.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(value: c_int) {
    // SAFETY: libc gives every thread a valid place.
    unsafe { *libc::__errno_location() = value }
}
