//! Free space of a branch, remembered for a short while.

use std::ops::RangeInclusive;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{StatVfs, StatVfsMountFlags};

use crate::base::policy::Space;
use crate::base::sys::{self, mono_coarse_ms};

/// In `cache.statfs=auto`, space is remembered for as long as a writer of this speed needs for what
/// lies above the branch's minimum. None is as fast: memory is not.
pub(super) const AUTO_FILL_BYTES_PER_MS: u64 = 40 << 20;
/// The longest and the shortest time that `auto` remembers; the clock ticks every few milliseconds.
const AUTO_LIFE_MS: RangeInclusive<u64> = 10..=100;

/// The last `fstatvfs` of a branch's root and when it was made.
#[derive(Default)]
pub struct SpaceCache {
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    made_ms: u64,
    stat: Option<StatVfs>,
    /// To be asked for anew before it is relied on.
    stale: bool,
}

impl SpaceCache {
    /// The branch's space; `life` as `cache.statfs` says (`None` = auto), `min_free` computes
    /// the threshold from the filesystem's size, `ask` asks the filesystem.
    ///
    /// # Errors
    /// Those of `ask`.
    pub fn get(
        &self,
        life: Option<Duration>,
        min_free: impl Fn(u64) -> u64,
        ask: impl FnOnce() -> sys::Result<StatVfs>,
    ) -> sys::Result<Space> {
        let now_ms = mono_coarse_ms();
        {
            let last = self.last.lock();
            if let (Some(stat), false) = (&last.stat, last.stale) {
                let space = space_of(stat, &min_free);
                let life_ms = match life {
                    Some(life) => life.as_millis() as u64,
                    None => auto_life_ms(&space),
                };
                if now_ms.saturating_sub(last.made_ms) < life_ms {
                    return Ok(space);
                }
            }
        }
        Ok(space_of(&ask()?, min_free))
    }

    /// What the filesystem said last, however long ago.
    pub fn last(&self) -> Option<StatVfs> {
        self.last.lock().stat.as_ref().map(copy_of)
    }

    /// Notes what the filesystem says.
    pub fn note(&self, stat: &StatVfs) {
        *self.last.lock() = Last {
            made_ms: mono_coarse_ms(),
            stat: Some(copy_of(stat)),
            stale: false,
        };
    }

    /// The next question asks the filesystem.
    pub fn forget(&self) {
        self.last.lock().stale = true;
    }
}

fn auto_life_ms(space: &Space) -> u64 {
    let margin_bytes = space.available_bytes.saturating_sub(space.min_free_bytes);
    let life_ms = margin_bytes / AUTO_FILL_BYTES_PER_MS;
    match life_ms < *AUTO_LIFE_MS.start() {
        true => 0,
        false => life_ms.min(*AUTO_LIFE_MS.end()),
    }
}

/// The type cannot be cloned.
fn copy_of(stat: &StatVfs) -> StatVfs {
    StatVfs { ..*stat }
}

fn space_of(stat: &StatVfs, min_free: impl Fn(u64) -> u64) -> Space {
    let bytes = |blocks: u64| stat.f_frsize.saturating_mul(blocks);
    Space {
        available_bytes: bytes(stat.f_bavail),
        used_bytes: bytes(stat.f_blocks.saturating_sub(stat.f_bavail)),
        read_only_fs: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        min_free_bytes: min_free(bytes(stat.f_blocks)),
        // Filesystems that make inodes as they need them (btrfs) tell of none at all.
        no_inodes: stat.f_files > 0 && stat.f_favail == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_asks_the_more_often_the_less_is_left() {
        let life_ms = |available_bytes| {
            auto_life_ms(&Space {
                available_bytes,
                used_bytes: 0,
                read_only_fs: false,
                min_free_bytes: 1 << 30,
                no_inodes: false,
            })
        };
        assert_eq!(life_ms(0), 0, "below the minimum");
        assert_eq!(life_ms((1 << 30) + (399 << 20)), 0);
        assert_eq!(life_ms((1 << 30) + (400 << 20)), 10);
        assert_eq!(life_ms(3 << 30), 51);
        assert_eq!(life_ms(1 << 50), 100);
    }
}
