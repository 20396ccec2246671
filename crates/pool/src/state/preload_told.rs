//! The files whose place on a branch the preload library was told.

use rustix::fs::Statx;

/// Files that can be remembered, about 64 MiB of memory. Beyond it no further file is told.
const MOST_TOLD: usize = 1 << 20;

/// A branch file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Told {
    device: (u32, u32),
    inode: u64,
}

impl Told {
    pub(crate) fn of(stat: &Statx) -> Told {
        Told {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
        }
    }
}

/// The files whose place was told.
#[derive(Default)]
pub(crate) struct PreloadTold(papaya::HashSet<Told>);

impl PreloadTold {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the file of this inode was told.
    pub(crate) fn knows(&self, stat: &Statx) -> bool {
        self.0.pin().contains(&Told::of(stat))
    }

    /// Remembers it; false if there are too many.
    pub(crate) fn remember(&self, told: Told) -> bool {
        let told_files = self.0.pin();
        told_files.contains(&told) || (told_files.len() < MOST_TOLD && told_files.insert(told))
    }
}
