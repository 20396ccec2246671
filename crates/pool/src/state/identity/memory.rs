//! What is kept of forgotten inodes so that their file handles open again.

use std::collections::{HashMap, HashSet};

use crate::state::identity::VolumeId;

/// Generations of forgotten inodes, bounded: when the newer half is full the older is dropped.
#[derive(Default)]
pub(super) struct Generations {
    newer: HashMap<(VolumeId, u64), u32>,
    older: HashMap<(VolumeId, u64), u32>,
    /// Directories that gave their number and handles to the node of several copies.
    pub(super) elders: HashSet<(VolumeId, u64)>,
}

impl Generations {
    /// About 24 bytes each.
    const HALF_MAX: usize = 1 << 19;

    pub(super) fn note(&mut self, key: (VolumeId, u64), generation: u32) {
        if self.newer.len() >= Self::HALF_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, generation);
    }

    pub(super) fn note_elder(&mut self, key: (VolumeId, u64)) {
        if self.elders.len() >= Self::HALF_MAX {
            self.elders.clear();
        }
        self.elders.insert(key);
    }

    pub(super) fn get(&self, key: &(VolumeId, u64)) -> Option<u32> {
        self.newer.get(key).or_else(|| self.older.get(key)).copied()
    }
}
