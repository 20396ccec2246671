//! fcntl(2) and lockf(3), as far as they lock for the process: all its locks on a file are on one side.

use std::mem::transmute;

use libc::{c_int, c_void, off_t};

use super::calls;
use super::known::{Id, pool_id};
use super::real::{self, Real};
use super::sides::{self, Side};
use super::swap::id;

/// Whether the process may lock through this descriptor. Not through one of the pool's while it has the
/// branch file open: that came to it unseen (from another process, by a system call of its own) or could
/// not be put on the branch's side like the others, and its locks would stand against each other.
fn may_lock(fd: c_int) -> bool {
    let Some(found) = calls::identity(fd).filter(|found| found.is_regular) else {
        return true;
    };
    let pool = id(found);
    if found.device.major != 0 || sides::of(pool) != Some(Side::Branch) {
        return true;
    }
    if calls::any_descriptor(|fd| is_branch_file_of(fd, pool)) == Some(false) {
        sides::leave_to_pool(pool);
        return true;
    }
    false
}

fn is_branch_file_of(fd: c_int, pool: Id) -> bool {
    calls::identity(fd).is_some_and(|found| pool_id(id(found), || calls::born(fd)) == Some(pool))
}

fn checked(fd: c_int, locks: bool) -> bool {
    let errno = calls::errno();
    let may = !locks || may_lock(fd);
    calls::set_errno(if may { errno } else { libc::ENOLCK });
    may
}

macro_rules! fcntls {
    ($($name:ident),*) => { $(
        #[doc = concat!("`", stringify!($name), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of fcntl(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            command: c_int,
            argument: *mut c_void,
        ) -> c_int {
            if !checked(fd, matches!(command, libc::F_SETLK | libc::F_SETLKW)) {
                return -1;
            }
            // SAFETY: the program's own arguments.
            unsafe { real::fcntl(fd, command, argument) }
        }
    )* };
}

fcntls!(fcntl, fcntl64);

type Lockf = unsafe extern "C-unwind" fn(c_int, c_int, off_t) -> c_int;

macro_rules! lockfs {
    ($($name:ident, $text:literal;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`, as libc has it.")]
        ///
        /// # Safety
        /// That of lockf(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, bytes: off_t) -> c_int {
            static REAL: Real = Real::new($text);
            if !checked(fd, command != libc::F_TEST) {
                return -1;
            }
            let found = REAL.address();
            if found.is_null() {
                calls::set_errno(libc::ENOSYS);
                return -1;
            }
            // SAFETY: libc's function of this name has this type; the program's own arguments.
            unsafe { transmute::<*mut c_void, Lockf>(found)(fd, command, bytes) }
        }
    )* };
}

lockfs! {
    lockf, c"lockf";
    lockf64, c"lockf64";
}
