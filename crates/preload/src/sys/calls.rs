//! System calls, without libc's own functions in between: those are the ones taken over.
//!
//! None of them is a point where a thread can be cancelled.

use std::ffi::CStr;

use libc::{c_char, c_int, c_long, mode_t};
use strandfs_preload_abi::{BRANCH_FILE, BranchFile, number as number_of};

/// `openat(2)`. Sets `errno`.
///
/// # Safety
/// `path` is what the program passed to its own open: a string ended by NUL.
pub unsafe fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises; a bad address is EFAULT, not more.
    let result = unsafe { libc::syscall(libc::SYS_openat, dir, path, flags, mode) };
    narrow(result)
}

/// What is at an absolute path (`O_PATH`), reached through no symbolic link.
pub fn place(path: &CStr) -> c_int {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: open_how is plain data, for which zeros are a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from(flags.cast_unsigned());
    how.resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: the path ends with NUL, `how` is of the size that is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    if result < 0 && errno() == libc::ENOSYS {
        // Before Linux 5.6. The file's identity is compared in any case.
        // SAFETY: the path ends with NUL.
        return unsafe { openat(libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    }
    narrow(result)
}

/// Opens the very file behind an `O_PATH` descriptor.
pub fn reopen(place: c_int, flags: c_int) -> c_int {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let mut path = [0; 32];
    let mut rest = place.unsigned_abs();
    let digits = rest.checked_ilog10().unwrap_or(0) as usize + 1;
    for (at, byte) in PREFIX.iter().enumerate() {
        path[at] = *byte;
    }
    for at in (PREFIX.len()..PREFIX.len() + digits).rev() {
        path[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // SAFETY: at most ten digits follow the prefix, and zeros those.
    unsafe { openat(libc::AT_FDCWD, path.as_ptr().cast(), flags, 0) }
}

/// The number of the mount that a descriptor is on, and whether no other mount ever gets it;
/// `wanted` is one of the two kinds of number. A server is not asked.
pub fn mount_number(fd: c_int, wanted: u32) -> Option<u64> {
    statx_unasked(fd, wanted).map(|found| found.stx_mnt_id)
}

/// These attributes of an open file, from what the kernel knows already; none if one is missing.
fn statx_unasked(fd: c_int, wanted: u32) -> Option<libc::statx> {
    // SAFETY: statx is plain data, for which zeros are a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is an empty string, `found` has room for the answer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            fd,
            c"".as_ptr(),
            flags,
            wanted,
            &raw mut found,
        )
    };
    (result == 0 && found.stx_mask & wanted == wanted).then_some(found)
}

/// Reads a file piece by piece, without memory of its own; false if that fails.
pub fn read_pieces(path: &CStr, take: impl FnMut(&[u8])) -> bool {
    // SAFETY: the path ends with NUL.
    let fd = unsafe { openat(libc::AT_FDCWD, path.as_ptr(), libc::O_CLOEXEC, 0) };
    fd >= 0 && read_all(fd, take)
}

/// Reads what is left, and closes the descriptor.
fn read_all(fd: c_int, mut take: impl FnMut(&[u8])) -> bool {
    let mut piece = [0u8; 512];
    let end = loop {
        // SAFETY: `piece` has room for as many bytes as are asked for.
        let got = unsafe { libc::syscall(libc::SYS_read, fd, piece.as_mut_ptr(), piece.len()) };
        match usize::try_from(got).map(|got| piece.get(..got)) {
            Ok(Some([])) => break true,
            Ok(Some(bytes)) => take(bytes),
            _ if errno() == libc::EINTR => {}
            _ => break false,
        }
    };
    close(fd);
    end
}

/// Whether the program runs with more rights than whoever started it (set-id bits, capabilities).
pub fn runs_with_more_rights() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The user this process is, if it is that one in every respect.
pub fn only_user() -> Option<u32> {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: three places for a user id.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getresuid,
            &raw mut real,
            &raw mut effective,
            &raw mut saved,
        )
    };
    (result == 0 && real == effective && effective == saved).then_some(real)
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
    let found = statx_unasked(fd, libc::STATX_TYPE | libc::STATX_INO)?;
    Some(Identity {
        device: Device {
            major: found.stx_dev_major,
            minor: found.stx_dev_minor,
        },
        inode: found.stx_ino,
        is_regular: u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG,
    })
}

/// When the file of a descriptor was made, in nanoseconds; 0 where the filesystem does not say.
pub fn born(fd: c_int) -> u64 {
    let found = statx_unasked(fd, libc::STATX_BTIME);
    let nanoseconds = |time: libc::statx_timestamp| {
        let seconds = time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000);
        seconds.wrapping_add(u64::from(time.tv_nsec))
    };
    found.map_or(0, |found| nanoseconds(found.stx_btime))
}

/// Asks the server of a pool for the branch file. Other filesystems answer ENOTTY.
pub fn branch_file(fd: c_int, answer: &mut BranchFile) -> bool {
    // SAFETY: the number encodes the size of `answer`, which is all that is written.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            fd,
            c_long::from(BRANCH_FILE),
            std::ptr::from_mut(answer),
        )
    };
    result == 0
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

/// Moves to the end of the file.
pub fn seek_to_end(fd: c_int) {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_lseek, fd, 0, libc::SEEK_END) };
}

/// One more descriptor of the same open file, the lowest free one.
pub fn duplicate(fd: c_int, cloexec: bool) -> c_int {
    let command = match cloexec {
        true => libc::F_DUPFD_CLOEXEC,
        false => libc::F_DUPFD,
    };
    // SAFETY: no pointers.
    narrow(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, 0) })
}

/// Has a descriptor close at exec or not.
pub fn close_at_exec(fd: c_int, cloexec: bool) {
    let flags = if cloexec { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFD, flags) };
}

/// Where a symbolic link leads, as far as it fits.
pub fn read_link<'a>(path: &CStr, room: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: the path ends with NUL, `room` is as large as is told.
    let got = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            path.as_ptr(),
            room.as_mut_ptr(),
            room.len(),
        )
    };
    usize::try_from(got)
        .ok()
        .and_then(|got| room.get(..got))
        .unwrap_or_default()
}

/// Whether one of this thread's descriptors is such; `None` if they cannot be listed.
pub fn any_descriptor(mut is_such: impl FnMut(c_int) -> bool) -> Option<bool> {
    /// `struct linux_dirent64` up to the name; its length is at 16.
    const NAME_AT: usize = 19;
    let path = c"/proc/thread-self/fd";
    let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path ends with NUL.
    let list = unsafe { openat(libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    if list < 0 {
        return None;
    }
    let mut piece = [0u8; 512];
    let outcome = 'all: loop {
        // SAFETY: `piece` is as large as is told.
        let got =
            unsafe { libc::syscall(libc::SYS_getdents64, list, piece.as_mut_ptr(), piece.len()) };
        let mut rest = match usize::try_from(got).ok().and_then(|got| piece.get(..got)) {
            Some([]) => break Some(false),
            Some(entries) => entries,
            None => break None,
        };
        while let Some(&[low, high]) = rest.get(16..18) {
            let bytes = usize::from(u16::from_ne_bytes([low, high]));
            let Some((entry, after)) = rest.split_at_checked(bytes.max(NAME_AT)) else {
                break 'all None;
            };
            rest = after;
            let name = entry.get(NAME_AT..).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let fd = number_of(name).and_then(|fd| c_int::try_from(fd).ok());
            if fd.is_some_and(|fd| fd != list && is_such(fd)) {
                break 'all Some(true);
            }
        }
    };
    close(list);
    outcome
}

/// Closes a descriptor. The process loses the locks it has on this very file: never to be called for a
/// branch file, unless opened with `O_PATH`.
pub fn close(fd: c_int) {
    // SAFETY: nobody else uses this descriptor.
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
