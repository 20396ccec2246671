//! fstat(2) and its kin: the identity of a branch file is shown as the pool's.

use libc::{c_char, c_int, c_uint, stat};

use super::calls::{self, Device};
use super::known::{Id, pool_id};

/// Shows the pool's identity in a result.
///
/// # Safety
/// `result` is what a successful call for `fd` has just filled.
unsafe fn translate(fd: c_int, result: *mut stat) {
    // SAFETY: as the caller promises.
    let found = unsafe { &mut *result };
    let branch = Id {
        device: found.st_dev,
        inode: found.st_ino,
    };
    if let Some(pool) = pool_id(branch, || calls::born(fd)) {
        found.st_dev = pool.device;
        found.st_ino = pool.inode;
    }
}

/// # Safety
/// That of fstatat(2).
unsafe fn stat_and_translate(
    dir: c_int,
    path: *const c_char,
    result: *mut stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own arguments; the kernel's struct is libc's on 64-bit Linux.
    let done = unsafe { libc::syscall(libc::SYS_newfstatat, dir, path, result, flags) };
    if done != 0 {
        return -1;
    }
    // SAFETY: `path` was good enough for the kernel; `result` is filled.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || *path == 0) {
            translate(dir, result);
        }
    }
    0
}

macro_rules! fstats {
    ($($fstat:ident, $fxstat:ident, $fstatat:ident, $fxstatat:ident;)*) => { $(
        #[doc = concat!("`", stringify!($fstat), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of fstat(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fstat(fd: c_int, result: *mut stat) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { stat_and_translate(fd, c"".as_ptr(), result, libc::AT_EMPTY_PATH) }
        }

        #[doc = concat!("`", stringify!($fxstat), "`, which programs built with glibc before 2.33 call.")]
        ///
        /// # Safety
        /// That of fstat(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fxstat(_version: c_int, fd: c_int, result: *mut stat) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { stat_and_translate(fd, c"".as_ptr(), result, libc::AT_EMPTY_PATH) }
        }

        #[doc = concat!("`", stringify!($fstatat), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of fstatat(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fstatat(
            dir: c_int,
            path: *const c_char,
            result: *mut stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { stat_and_translate(dir, path, result, flags) }
        }

        #[doc = concat!("`", stringify!($fxstatat), "`, which programs built with glibc before 2.33 call.")]
        ///
        /// # Safety
        /// That of fstatat(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fxstatat(
            _version: c_int,
            dir: c_int,
            path: *const c_char,
            result: *mut stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { stat_and_translate(dir, path, result, flags) }
        }
    )* };
}

fstats! {
    fstat, __fxstat, fstatat, __fxstatat;
    fstat64, __fxstat64, fstatat64, __fxstatat64;
}

/// `statx`, as libc has it.
///
/// # Safety
/// That of statx(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    result: *mut libc::statx,
) -> c_int {
    // SAFETY: the program's own arguments.
    let done = unsafe { libc::syscall(libc::SYS_statx, dir, path, flags, mask, result) };
    if done != 0 {
        return -1;
    }
    // SAFETY: `path` was good enough for the kernel; `result` is filled.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || *path == 0) {
            let found = &mut *result;
            let device = Device {
                major: found.stx_dev_major,
                minor: found.stx_dev_minor,
            };
            let branch = Id {
                device: calls::number(device),
                inode: found.stx_ino,
            };
            if let Some(pool) = pool_id(branch, || calls::born(dir)) {
                found.stx_ino = pool.inode;
                found.stx_dev_major = libc::major(pool.device);
                found.stx_dev_minor = libc::minor(pool.device);
            }
        }
    }
    0
}
