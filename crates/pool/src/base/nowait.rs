//! Which files can be read and written without waiting for a device.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::base::branch::{Branch, Latency};
use crate::base::sys;

/// How the data of an open file can be had without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtOnce {
    /// It is in memory, and nowhere else: no read or write of it waits.
    InMemory,
    /// The kernel can be told not to wait (`RWF_NOWAIT`), and says EAGAIN instead.
    Asking {
        /// For reads, as far as is known.
        reads: bool,
        /// For writes.
        writes: bool,
    },
}

impl AtOnce {
    /// It cannot be had so.
    pub const NEVER: Self = Self::Asking {
        reads: false,
        writes: false,
    };

    /// Of a file opened on this branch, or on what is mounted below it. Asks the kernel what it
    /// knows without asking the filesystem.
    pub fn of(branch: &Branch, file: impl AsFd) -> Self {
        let medium = branch.medium().latency;
        if medium.may_hang() {
            return Self::NEVER;
        }
        let file = file.as_fd();
        let own = device_of(file).is_ok_and(|device| device == branch.mark().device);
        if medium == Latency::Memory && own {
            return Self::InMemory;
        }
        // Direct and synchronous transfers wait for the device all the same.
        let waits = OFlags::DIRECT | OFlags::SYNC | OFlags::DSYNC;
        match rustix::fs::fcntl_getfl(file) {
            Ok(flags) if own && !flags.intersects(waits) => Self::Asking {
                reads: true,
                writes: true,
            },
            _ => Self::NEVER,
        }
    }

    /// Reads, and says EAGAIN rather than wait; EOPNOTSUPP where that cannot be told.
    pub fn read(
        self,
        file: BorrowedFd<'_>,
        out: &mut [u8],
        offset_bytes: u64,
    ) -> sys::Result<usize> {
        match self {
            Self::InMemory => rustix::io::pread(file, out, offset_bytes),
            Self::Asking { reads: true, .. } => {
                let out = &mut [IoSliceMut::new(out)];
                rustix::io::preadv2(file, out, offset_bytes, ReadWriteFlags::NOWAIT)
            }
            Self::Asking { .. } => Err(Errno::OPNOTSUPP),
        }
    }

    /// Writes, as [`read`](Self::read).
    pub fn write(self, file: BorrowedFd<'_>, data: &[u8], offset_bytes: u64) -> sys::Result<usize> {
        match self {
            Self::InMemory => rustix::io::pwrite(file, data, offset_bytes),
            Self::Asking { writes: true, .. } => {
                let data = &[IoSlice::new(data)];
                rustix::io::pwritev2(file, data, offset_bytes, ReadWriteFlags::NOWAIT)
            }
            Self::Asking { .. } => Err(Errno::OPNOTSUPP),
        }
    }

    /// What is left of it when its filesystem will not be told so about reads, or about writes.
    pub fn without(self, reading: bool) -> Self {
        match self {
            Self::InMemory => Self::InMemory,
            Self::Asking { reads, writes } => Self::Asking {
                reads: reads && !reading,
                writes: writes && reading,
            },
        }
    }
}

fn device_of(file: BorrowedFd<'_>) -> sys::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, c"", flags, StatxFlags::empty())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: AtOnce = AtOnce::Asking {
        reads: true,
        writes: true,
    };

    #[test]
    fn what_cannot_be_asked_is_not_asked_again() {
        let writes = BOTH.without(true);
        assert_eq!(writes.without(false), AtOnce::NEVER);
        assert_eq!(BOTH.without(false).without(true), AtOnce::NEVER);
        assert_eq!(AtOnce::InMemory.without(true), AtOnce::InMemory);
    }

    #[test]
    fn bytes_are_those_of_the_file_or_none() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_fd();
        assert_eq!(AtOnce::InMemory.write(fd, b"abc", 5), Ok(3));
        let mut out = [1; 8];
        assert_eq!(AtOnce::InMemory.read(fd, &mut out, 4), Ok(4));
        assert_eq!(&out[..4], b"\0abc");
        assert_eq!(AtOnce::InMemory.read(fd, &mut out, 100), Ok(0));
        let refusal = AtOnce::NEVER.read(fd, &mut out, 0);
        assert_eq!(refusal, Err(Errno::OPNOTSUPP));
        // What the filesystem of /tmp can be told is its own business, but what it does is right.
        if let Ok(count) = BOTH.read(fd, &mut out, 4) {
            assert_eq!(&out[..count], &b"\0abc"[..count]);
        }
        if let Ok(count) = BOTH.write(fd, b"xyz", 5) {
            let mut all = [0; 3];
            assert_eq!(AtOnce::InMemory.read(fd, &mut all, 5), Ok(3));
            assert_eq!(all[..count], b"xyz"[..count]);
        }
    }
}
