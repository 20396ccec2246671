//! Asking a filesystem for something from a process that shares nothing with this one.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use super::descriptors::leave_descriptors;
use super::device::last_errno;
use crate::types::Errno;

/// What a child is for.
#[derive(Clone, Copy)]
enum Errand {
    /// Ask for attributes, past all caches.
    Attributes,
    /// Have everything written out that the kernel keeps for the filesystem.
    WriteOut,
    /// As flags of umount2(2).
    Unmount(libc::c_int),
}

/// Has a child process ask for the attributes of `path`, past all caches, and waits until it has;
/// what it hears does not matter. Its number is in `asker` before it asks, and returned. The child has no
/// descriptor and a memory of its own: neither keeps anything of this process alive, should this one
/// be killed meanwhile. EAGAIN, ENOMEM: there can be no further process.
pub(crate) fn ask_in_child(path: &CStr, asker: &AtomicU32) -> Result<u32, Errno> {
    run_child(path, asker, Errand::Attributes)?;
    Ok(asker.load(Ordering::Acquire))
}

/// The same for one that wants to hear the answer: errors of statx(2), and those of making a process.
pub(crate) fn attributes_in_child(path: &CStr) -> Result<(), Errno> {
    outcome(run_child(path, &AtomicU32::new(0), Errand::Attributes)?)
}

/// Has such a child write out what the kernel keeps for the filesystem with the directory `path`, and
/// waits until it has. Errors of open(2) and syncfs(2), and those of making a process.
pub(crate) fn write_out_in_child(path: &CStr) -> Result<(), Errno> {
    outcome(run_child(path, &AtomicU32::new(0), Errand::WriteOut)?)
}

/// Has such a child unmount what is seen at `path`: unmounting waits for the data that are still to be
/// written. Errors of umount2(2), and those of making a process.
pub(crate) fn unmount_in_child(path: &CStr, flags: libc::c_int) -> Result<(), Errno> {
    outcome(run_child(path, &AtomicU32::new(0), Errand::Unmount(flags))?)
}

/// Whether an error of these may be that there is no such child to be had.
pub(crate) fn has_no_child(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::AGAIN | Errno::NOMEM | Errno::NOSYS | Errno::MFILE
    )
}

fn outcome(status: i32) -> Result<(), Errno> {
    match status {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// Starts a child and waits for it; how it has ended.
fn run_child(path: &CStr, number: &AtomicU32, errand: Errand) -> Result<i32, Errno> {
    // The table of descriptors is shared until the child leaves it. Nothing is signalled at its end,
    // which is nobody else's to notice.
    let flags = libc::CLONE_FILES | libc::CLONE_PARENT_SETTID;
    // SAFETY: without CLONE_VM the child goes on with a copy of this memory and this stack; the
    // kernel writes its number to `number`, which lives on. The child comes to nothing but the system
    // calls below, which need no lock that another thread may have held.
    let child = unsafe {
        libc::syscall(
            libc::SYS_clone,
            flags as libc::c_ulong,
            std::ptr::null_mut::<libc::c_void>(),
            number.as_ptr(),
            std::ptr::null_mut::<libc::c_void>(),
            std::ptr::null_mut::<libc::c_void>(),
        )
    };
    match child {
        0 => run_and_end(path, errand),
        -1 => Err(last_errno()),
        child => wait_for(child as libc::pid_t),
    }
}

/// The life of the child.
fn run_and_end(path: &CStr, errand: Errand) -> ! {
    let done = leave_descriptors().and_then(|()| match errand {
        Errand::Attributes => ask(path),
        Errand::WriteOut => write_out(path),
        Errand::Unmount(flags) => unmount(path, flags),
    });
    let status = done.map_or_else(Errno::raw_os_error, |()| 0);
    loop {
        // SAFETY: the process ends without running anything of the one it was copied from.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    match result {
        -1 => Err(last_errno()),
        result => Ok(result),
    }
}

fn ask(path: &CStr) -> Result<(), Errno> {
    let mut stat = MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_STATX_FORCE_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: the path ends with NUL, and the attributes have their room.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            libc::STATX_BASIC_STATS,
            stat.as_mut_ptr(),
        )
    };
    check(result).map(drop)
}

fn write_out(path: &CStr) -> Result<(), Errno> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path ends with NUL.
    let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    let directory = check(opened)?;
    // SAFETY: no memory is passed; the descriptor goes with the process.
    check(unsafe { libc::syscall(libc::SYS_syncfs, directory) }).map(drop)
}

fn unmount(path: &CStr, flags: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the path ends with NUL.
    let result = unsafe { libc::syscall(libc::SYS_umount2, path.as_ptr(), flags) };
    check(result).map(drop)
}

/// How it has ended; a death by signal counts as EINTR.
fn wait_for(child: libc::pid_t) -> Result<i32, Errno> {
    let mut status = 0;
    loop {
        // SAFETY: the status has its room.
        let waited = unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
        match waited {
            -1 if last_errno() == Errno::INTR => {}
            -1 => return Err(last_errno()),
            _ if libc::WIFEXITED(status) => return Ok(libc::WEXITSTATUS(status)),
            _ => return Err(Errno::INTR),
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

    #[test]
    fn what_the_child_cannot_do_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let name = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
        assert_eq!(write_out_in_child(&name), Ok(()));
        assert_eq!(write_out_in_child(c"/no/such"), Err(Errno::NOENT));
        assert_eq!(attributes_in_child(&name), Ok(()));
        assert_eq!(attributes_in_child(c"/no/such"), Err(Errno::NOENT));
        // Without root it is not even looked for.
        let nothing = unmount_in_child(c"/no/such", 0);
        assert!(matches!(nothing, Err(Errno::NOENT | Errno::PERM)));
    }
}
