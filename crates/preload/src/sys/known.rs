//! The branch files in use, and the identities the pool gives them.
//!
//! A program that compares fstat of its descriptor with stat of the path (SQLite does, to notice a
//! database that was moved away) must see one file. Entries are kept by the branch file's identity,
//! so that dup, fork and close need no following, and never removed: the memory is touched only as
//! far as it is used. The time the file was made tells it from a later one of the same number.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Different files one process can have replaced; further ones stay with the pool.
const SLOTS: usize = 1 << 16;
/// Beyond this share of the slots a search would take long.
const MOST: usize = SLOTS / 4 * 3;

const FREE: u8 = 0;
const BEING_FILLED: u8 = 1;
const FULL: u8 = 2;

/// A file as stat(2) identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    pub device: u64,
    pub inode: u64,
}

struct Slot {
    state: AtomicU8,
    branch: AtomicId,
    /// When the branch file was made.
    born: AtomicU64,
    pool: AtomicId,
}

struct AtomicId {
    device: AtomicU64,
    inode: AtomicU64,
}

impl AtomicId {
    const fn new() -> Self {
        Self {
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    fn get(&self) -> Id {
        Id {
            device: self.device.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
        }
    }

    fn set(&self, id: Id) {
        self.device.store(id.device, Ordering::Relaxed);
        self.inode.store(id.inode, Ordering::Relaxed);
    }
}

static KNOWN: [Slot; SLOTS] = [const {
    Slot {
        state: AtomicU8::new(FREE),
        branch: AtomicId::new(),
        born: AtomicU64::new(0),
        pool: AtomicId::new(),
    }
}; SLOTS];
static USED: AtomicUsize = AtomicUsize::new(0);

/// The slots an identity may be in, in the order of the search.
fn probe(branch: Id) -> impl Iterator<Item = &'static Slot> {
    let mixed = (branch.inode ^ branch.device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = (mixed >> 48) as usize;
    (0..SLOTS).filter_map(move |step| KNOWN.get((first + step) % SLOTS))
}

/// The pool's identity of a branch file this process uses. `born` is asked when it was made, if the
/// rest fits.
pub fn pool_id(branch: Id, born: impl FnOnce() -> u64) -> Option<Id> {
    if USED.load(Ordering::Acquire) == 0 {
        return None;
    }
    for slot in probe(branch) {
        match slot.state.load(Ordering::Acquire) {
            FREE => return None,
            FULL if slot.branch.get() == branch => {
                let is_it = slot.born.load(Ordering::Relaxed) == born();
                return is_it.then(|| slot.pool.get());
            }
            _ => {}
        }
    }
    None
}

/// Remembers it; false if there is no room.
pub fn remember(branch: Id, born: u64, pool: Id) -> bool {
    for slot in probe(branch) {
        let state = slot.state.load(Ordering::Acquire);
        if state == FULL && slot.branch.get() == branch {
            // The inode number may have been given to another file since.
            slot.born.store(born, Ordering::Relaxed);
            slot.pool.set(pool);
            return true;
        }
        if state != FREE {
            continue;
        }
        if USED.load(Ordering::Relaxed) >= MOST {
            return false;
        }
        let claimed =
            slot.state
                .compare_exchange(FREE, BEING_FILLED, Ordering::Acquire, Ordering::Relaxed);
        // Another thread was faster: it may be the same file, and twice does no harm.
        if claimed.is_ok() {
            slot.branch.set(branch);
            slot.born.store(born, Ordering::Relaxed);
            slot.pool.set(pool);
            slot.state.store(FULL, Ordering::Release);
            USED.fetch_add(1, Ordering::Release);
            return true;
        }
    }
    false
}
