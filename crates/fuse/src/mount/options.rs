//! What a mount is to look like.

bitflags::bitflags! {
    /// Options every Linux filesystem has.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MountFlags: u32 {
        /// `ro`.
        const READ_ONLY = 1 << 0;
        /// `nosuid`; always on for users who are not root.
        const NOSUID = 1 << 1;
        /// `nodev`; always on for users who are not root.
        const NODEV = 1 << 2;
        /// `noexec`.
        const NOEXEC = 1 << 3;
        /// `sync`.
        const SYNC = 1 << 4;
        /// `dirsync`.
        const DIRSYNC = 1 << 5;
        /// `noatime`.
        const NOATIME = 1 << 6;
        /// `nodiratime`.
        const NODIRATIME = 1 << 7;
        /// `relatime`, the kernel's default.
        const RELATIME = 1 << 8;
        /// `strictatime`.
        const STRICTATIME = 1 << 9;
        /// `lazytime`.
        const LAZYTIME = 1 << 10;
    }
}

/// What a mount is to look like.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `df` and `/proc/mounts` show as the source; any text.
    pub fsname: String,
    /// The type is `fuse.<subtype>`; `fuse` if empty.
    pub subtype: String,
    /// Users other than the one who mounts may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions by mode, owner and ACL.
    pub default_permissions: bool,
    /// Options every filesystem has.
    pub flags: MountFlags,
    /// Longest READ in bytes; the kernel's limit if `None`.
    pub max_read_bytes: Option<u32>,
    /// Further options for the kernel as they are, like `context=…`.
    pub extra_data: Vec<String>,
}

impl Default for MountOptions {
    /// A mount for its owner only, named and typed `strandfs`, permissions left to the server.
    fn default() -> Self {
        Self {
            fsname: "strandfs".to_owned(),
            subtype: "strandfs".to_owned(),
            allow_other: false,
            default_permissions: false,
            flags: MountFlags::empty(),
            max_read_bytes: None,
            extra_data: Vec::new(),
        }
    }
}
