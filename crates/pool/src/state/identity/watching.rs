//! What watching for changes needs to know of volumes.

use std::os::fd::{AsFd, BorrowedFd};

use crate::base::sys::RawHandle;
use crate::state::identity::{VolumeId, Volumes};

impl Volumes {
    /// How many volumes there are; their ids count from 0.
    pub fn count(&self) -> usize {
        self.list.load().len()
    }

    /// The device number of a volume.
    pub fn device(&self, volume: VolumeId) -> Option<(u32, u32)> {
        let list = self.list.load();
        Some(list.get(usize::from(volume.0))?.device)
    }

    /// Calls `look` with a descriptor on the volume's filesystem and whether its file handles
    /// can be read; `None` if there is no such volume or it could not be opened.
    pub fn with_mount<T>(
        &self,
        volume: VolumeId,
        look: impl FnOnce(BorrowedFd<'_>, bool) -> T,
    ) -> Option<T> {
        let list = self.list.load();
        let found = list.get(usize::from(volume.0))?;
        let mount = found.mount.as_ref()?;
        Some(look(mount.as_fd(), found.layout.is_some()))
    }

    /// The number and generation of the inode that a handle of this volume names.
    pub fn decode(&self, volume: VolumeId, handle: &RawHandle) -> Option<(u64, u32)> {
        let list = self.list.load();
        list.get(usize::from(volume.0))?.layout?.read(handle)
    }
}
