//! fopen(3) and freopen(3): libc opens them by its own internal functions, so the descriptor is
//! changed beneath the stream, which has read and written nothing yet.

use std::ffi::CStr;
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, c_char, c_void};

use super::calls;
use super::swap::improve;

/// libc's own function of a name this library takes over, found once.
struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Null if there is none, which no libc leads to.
    fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with NUL; the next definition after ours is libc's.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        found
    }
}

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
type Freopen = unsafe extern "C" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;

/// Improves the descriptor of a stream just opened.
///
/// # Safety
/// `stream` is null or what fopen returned.
unsafe fn improve_stream(stream: *mut FILE) -> *mut FILE {
    if !stream.is_null() {
        // SAFETY: an open stream.
        let fd = unsafe { libc::fileno(stream) };
        improve(fd);
    }
    stream
}

fn missing() -> *mut FILE {
    calls::set_errno(libc::ENOSYS);
    ptr::null_mut()
}

/// Functions that return a stream, by name, type and arguments.
macro_rules! streams {
    ($($name:ident: $type:ty = ($($argument:ident: $kind:ty),*);)*) => { $(
        #[doc = concat!("`", stringify!($name), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of the function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> *mut FILE {
            static REAL: Real = Real::new(match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => c"",
            });
            let real = REAL.address();
            if real.is_null() {
                return missing();
            }
            // SAFETY: libc's function of this name has this type.
            let real = unsafe { transmute::<*mut c_void, $type>(real) };
            // SAFETY: the program's own arguments; the result is a stream or null.
            unsafe { improve_stream(real($($argument),*)) }
        }
    )* };
}

streams! {
    fopen: Fopen = (path: *const c_char, mode: *const c_char);
    fopen64: Fopen = (path: *const c_char, mode: *const c_char);
    freopen: Freopen = (path: *const c_char, mode: *const c_char, stream: *mut FILE);
    freopen64: Freopen = (path: *const c_char, mode: *const c_char, stream: *mut FILE);
}
