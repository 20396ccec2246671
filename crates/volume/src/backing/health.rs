//! Whether what was acknowledged is still there, and made to last.

use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, StatxFlags};
use strandfs_fuse::{Errno, SyncScope};

use super::Backing;

/// What must last before a write with these flags of open(2) is answered: the data and what is needed
/// to read them back, or all that is known of the file.
pub fn lasting(flags: i32) -> Option<SyncScope> {
    // O_SYNC has the bit of O_DSYNC, too.
    match flags & libc::O_SYNC {
        libc::O_SYNC => Some(SyncScope::All),
        libc::O_DSYNC => Some(SyncScope::DataOnly),
        _ => None,
    }
}

impl Backing {
    /// # Errors
    /// EIO for a transfer of what lies behind the place where the file was found to be cut off:
    /// writing there would make zeros of what is missing.
    pub fn check_present(&self, offset_bytes: u64, len: usize) -> Result<(), Errno> {
        let end = offset_bytes.saturating_add(len as u64);
        match end > self.cut_at_bytes.load(Ordering::Acquire) {
            true => Err(Errno::IO),
            false => Ok(()),
        }
    }

    /// Sees whether the file has been cut short, and where. For before a write: behind the cut it
    /// would make the file longer again, with zeros for what is missing. Takes the kernel's word,
    /// without asking the server of a network filesystem or of a pool.
    pub fn glance(&self) {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        // Before the file's, for both may be growing.
        let expected = self.size_bytes();
        let known = rustix::fs::statx(&self.plain, c"", flags, StatxFlags::SIZE);
        if known.is_ok_and(|known| known.stx_size < expected) {
            self.look();
        }
    }

    /// The same, and asks whoever knows. Where that fails, the next transfer says why.
    pub(super) fn look(&self) {
        let expected = self.size_bytes();
        match self.stat().map(|stat| stat.st_size.cast_unsigned()) {
            Ok(found) if found < expected => self.is_cut_at(found),
            _ => {}
        }
    }

    /// Makes what was written last.
    ///
    /// # Errors
    /// Those of fsync(2), and those of [`check_whole`](Self::check_whole).
    pub fn sync(&self, scope: SyncScope) -> Result<(), Errno> {
        let flushed = rustix::io::retry_on_intr(|| match scope {
            SyncScope::DataOnly => rustix::fs::fdatasync(&self.plain),
            SyncScope::All => rustix::fs::fsync(&self.plain),
        });
        self.flushed(flushed)
    }

    /// What is to be said of a flush that ended so.
    ///
    /// # Errors
    /// Its own, and those of [`check_whole`](Self::check_whole).
    pub fn flushed(&self, outcome: Result<(), Errno>) -> Result<(), Errno> {
        if let Err(errno) = outcome {
            let first = self.flush_errno.compare_exchange(
                0,
                errno.raw_os_error(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if first.is_ok() {
                tracing::error!(
                    backing = %self.path.display(),
                    %errno,
                    "writing out the backing file failed, and what was written to the volume may \
                     be lost; every flush fails from now on: unmount what is on the volume, detach \
                     it, and check the filesystem on it when it is attached again"
                );
            }
            return Err(errno);
        }
        self.check_whole()
    }

    /// The error of the first flush that failed.
    pub fn flush_error(&self) -> Option<Errno> {
        match self.flush_errno.load(Ordering::Acquire) {
            0 => None,
            raw => Some(Errno::from_raw_os_error(raw)),
        }
    }

    /// Whether all that was ever acknowledged is still there to be made to last.
    ///
    /// # Errors
    /// EIO if the backing file is shorter than the volume, or was: what was cut off had perhaps
    /// been acknowledged. The error of an earlier flush: the kernel tells of data it could not
    /// write out only once, and then forgets them.
    pub fn check_whole(&self) -> Result<(), Errno> {
        if let Some(errno) = self.flush_error() {
            return Err(errno);
        }
        let expected = self.size_bytes();
        let was_cut = self.cut_at_bytes.load(Ordering::Acquire) < expected;
        match was_cut || self.stat()?.st_size.cast_unsigned() < expected {
            true => Err(self.cut_short()),
            false => Ok(()),
        }
    }

    /// Somebody truncated the file under us: EIO.
    pub fn cut_short(&self) -> Errno {
        self.is_cut_at(self.stat().map_or(0, |stat| stat.st_size.cast_unsigned()));
        Errno::IO
    }

    fn is_cut_at(&self, end: u64) {
        if self.cut_at_bytes.fetch_min(end, Ordering::AcqRel) == u64::MAX {
            tracing::error!(
                backing = %self.path.display(),
                volume_bytes = self.size_bytes(),
                backing_bytes = end,
                "the backing file has become shorter than the volume: what was cut off is lost, \
                 reading and writing there gives EIO, and every flush fails; unmount, detach, and \
                 check the filesystem on the volume"
            );
        }
    }
}
