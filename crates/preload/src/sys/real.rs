//! libc's own functions of the names that this library takes over.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_char, c_int, c_long, c_void, mode_t};

use super::calls;

/// One of them, found once.
pub struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Null if there is none, which no libc leads to.
    pub fn address(&self) -> *mut c_void {
        let known = self.known();
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with NUL; the next definition after ours is libc's.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }

    /// Null if nobody has looked for it yet.
    fn known(&self) -> *mut c_void {
        self.found.load(Ordering::Acquire)
    }
}

static OPENAT: Real = Real::new(c"openat");
static FCNTL: Real = Real::new(c"fcntl");

/// Those that may be called where nothing can be looked for (in the handler of a signal, while memory is
/// being handed out) are looked for when the library is loaded.
extern "C" fn find() {
    OPENAT.address();
    FCNTL.address();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = find;

type Openat = unsafe extern "C-unwind" fn(c_int, *const c_char, c_int, ...) -> c_int;
type Fcntl = unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int;

/// openat(3), where a waiting thread can be cancelled.
///
/// # Safety
/// That of openat(2).
pub unsafe fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let found = OPENAT.known();
    if found.is_null() {
        // SAFETY: as the caller promises.
        return unsafe { calls::openat(dir, path, flags, mode) };
    }
    // SAFETY: libc's function of this name has this type; as the caller promises.
    unsafe { std::mem::transmute::<*mut c_void, Openat>(found)(dir, path, flags, mode) }
}

/// fcntl(3), where a waiting thread can be cancelled.
///
/// # Safety
/// That of fcntl(2).
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    let found = FCNTL.known();
    if found.is_null() {
        // SAFETY: as the caller promises.
        let result: c_long = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) };
        return c_int::try_from(result).unwrap_or(-1);
    }
    // SAFETY: libc's function of this name has this type; as the caller promises.
    unsafe { std::mem::transmute::<*mut c_void, Fcntl>(found)(fd, command, argument) }
}
