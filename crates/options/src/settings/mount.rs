//! What mount(2) is told, and what the server does around it.

use serde::{Deserialize, Serialize};

/// What mount(2) is told, and what the server does around it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct MountSettings {
    pub flags: MountFlags,
    pub contexts: SecurityContexts,
    /// What may be on the mountpoint already.
    pub occupied: Occupied,
    /// `None`: on when mounting as root.
    pub allow_other: Option<bool>,
    pub auto_unmount: bool,
    pub core_dumps: bool,
    /// `None`: the server runs as whoever mounts.
    pub setuid: Option<String>,
}

/// The flags of mount(2). Everything off is the kernel's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFlags {
    /// `ro`.
    pub read_only: bool,
    /// Honour set-user-id bits. `None` leaves it to the way in: `mount -t strandfs` by root says
    /// yes, as for any filesystem, `strandfs mount` says no.
    pub suid: Option<bool>,
    /// Honour device nodes. `None` as for `suid`.
    pub dev: Option<bool>,
    /// Refuse to run programs.
    pub noexec: bool,
    /// Write everything synchronously.
    pub sync: bool,
    /// Change directories synchronously.
    pub dirsync: bool,
    /// Never update access times. At most one of this, `relatime`, `strictatime` is set.
    pub noatime: bool,
    /// Never update access times of directories.
    pub nodiratime: bool,
    /// Update access times when older than the last change, or than a day.
    pub relatime: bool,
    /// Update access times at every access.
    pub strictatime: bool,
    /// Keep time changes in memory for a while.
    pub lazytime: bool,
}

/// What may be on the mountpoint already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupied {
    /// A pool, which is hidden.
    pub over: bool,
    /// A pool, which is detached.
    pub detach: bool,
    /// Files, which are hidden.
    pub nonempty: bool,
}

impl Occupied {
    /// Whether a pool may be there.
    pub fn by_pool(self) -> bool {
        self.over || self.detach
    }
}

/// SELinux labels given at mount; `None` when not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityContexts {
    /// Label of every file.
    pub context: Option<String>,
    /// Label of the filesystem.
    pub fscontext: Option<String>,
    /// Label of files without one.
    pub defcontext: Option<String>,
    /// Label of the root.
    pub rootcontext: Option<String>,
}
