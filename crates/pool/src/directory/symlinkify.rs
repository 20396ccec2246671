//! `symlinkify`: files that have come to rest shown as symlinks to their place on the branch.

use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Statx, StatxTimestamp};
use rustix::io::Errno;
use strandfs_fuse::FileKind;

use crate::base::error::Result;
use crate::state::identity::kind_of;
use crate::state::node::Node;
use crate::state::view::View;
use crate::state::{State, paths};

/// Write permission for anybody.
const WRITE: u32 = 0o222;

impl View {
    /// Whether something with these attributes is shown as a symlink.
    pub(crate) fn symlinkifies(&self, stat: &Statx) -> bool {
        let settings = &self.settings;
        if !settings.presentation.symlinkify
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
        has_come_to_rest(changed_ns, now, settings.presentation.symlinkify_timeout)
    }
}

/// Whether what was changed then has been left alone for `timeout`, going by the wall clock, as
/// the file's times do: after a jump of the clock files look as old as it makes them.
fn has_come_to_rest(changed_ns: i128, now: Duration, timeout: Duration) -> bool {
    let age_ns = i128::try_from(now.as_nanos()).unwrap_or_default() - changed_ns;
    i128::try_from(timeout.as_nanos()).is_ok_and(|timeout_ns| age_ns >= timeout_ns)
}

fn nanoseconds(time: StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// The full path of a file on its branch: where the symlink leads that it is shown as.
///
/// # Errors
/// ESTALE if the file has no name any more.
pub(crate) fn place_on_branch(pool: &State, view: &View, node: &Arc<Node>) -> Result<Vec<u8>> {
    let identity = node.primary().ok_or(Errno::STALE)?;
    let branch = view.branch(identity.branch).ok_or(Errno::STALE)?;
    let relative = paths::relative_path(pool, node).ok_or(Errno::STALE)?;
    Ok(branch.full_path(&relative).into_os_string().into_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_makes_files_as_old_as_it_says_and_breaks_nothing() {
        const HOUR: Duration = Duration::from_secs(3600);
        const YEAR: Duration = Duration::from_secs(365 * 86_400);
        let now = 50 * YEAR;
        let at = |time: Duration| i128::try_from(time.as_nanos()).unwrap();
        assert!(!has_come_to_rest(at(now - HOUR), now, 2 * HOUR));
        assert!(has_come_to_rest(at(now - HOUR), now, HOUR));
        // Ahead by years: everything is old.
        assert!(has_come_to_rest(at(now), now + 20 * YEAR, HOUR));
        // Back by years, and to its beginning: what is in the future is not old.
        assert!(!has_come_to_rest(at(now), now - 20 * YEAR, HOUR));
        assert!(!has_come_to_rest(at(now), Duration::ZERO, HOUR));
        // Times and limits at the ends of their ranges.
        let (first, last) = [i64::MIN, i64::MAX]
            .map(|s| i128::from(s) * 1_000_000_000)
            .into();
        assert!(!has_come_to_rest(last, Duration::MAX, Duration::MAX));
        assert!(!has_come_to_rest(first, Duration::ZERO, Duration::MAX));
        assert!(has_come_to_rest(first, Duration::ZERO, HOUR));
    }
}
