//! Asking a filesystem from a process that shares nothing with this one.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;

use super::descriptors::leave_descriptors;
use super::device::last_errno;
use crate::types::Errno;

/// Has a child process ask for the attributes of `path`, past all caches, and waits until it has;
/// what it hears does not matter. Its number is in `asker` before it asks, and returned. The child has no
/// descriptor and a memory of its own: neither keeps anything of this process alive, should this one
/// be killed meanwhile. EAGAIN, ENOMEM: there can be no further process.
pub(crate) fn ask_in_child(path: &CStr, asker: &AtomicU32) -> Result<u32, Errno> {
    // The table of descriptors is shared until the child leaves it. Nothing is signalled at its end,
    // which is nobody else's to notice.
    let flags = libc::CLONE_FILES | libc::CLONE_PARENT_SETTID;
    // SAFETY: without CLONE_VM the child goes on with a copy of this memory and this stack; the
    // kernel writes its number to `asker`, which lives on. The child comes to nothing but the system
    // calls below, which need no lock that another thread may have held.
    let child = unsafe {
        libc::syscall(
            libc::SYS_clone,
            flags as libc::c_ulong,
            std::ptr::null_mut::<libc::c_void>(),
            asker.as_ptr(),
            std::ptr::null_mut::<libc::c_void>(),
            std::ptr::null_mut::<libc::c_void>(),
        )
    };
    match child {
        0 => ask_and_end(path),
        -1 => Err(last_errno()),
        child => wait_for(child as libc::pid_t).map(|()| child as u32),
    }
}

/// The life of the child.
fn ask_and_end(path: &CStr) -> ! {
    let mut stat = MaybeUninit::<libc::statx>::uninit();
    if leave_descriptors().is_ok() {
        // SAFETY: the path ends with NUL, and the attributes have their room.
        unsafe {
            let flags = libc::AT_STATX_FORCE_SYNC | libc::AT_NO_AUTOMOUNT;
            libc::syscall(
                libc::SYS_statx,
                libc::AT_FDCWD,
                path.as_ptr(),
                flags,
                libc::STATX_BASIC_STATS,
                stat.as_mut_ptr(),
            );
        }
    }
    loop {
        // SAFETY: the process ends without running anything of the one it was copied from.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}

fn wait_for(child: libc::pid_t) -> Result<(), Errno> {
    loop {
        // SAFETY: where it ended is not asked for.
        let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
        match waited {
            -1 if last_errno() == Errno::INTR => {}
            -1 => return Err(last_errno()),
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn the_child_has_a_number_and_ends_and_no_descriptor_here_is_closed() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let asker = AtomicU32::new(0);
        let child = ask_in_child(c"/", &asker).unwrap();
        assert_eq!(asker.load(Ordering::Acquire), child);
        assert!(child != 0 && child != std::process::id());
        // It is over, and waited for.
        assert!(!std::path::Path::new(&format!("/proc/{child}")).exists());
        file.metadata().unwrap();
    }
}
