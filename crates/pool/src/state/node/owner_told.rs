//! The owner of a node as the kernel was told it.
//!
//! For chmod, chown, access lists and the sticky bit the kernel judges by the owner that it remembers,
//! however old that is. Where it was told one owner alone, that is the one; if the branch has the same,
//! the kernel's word holds. Else the server has to look who asks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use strandfs_fuse::FileAttr;

/// What was told since the kernel surely knew nothing else.
pub(crate) struct OwnerTold {
    ids: AtomicU64,
    /// There was more than one.
    several: AtomicBool,
}

impl Default for OwnerTold {
    fn default() -> OwnerTold {
        OwnerTold {
            ids: AtomicU64::new(OwnerTold::NONE),
            several: AtomicBool::new(false),
        }
    }
}

fn packed(attr: &FileAttr) -> u64 {
    u64::from(attr.uid) << 32 | u64::from(attr.gid)
}

impl OwnerTold {
    /// Nobody has these ids.
    const NONE: u64 = u64::MAX;

    /// Notes what the kernel is about to be told.
    pub fn note(&self, attr: &FileAttr) {
        let ids = packed(attr);
        let known = self.ids.load(Ordering::SeqCst);
        if known == ids {
            return;
        }
        let first =
            (self.ids).compare_exchange(OwnerTold::NONE, ids, Ordering::SeqCst, Ordering::SeqCst);
        if first.is_err_and(|known| known != ids) {
            self.several.store(true, Ordering::SeqCst);
        }
    }

    /// Notes the answer to a change of owner or mode. The kernel makes one such change of an inode at a
    /// time, takes the answer as it is, and takes none anymore to a question from before.
    pub fn settle(&self, attr: &FileAttr) {
        self.several.store(false, Ordering::SeqCst);
        self.ids.store(packed(attr), Ordering::SeqCst);
    }

    /// Owner and group that the kernel judges by; none if that may be one of several.
    pub fn only(&self) -> Option<(u32, u32)> {
        let ids = self.ids.load(Ordering::SeqCst);
        let is_one = ids != OwnerTold::NONE && !self.several.load(Ordering::SeqCst);
        is_one.then_some(((ids >> 32) as u32, ids as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_judges_for_certain_by_what_it_was_told_alone() {
        let owned_by = |uid, gid| FileAttr {
            uid,
            gid,
            ..FileAttr::default()
        };
        let told = OwnerTold::default();
        assert_eq!(told.only(), None);
        told.note(&owned_by(5, 6));
        told.note(&owned_by(5, 6));
        assert_eq!(told.only(), Some((5, 6)));
        told.note(&owned_by(0, 6));
        assert_eq!(told.only(), None);
        told.note(&owned_by(5, 6));
        assert_eq!(told.only(), None);
        told.settle(&owned_by(7, 6));
        assert_eq!(told.only(), Some((7, 6)));
    }
}
