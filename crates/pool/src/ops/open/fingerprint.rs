//! By what `cache.files=auto-full` knows content again.

use rustix::fs::Statx;

use crate::base::hash::{mix, stable_hash};

/// Changes when the file's content may have changed (`cache.files=auto-full`); never 0.
pub(super) fn fingerprint(stat: &Statx) -> u64 {
    let times = [stat.stx_mtime, stat.stx_ctime];
    let words = [
        stat.stx_ino,
        stat.stx_size,
        u64::from(stat.stx_dev_major),
        u64::from(stat.stx_dev_minor),
    ];
    let words = words.into_iter().chain(
        times
            .into_iter()
            .flat_map(|time| [time.tv_sec as u64, u64::from(time.tv_nsec)]),
    );
    let hash = words.fold(stable_hash(b"auto-full"), |hash, word| mix(hash ^ word));
    hash | 1
}
