//! Whose answer is believed: that of a pool which root or the user of this process has mounted.
//!
//! The server of any FUSE mount could name any file that the program may open, so that it writes
//! over it, or takes what is in it for its own. So the kernel is asked who made the mount, never
//! the mount itself: its type is for its user to choose.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use strandfs_preload_abi::{MountSearch, number};

use super::calls;

/// `STATX_MNT_ID`, `STATX_MNT_ID_UNIQUE`: numbers as in the kernel's list; numbers that no other
/// mount ever gets (Linux 6.8).
const LISTED: u32 = 0x1000;
const UNIQUE: u32 = 0x4000;

/// The mount of root's that was found last, by its unique number; 0 for none. Who the process is
/// may change, so another user's is looked for each time.
static ROOTS: AtomicU64 = AtomicU64::new(0);

/// Whether the server of the mount that `fd` is on may be asked.
pub fn is_trusted(fd: c_int) -> bool {
    if calls::runs_with_more_rights() {
        return false;
    }
    let unique = calls::mount_number(fd, UNIQUE);
    if unique.is_some_and(|number| number == ROOTS.load(Ordering::Relaxed)) {
        return true;
    }
    // The descriptor keeps the number from being given to another mount.
    let Some(listed) = calls::mount_number(fd, LISTED) else {
        return false;
    };
    let mut search = MountSearch::new(listed);
    if !calls::read_pieces(c"/proc/thread-self/mountinfo", |piece| search.feed(piece)) {
        return false;
    }
    match search.maker() {
        Some(0) => {
            if let Some(number) = unique {
                ROOTS.store(number, Ordering::Relaxed);
            }
            true
        }
        Some(user) => calls::only_user() == Some(user) && numbers_mean_the_same(),
        None => false,
    }
}

/// Whether user numbers in this process are those of the machine: in a user namespace of its own
/// the number of whoever made a mount may be somebody else's.
fn numbers_mean_the_same() -> bool {
    let (mut at, mut text) = (0, [0u8; 64]);
    let read = calls::read_pieces(c"/proc/self/uid_map", |piece| {
        for byte in piece {
            if let Some(place) = text.get_mut(at) {
                *place = *byte;
            }
            at += 1;
        }
    });
    let text = text.get(..at).unwrap_or_default();
    let mut words = text
        .split(u8::is_ascii_whitespace)
        .filter(|w| !w.is_empty());
    let mut next = || words.next().and_then(number);
    read && (next(), next(), next()) == (Some(0), Some(0), Some(u64::from(u32::MAX)))
}
