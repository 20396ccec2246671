//! Every system call `rustix` does not offer in the form the pool needs, wrapped once.
//!
//! The only module of this crate with `unsafe` code.

use rustix::fs::Statx;

pub use btrfs::{btrfs_commit, btrfs_devices, btrfs_uuid};
pub use credentials::{
    Caller, NOBODY, all_but_owners_power, as_caller, as_owner, for_owner_alone, on_account_alone,
    on_account_of, on_account_with_powers, want_fsetid, with_powers, with_umask,
};
pub use extents::{each_unwritten, mapped_bytes, shared_bytes};
pub use fanotify::{
    Report, fanotify_group, fanotify_ignore, fanotify_ignore_nothing, fanotify_unwatch,
    fanotify_watch_filesystem,
};
pub use filesystem_id::filesystem_uuid;
pub use handle::{RawHandle, name_to_handle, name_to_handle_fd, open_by_handle, xfs_generation};
pub use heap::give_back_free_memory;
pub use hold::{
    HeldAccess, arming_group, hold_group, hold_unmark_all, is_own_thread, let_go, mark_able,
    mark_armed, next_access, next_opened, thread_is_blocked, thread_lives, unmark_able,
    unmark_armed,
};
pub use io_priority::{adopt_io_priority, drop_io_priority, idle_io_priority};
pub use lease::{Own, leases_ignore_readers, without_own_leases, written_by_others};
pub use lock::{RangeLock, flock, get_range_lock, set_range_lock};
pub use own_table::{spawn_apart, spawn_with_own_table};
pub use peer::{Peer, peer};
pub use pidfd::file_user_of;
pub use raw::{
    MNT_ID_UNIQUE, ProcPath, chmod, close_reporting, fs_ioctl, getxattr, listxattr, mono_coarse_ms,
    path_of, removexattr, rename_flags, set_times, setxattr, statx_fd, statx_name, truncate,
    wait_for_writeback,
};
pub use xfs::xfs_reclaim;

mod btrfs;
mod credentials;
mod extents;
mod fanotify;
mod filesystem_id;
mod handle;
mod heap;
mod hold;
mod io_priority;
mod lease;
mod lock;
mod own_table;
mod peer;
mod pidfd;
mod raw;
mod xfs;

/// Result of a system call.
pub type Result<T> = std::result::Result<T, rustix::io::Errno>;

/// Birth time in nanoseconds, 0 if unknown.
pub fn btime_ns(stat: &Statx) -> i64 {
    if stat.stx_mask & rustix::fs::StatxFlags::BTIME.bits() == 0 {
        return 0;
    }
    stat.stx_btime
        .tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(i64::from(stat.stx_btime.tv_nsec))
}
