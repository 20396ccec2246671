//! Which side each file's descriptors are on in this process: the branch's or the pool's.
//!
//! A process has one set of record locks on a file (`F_SETLK`, lockf(3)), whichever of its descriptors
//! it locks through, and loses them all when it closes any. The branch file and the pool's file are
//! two to the kernel. So the first open decides, and all further ones follow.

use std::sync::atomic::{AtomicU64, Ordering};

use super::known::Id;

/// Files that can be told apart; further ones stay with the pool.
const SLOTS: usize = 1 << 16;
/// Beyond this many steps a search would take long.
const STEPS: usize = 256;
/// The bit of a file that stays with the pool. The others are the file's.
const POOL: u64 = 1;

/// Where a file's descriptors are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Branch,
    Pool,
}

static FILES: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// What stands for a file: never 0, and one that two files share makes the second follow the first.
fn mark(pool: Id) -> u64 {
    let mut mixed = pool.inode ^ pool.device.rotate_left(32);
    for _ in 0..2 {
        mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    (mixed ^ (mixed >> 32)) & !POOL | 2
}

fn probe(mark: u64) -> impl Iterator<Item = &'static AtomicU64> {
    let first = (mark >> 48) as usize;
    (0..STEPS).filter_map(move |step| FILES.get((first + step) % SLOTS))
}

fn side(found: u64) -> Side {
    if found & POOL == 0 {
        Side::Branch
    } else {
        Side::Pool
    }
}

/// The side of a file, if it is decided.
pub fn of(pool: Id) -> Option<Side> {
    let mark = mark(pool);
    for slot in probe(mark) {
        match slot.load(Ordering::Acquire) {
            0 => return None,
            found if found & !POOL == mark => return Some(side(found)),
            _ => {}
        }
    }
    Some(Side::Pool)
}

/// Decides for a side unless that is done already; which it is now.
pub fn decide(pool: Id, wanted: Side) -> Side {
    let mark = mark(pool);
    let new = match wanted {
        Side::Branch => mark,
        Side::Pool => mark | POOL,
    };
    for slot in probe(mark) {
        match slot.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return wanted,
            Err(found) if found & !POOL == mark => return side(found),
            Err(_) => {}
        }
    }
    Side::Pool
}

/// From now on the file stays with the pool.
pub fn leave_to_pool(pool: Id) {
    let mark = mark(pool);
    for slot in probe(mark) {
        match slot.load(Ordering::Acquire) {
            0 => return,
            found if found & !POOL == mark => {
                slot.fetch_or(POOL, Ordering::AcqRel);
                return;
            }
            _ => {}
        }
    }
}
