//! open(2) and its kin, under the names that programs are linked to.
//!
//! In C these take their mode as a variable argument. All 64-bit Linux calling conventions pass it
//! where a third (or fourth) fixed argument is, and when the program left it out it is not looked
//! at: the kernel uses it with `O_CREAT` and `O_TMPFILE` only, which require it.
//!
//! A thread that waits in one of them may be cancelled: `C-unwind`, and nothing here to be dropped.

use libc::{c_char, c_int, mode_t};

use super::real;
use super::swap::improve;

/// Whether the mode argument means anything.
fn mode_for(flags: c_int, mode: mode_t) -> mode_t {
    let is_given = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    if is_given { mode } else { 0 }
}

/// # Safety
/// That of openat(2).
pub unsafe fn open_and_improve(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    improve(unsafe { real::openat(dir, path, flags, mode_for(flags, mode)) })
}

macro_rules! exports {
    ($($name:ident, $real:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of the function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { open_and_improve(libc::AT_FDCWD, path, flags, mode) }
        }

        #[doc = concat!("`", stringify!($real), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of the function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $real(
            dir: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { open_and_improve(dir, path, flags, mode) }
        }
    )* };
}

exports! {
    open, openat;
    open64, openat64;
}

macro_rules! creators {
    ($($name:ident),*) => { $(
        #[doc = concat!("`", stringify!($name), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of the function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, mode: mode_t) -> c_int {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            // SAFETY: the program's own arguments.
            unsafe { open_and_improve(libc::AT_FDCWD, path, flags, mode) }
        }
    )* };
}

creators!(creat, creat64);

/// What programs built with `_FORTIFY_SOURCE` call when they give no mode.
macro_rules! fortified {
    ($($name:ident, $at:ident;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of open(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { open_and_improve(libc::AT_FDCWD, path, flags, 0) }
        }

        #[doc = concat!("`", stringify!($at), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of openat(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $at(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { open_and_improve(dir, path, flags, 0) }
        }
    )* };
}

fortified! {
    __open_2, __openat_2;
    __open64_2, __openat64_2;
}
