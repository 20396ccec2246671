//! fopen(3): libc's own would open by an internal function, and the descriptor beneath a stream cannot
//! be changed without closing the branch file once, which ends the locks of the process on it. So the
//! file is opened here. What is asked of no other function (`,ccs=`) is left to libc, and so is
//! freopen(3), which keeps its descriptor.

use std::ffi::CStr;
use std::mem::transmute;
use std::ptr;

use libc::{FILE, c_char, c_int, c_void};

use super::calls;
use super::exports::open_and_improve;
use super::real::Real;

type Fopen = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut FILE;

/// The flags of a mode; none for one that is libc's to judge.
fn flags(mode: &[u8]) -> Option<c_int> {
    let (first, rest) = mode.split_first()?;
    let mut flags = match first {
        b'r' => libc::O_RDONLY,
        b'w' => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    // Further ones libc does not look at either.
    for byte in rest.iter().take(6) {
        match byte {
            b'+' => flags = flags & !libc::O_ACCMODE | libc::O_RDWR,
            b'x' => flags |= libc::O_EXCL,
            b'e' => flags |= libc::O_CLOEXEC,
            b'b' | b't' => {}
            _ => return None,
        }
    }
    (rest.len() <= 6).then_some(flags)
}

/// # Safety
/// That of fopen(3).
unsafe fn open_stream(path: *const c_char, mode: *const c_char, flags: c_int) -> *mut FILE {
    // SAFETY: the program's own arguments.
    let fd = unsafe { open_and_improve(libc::AT_FDCWD, path, flags, 0o666) };
    if fd < 0 {
        return ptr::null_mut();
    }
    if flags & libc::O_APPEND != 0 && flags & libc::O_ACCMODE == libc::O_WRONLY {
        calls::seek_to_end(fd);
    }
    // SAFETY: the descriptor was just opened as the mode says.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        // No memory. Locks on this file end, as by the close of any descriptor.
        let errno = calls::errno();
        calls::close(fd);
        calls::set_errno(errno);
    }
    stream
}

macro_rules! streams {
    ($($name:ident, $text:literal;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of fopen(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            mode: *const c_char,
        ) -> *mut FILE {
            static REAL: Real = Real::new($text);
            // SAFETY: a string ended by NUL.
            if let Some(flags) = flags(unsafe { CStr::from_ptr(mode) }.to_bytes()) {
                // SAFETY: the program's own arguments.
                return unsafe { open_stream(path, mode, flags) };
            }
            let real = REAL.address();
            if real.is_null() {
                calls::set_errno(libc::ENOSYS);
                return ptr::null_mut();
            }
            // SAFETY: libc's function of this name has this type; the program's own arguments.
            unsafe { transmute::<*mut c_void, Fopen>(real)(path, mode) }
        }
    )* };
}

streams! {
    fopen, c"fopen";
    fopen64, c"fopen64";
}
