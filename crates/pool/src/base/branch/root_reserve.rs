//! The part of a filesystem that only root may fill, as ext4 keeps it (`mke2fs -m`, 5 % by default).
//!
//! Whom a filesystem lets have it is decided by the filesystem user of the thread that writes
//! (`ext4_has_free_clusters`), which is root in the server: what is written for others has to be
//! written on their account, where the reserve may be reached. Groups and capabilities that count there, too,
//! the server has not: who is entitled by these is served on the account of whom it is kept for.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::StatVfs;

use super::space::AUTO_FILL_BYTES_PER_MS;
use super::{drive, medium};
use crate::base::magic;
use crate::base::sys::{self, mono_coarse_ms};

/// With less than a writer fills in this time the reserve is near.
const NEAR_MS: u64 = 10;
/// For how long an answer holds: where the reserve is near, and at most.
const HOLDS_MS: (u64, u64) = (100, 1000);

/// Whether a filesystem keeps a reserve, and whether that may be reached now.
#[derive(Debug)]
pub(crate) struct RootReserve {
    /// Its type keeps one by users.
    by_user: bool,
    /// Until when an answer holds, and the answer: [`KEPT`], [`NEAR`].
    told: AtomicU64,
    holders: Holders,
    /// What the filesystem keeps for its own needs besides, in its blocks: it counts as free, and nobody gets it.
    own_blocks: u64,
}

/// Whom the reserve is for (`resuid`, `resgid`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    /// Root, if nobody says otherwise.
    pub uid: u32,
    /// Of 0 the kernel makes nothing.
    pub gid: u32,
}

impl Holders {
    /// From the options of a mounted filesystem, which name all but root.
    fn from_options(options: &str) -> Holders {
        let number = |key: &str| {
            let mut all = options
                .split(',')
                .filter_map(|option| option.split_once('='));
            all.find_map(|(name, value)| (name == key).then(|| value.parse().ok())?)
        };
        Holders {
            uid: number("resuid").unwrap_or_default(),
            gid: number("resgid").unwrap_or_default(),
        }
    }
}

/// There is a reserve.
const KEPT: u64 = 1;
/// Little else is free.
const NEAR: u64 = 2;
const BITS: u32 = 2;

impl RootReserve {
    /// Of the filesystem of a directory, of this type by the number that `statfs(2)` gives it.
    pub(super) fn of(kind: u64, root: BorrowedFd<'_>) -> Self {
        match keeps_for_users(kind) {
            true => RootReserve {
                holders: Holders::from_options(&medium::options_of(root)),
                own_blocks: own_blocks(root).unwrap_or_default(),
                ..RootReserve::by_type(true)
            },
            false => RootReserve::by_type(false),
        }
    }

    fn by_type(by_user: bool) -> Self {
        RootReserve {
            by_user,
            told: AtomicU64::new(0),
            holders: Holders::default(),
            own_blocks: 0,
        }
    }

    /// Whom it is for.
    pub(crate) fn holders(&self) -> Holders {
        self.holders
    }

    /// Whether there is a reserve; `ask` asks the filesystem, now and then.
    pub(crate) fn is_kept(&self, ask: impl FnOnce() -> sys::Result<StatVfs>) -> bool {
        self.by_user && self.told(ask) & KEPT != 0
    }

    /// Whether what is written now may reach it.
    pub(crate) fn is_near(&self, ask: impl FnOnce() -> sys::Result<StatVfs>) -> bool {
        self.by_user && self.told(ask) == KEPT | NEAR
    }

    /// Whether it is known to be far, without a call.
    pub(crate) fn is_surely_far(&self) -> bool {
        let told = self.told.load(Ordering::Relaxed);
        !self.by_user || mono_coarse_ms() < told >> BITS && told & NEAR == 0
    }

    fn told(&self, ask: impl FnOnce() -> sys::Result<StatVfs>) -> u64 {
        let (told, now_ms) = (self.told.load(Ordering::Relaxed), mono_coarse_ms());
        let answer = told & (KEPT | NEAR);
        if now_ms < told >> BITS {
            return answer;
        }
        let (answer, holds_ms) = match ask() {
            Ok(stat) => judge(&stat, self.own_blocks),
            Err(_) => (KEPT | NEAR, HOLDS_MS.0),
        };
        let until = now_ms.saturating_add(holds_ms) << BITS;
        self.told.store(until | answer, Ordering::Relaxed);
        answer
    }
}

/// What a filesystem's figures say, and for how long.
fn judge(stat: &StatVfs, own_blocks: u64) -> (u64, u64) {
    let available_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
    // Where all of it is used up it may be had again as soon as something is removed.
    let not_available = stat.f_bfree.saturating_sub(stat.f_bavail);
    let kept = match not_available > own_blocks || stat.f_bavail == 0 {
        true => KEPT,
        false => 0,
    };
    let fills_ms = available_bytes / AUTO_FILL_BYTES_PER_MS;
    match fills_ms < NEAR_MS {
        true => (kept | NEAR, HOLDS_MS.0),
        false => (kept, fills_ms.min(HOLDS_MS.1)),
    }
}

/// What ext4 keeps for its own needs; of clusters of several blocks it says the fewer.
fn own_blocks(root: BorrowedFd<'_>) -> Option<u64> {
    let stat = sys::statx_fd(root).ok()?;
    let number = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let device = std::fs::read_link(Path::new(drive::DEVICES).join(number)).ok()?;
    let of_device = Path::new("/sys/fs/ext4").join(device.file_name()?);
    let clusters = std::fs::read_to_string(of_device.join("reserved_clusters")).ok()?;
    clusters.trim().parse().ok()
}

/// ext2 to ext4, f2fs (`reserve_root`), UBIFS.
fn keeps_for_users(kind: u64) -> bool {
    matches!(kind, magic::EXT4 | magic::F2FS | 0x2405_1905)
}

/// Whether the filesystem of a file keeps a reserve by users.
pub(crate) fn may_be_kept_on(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|fs| keeps_for_users(fs.f_type as u64))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn of(kind: u64) -> RootReserve {
        RootReserve::by_type(keeps_for_users(kind))
    }

    #[test]
    fn whom_it_is_for_is_read_from_the_options() {
        let of = |options| {
            let holders = Holders::from_options(options);
            (holders.uid, holders.gid)
        };
        assert_eq!(of("rw,errors=remount-ro"), (0, 0));
        assert_eq!(of("rw,resuid=12,resgid=34,stripe=5"), (12, 34));
        assert_eq!(of("rw,noresgid=7,resgid=x"), (0, 0));
    }

    fn stat(available_mib: u64, free_mib: u64) -> StatVfs {
        let mut stat = rustix::fs::statvfs("/").unwrap();
        (stat.f_frsize, stat.f_bavail, stat.f_bfree) = (1 << 20, available_mib, free_mib);
        stat
    }

    #[test]
    fn the_reserve_is_near_where_a_writer_could_reach_it_unseen() {
        let reserve = |available, free| {
            let reserve = of(magic::EXT4);
            let ask = || Ok(stat(available, free));
            (reserve.is_kept(ask), reserve.is_near(ask))
        };
        assert_eq!(reserve(10, 20), (true, true));
        assert_eq!(reserve(399, 500), (true, true));
        assert_eq!(reserve(400, 500), (true, false));
        assert_eq!(reserve(0, 0), (true, true));
        assert_eq!(reserve(10, 10), (false, false), "none is kept");
        let with_own = RootReserve {
            own_blocks: 10,
            ..of(magic::EXT4)
        };
        assert!(!with_own.is_kept(|| Ok(stat(500, 510))), "nor for root");
        let unknown = of(magic::EXT4);
        assert!(unknown.is_near(|| Err(Errno::IO)));
    }

    #[test]
    fn nothing_is_asked_twice_in_a_moment_nor_where_no_reserve_is_kept() {
        let reserve = of(magic::EXT4);
        assert!(!reserve.is_surely_far());
        assert!(!reserve.is_near(|| Ok(stat(1 << 20, 2 << 20))));
        assert!(reserve.is_surely_far());
        assert!(reserve.is_kept(|| panic!("asked again")));
        let none = of(magic::XFS);
        assert!(!none.is_near(|| panic!("asked")) && none.is_surely_far());
    }
}
