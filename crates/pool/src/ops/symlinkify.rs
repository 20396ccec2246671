//! `symlinkify`: files that have come to rest shown as symlinks to their place on the branch.

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Statx, StatxTimestamp};
use rustix::io::Errno;
use strandfs_fuse::{FileAttr, FileKind};

use crate::attr::file_attr;
use crate::identity::kind_of;
use crate::node::Node;
use crate::pool::{Pool, View};
use crate::sys;

/// Write permission for anybody.
const WRITE: u32 = 0o222;

impl View {
    /// Whether something with these attributes is shown as a symlink.
    pub(crate) fn symlinkifies(&self, stat: &Statx) -> bool {
        let settings = &self.settings;
        if !settings.symlinkify
            || kind_of(stat) != FileKind::Regular
            || u32::from(stat.stx_mode) & WRITE != 0
        {
            return false;
        }
        let changed_ns = nanoseconds(stat.stx_mtime).max(nanoseconds(stat.stx_ctime));
        // A clock before 1970 makes nothing old.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let age_ns = i128::try_from(now.as_nanos()).unwrap_or_default() - changed_ns;
        i128::try_from(settings.symlinkify_timeout.as_nanos()).is_ok_and(|life| age_ns >= life)
    }
}

fn nanoseconds(time: StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

impl Pool {
    /// Attributes of a file as it is shown, from those on its branch.
    pub(crate) fn shown_attr(
        &self,
        view: &View,
        node: &Arc<Node>,
        stat: &Statx,
    ) -> sys::Result<FileAttr> {
        let mut attr = file_attr(stat, node.ino);
        if node.is_symlinkified() {
            attr.mode = libc::S_IFLNK | 0o777;
            attr.size_bytes = self.place_on_branch(view, node)?.len() as u64;
            attr.blocks = 0;
        }
        Ok(attr)
    }

    /// The full path of a file on its branch: where the symlink leads that it is shown as.
    ///
    /// # Errors
    /// ESTALE if the file has no name any more.
    pub(crate) fn place_on_branch(&self, view: &View, node: &Arc<Node>) -> sys::Result<Vec<u8>> {
        let identity = node.primary().ok_or(Errno::STALE)?;
        let branch = view.branch(identity.branch).ok_or(Errno::STALE)?;
        let relative = self.relative_path(node).ok_or(Errno::STALE)?;
        Ok(branch.full_path(&relative).into_os_string().into_vec())
    }
}
