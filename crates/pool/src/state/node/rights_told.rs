//! Owner, group and mode of a node as the kernel was told them.
//!
//! For what only an owner may do the kernel judges by the owner that it remembers, however old that is,
//! and for all else by the mode that it remembers, for as long as it may keep it. Where it was told one
//! value alone, that is the one; if the branch has the same, the kernel's word holds. Else the server has
//! to look who asks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use strandfs_fuse::FileAttr;

use crate::base::rights::Rights;

/// What was told since the kernel surely knew nothing else.
pub(crate) struct RightsTold {
    ids: AtomicU64,
    /// What of the mode counts, and the marks.
    mode: AtomicU32,
}

/// What the kernel judges by, as far as that is one value for certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// Permissions and sticky bit.
    mode: Option<u32>,
}

impl Told {
    /// Permissions and sticky bit: what set-id bits there are changes with every write.
    const COUNTED: u32 = 0o1777;

    /// Whether the kernel has judged by these rights, but for set-id bits and an access list.
    pub fn is(&self, rights: &Rights) -> bool {
        self.uid == Some(rights.uid)
            && self.gid == Some(rights.gid)
            && self.mode == Some(rights.mode & Told::COUNTED)
    }
}

impl Default for RightsTold {
    fn default() -> RightsTold {
        RightsTold {
            ids: AtomicU64::new(RightsTold::NONE),
            mode: AtomicU32::new(0),
        }
    }
}

fn packed(attr: &FileAttr) -> u64 {
    u64::from(attr.uid) << 32 | u64::from(attr.gid)
}

impl RightsTold {
    /// Nobody has these ids.
    const NONE: u64 = u64::MAX;
    /// A mode was told.
    const KNOWN: u32 = 1 << 31;
    /// There was more than one owner, group or mode.
    const SEVERAL_UID: u32 = 1 << 30;
    const SEVERAL_GID: u32 = 1 << 29;
    const SEVERAL_MODES: u32 = 1 << 28;

    /// Notes what the kernel is about to be told. Nearly always that is known: no other CPU's cache is
    /// disturbed then.
    pub fn note(&self, attr: &FileAttr) {
        let ids = packed(attr);
        let mode = RightsTold::KNOWN | attr.mode & Told::COUNTED;
        let several = self.several_ids(ids) | self.several_modes(mode);
        if several & !self.mode.load(Ordering::SeqCst) != 0 {
            self.mode.fetch_or(several, Ordering::SeqCst);
        }
    }

    /// The marks for what differs from the ids that were told first.
    fn several_ids(&self, ids: u64) -> u32 {
        let known = match self.ids.load(Ordering::SeqCst) {
            RightsTold::NONE => (self.ids)
                .compare_exchange(RightsTold::NONE, ids, Ordering::SeqCst, Ordering::SeqCst)
                .map_or_else(|known| known, |_| ids),
            known => known,
        };
        let mut several = 0;
        if known >> 32 != ids >> 32 {
            several |= RightsTold::SEVERAL_UID;
        }
        if known as u32 != ids as u32 {
            several |= RightsTold::SEVERAL_GID;
        }
        several
    }

    /// The mark for a mode other than the one that was told first.
    fn several_modes(&self, mode: u32) -> u32 {
        let mut known = self.mode.load(Ordering::SeqCst);
        while known & RightsTold::KNOWN == 0 {
            match (self.mode).compare_exchange_weak(
                known,
                known | mode,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return 0,
                Err(now) => known = now,
            }
        }
        match (known ^ mode) & Told::COUNTED {
            0 => 0,
            _ => RightsTold::SEVERAL_MODES,
        }
    }

    /// Notes the answer to a change of owner or mode. The kernel makes one such change of an inode at a
    /// time, takes the answer as it is, and takes none anymore to a question from before.
    pub fn settle(&self, attr: &FileAttr) {
        let mode = RightsTold::KNOWN | attr.mode & Told::COUNTED;
        self.mode.store(mode, Ordering::SeqCst);
        self.ids.store(packed(attr), Ordering::SeqCst);
    }

    /// What the kernel judges by.
    pub fn told(&self) -> Told {
        let (ids, mode) = (
            self.ids.load(Ordering::SeqCst),
            self.mode.load(Ordering::SeqCst),
        );
        let is_one = |several| ids != RightsTold::NONE && mode & several == 0;
        let is_known = mode & RightsTold::KNOWN != 0 && mode & RightsTold::SEVERAL_MODES == 0;
        Told {
            uid: is_one(RightsTold::SEVERAL_UID).then_some((ids >> 32) as u32),
            gid: is_one(RightsTold::SEVERAL_GID).then_some(ids as u32),
            mode: is_known.then_some(mode & Told::COUNTED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(uid: Option<u32>, gid: Option<u32>, mode: Option<u32>) -> Told {
        Told { uid, gid, mode }
    }

    #[test]
    fn the_kernel_judges_for_certain_by_what_it_was_told_alone() {
        let shown = |uid, gid, mode| FileAttr {
            uid,
            gid,
            mode: libc::S_IFREG | mode,
            ..FileAttr::default()
        };
        let known = RightsTold::default();
        assert_eq!(known.told(), Told::default());
        known.note(&shown(5, 6, 0o644));
        // A write takes set-id bits away.
        known.note(&shown(5, 6, 0o4644));
        assert_eq!(known.told(), told(Some(5), Some(6), Some(0o644)));
        known.note(&shown(5, 6, 0o640));
        assert_eq!(known.told(), told(Some(5), Some(6), None));
        known.note(&shown(5, 7, 0o644));
        assert_eq!(known.told(), told(Some(5), None, None));
        known.note(&shown(0, 6, 0o644));
        known.note(&shown(5, 6, 0o644));
        assert_eq!(known.told(), Told::default());
        known.settle(&shown(7, 6, 0o1777));
        assert_eq!(known.told(), told(Some(7), Some(6), Some(0o1777)));
    }

    #[test]
    fn the_kernels_word_holds_for_the_very_rights_that_it_was_told() {
        let told = told(Some(5), Some(6), Some(0o640));
        let rights = |uid, gid, mode| Rights { uid, gid, mode };
        assert!(told.is(&rights(5, 6, 0o640)) && told.is(&rights(5, 6, 0o4640)));
        for others in [
            rights(0, 6, 0o640),
            rights(5, 0, 0o640),
            rights(5, 6, 0o600),
            rights(5, 6, 0o1640),
        ] {
            assert!(!told.is(&others), "{others:?}");
        }
        assert!(!Told { mode: None, ..told }.is(&rights(5, 6, 0o640)));
    }
}
