//! Free space of a branch, remembered for a short while.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{StatVfs, StatVfsMountFlags};

use crate::policy::Space;
use crate::sys::{self, mono_coarse_ms};

/// In `cache.statfs=auto`, space is remembered only while at least this much lies above the
/// branch's minimum: no writer fills it within [`AUTO_LIFE_MS`].
const AUTO_MARGIN_BYTES: u64 = 4 << 30;
/// How long `auto` remembers.
const AUTO_LIFE_MS: u64 = 100;

/// The last `fstatvfs` of a branch's root and when it was made.
#[derive(Default)]
pub struct SpaceCache {
    last: Mutex<Option<(u64, Sample)>>,
}

#[derive(Clone, Copy)]
struct Sample {
    available_bytes: u64,
    used_bytes: u64,
    total_bytes: u64,
    read_only_fs: bool,
}

impl Sample {
    fn new(stat: &StatVfs) -> Self {
        Sample {
            available_bytes: stat.f_frsize.saturating_mul(stat.f_bavail),
            used_bytes: stat
                .f_frsize
                .saturating_mul(stat.f_blocks.saturating_sub(stat.f_bavail)),
            total_bytes: stat.f_frsize.saturating_mul(stat.f_blocks),
            read_only_fs: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        }
    }
}

impl SpaceCache {
    /// The branch's space; `life` as `cache.statfs` says (`None` = auto), `min_free` computes
    /// the threshold from the filesystem's size.
    ///
    /// # Errors
    /// Those of `fstatvfs(2)`.
    pub fn get(
        &self,
        root: BorrowedFd<'_>,
        life: Option<Duration>,
        min_free: impl Fn(u64) -> u64,
    ) -> sys::Result<Space> {
        let now_ms = mono_coarse_ms();
        let cached = *self.last.lock();
        if let Some((made_ms, sample)) = cached {
            let life_ms = match life {
                Some(life) => life.as_millis() as u64,
                None if sample.available_bytes
                    > min_free(sample.total_bytes).saturating_add(AUTO_MARGIN_BYTES) =>
                {
                    AUTO_LIFE_MS
                }
                None => 0,
            };
            if now_ms.saturating_sub(made_ms) < life_ms {
                return Ok(sample.space(&min_free));
            }
        }
        let sample = Sample::new(&rustix::fs::fstatvfs(root)?);
        *self.last.lock() = Some((now_ms, sample));
        Ok(sample.space(&min_free))
    }

    /// Forgets the sample: the next question asks the filesystem.
    pub fn forget(&self) {
        *self.last.lock() = None;
    }
}

impl Sample {
    fn space(&self, min_free: impl Fn(u64) -> u64) -> Space {
        Space {
            available_bytes: self.available_bytes,
            used_bytes: self.used_bytes,
            read_only_fs: self.read_only_fs,
            min_free_bytes: min_free(self.total_bytes),
        }
    }
}
