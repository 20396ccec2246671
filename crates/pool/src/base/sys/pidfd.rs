//! What the kernel tells of a thread by its descriptor.

use std::os::fd::AsRawFd;

use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `PIDFD_GET_INFO`, of the first 64 bytes of `struct pidfd_info`.
const GET_INFO: u32 = 0xc040_ff0b;
/// `PIDFD_INFO_CREDS`.
const CREDENTIALS: u64 = 1 << 1;
/// The place of `fsuid` among the 32-bit numbers of the structure.
const FILE_USER: usize = 13;

/// The user that counts for files of a thread; none where the kernel does not say (before Linux 6.13), or
/// the user has no number here. Cheaper than `/proc` by far.
pub fn file_user_of(thread: u32) -> Option<u32> {
    let number = Pid::from_raw(i32::try_from(thread).ok()?)?;
    // The flag is PIDFD_THREAD.
    let of_thread = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    let pidfd = pidfd_open(number, of_thread).ok()?;
    let mut info = [0u32; 16];
    info[0] = CREDENTIALS as u32;
    // SAFETY: the kernel reads and writes as many bytes as the number of the call says, which is
    // what `info` has, and the structure has no stricter alignment that matters to it.
    let result = unsafe {
        libc::ioctl(
            pidfd.as_raw_fd(),
            GET_INFO as libc::Ioctl,
            info.as_mut_ptr(),
        )
    };
    let told = result == 0 && u64::from(info[0]) & CREDENTIALS != 0;
    told.then_some(info[FILE_USER])
        .filter(|user| *user != super::NOBODY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_its_users() {
        let own = std::fs::metadata("/proc/thread-self").unwrap();
        let number = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let told = file_user_of(number);
        let uid = std::os::unix::fs::MetadataExt::uid(&own);
        assert!(told.is_none_or(|told| told == uid), "{told:?}");
        assert_eq!(file_user_of(0), None);
        assert_eq!(file_user_of(u32::MAX), None);
    }
}
